// Ranks as threads of one process.
//
// run_thread_ranks starts `size` threads, gives each the communicator of its rank, and waits for all of them. When one
// throws, every other rank's communication ends with CommunicationError within moments ("rank 2 failed: ..."), and the
// FIRST cause is thrown to the caller, once, with the rank named in the text ("rank 2: ...") and with its exception
// type kept for Ithaca's own types; others become Error. A rank that returns while others wait for it is a failure too.
//
// Communicators must be destroyed before the backend they were made with, on the thread of their rank: so one that is
// torn down by an exception can end the operations that the backend's streams wait in.
// Thread-safety: call from any thread; several groups may run at the same time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/device_movement.h"
#include "comm/communicator.h"
#include "comm/transport.h"

namespace ithaca {

struct ThreadRankOptions {
  // A collective that has waited this long for another rank ends the group, naming the collective and the ranks that
  // did not come. 0: never. Time in which the process does not run, and that of HostWork, does not count.
  double timeout_seconds = 600.0;
  // For ranks whose memory lies on devices. nccl: one rank per device, and the library must be there.
  Transport transport = Transport::peer;
  std::string timeout_name = {};  // what sets the timeout, for that text: an option, say
};

// What a rank's thread is given: it builds its own backend and makes the communicator with it.
class ThreadRank {
 public:
  virtual ~ThreadRank() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The world's communicator over `backend` (which must outlive it), in the form that its memory and the transport
  // need. All ranks must have the same kind of backend. Call once, from the rank's thread. Throws ConfigurationError
  // when the transport is not for these backends.
  virtual std::unique_ptr<Communicator> connect(Backend& backend) = 0;
  // The same for memory on devices, with the movement given apart from the backend.
  virtual std::unique_ptr<Communicator> connect(Backend& backend, DeviceMovement& movement) = 0;
};

void run_thread_ranks(int size, const ThreadRankOptions& options, const std::function<void(ThreadRank&)>& body);

}  // namespace ithaca
