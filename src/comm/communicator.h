// Communicator: collectives among the ranks of one group.
//
// Every rank of the group must call the same operations in the same order with matching sizes. A mismatch, a lost rank
// or a stall ends every rank of the group (and of the world it was split from) with CommunicationError naming the first
// cause. Operations are enqueued on a stream like Backend operations and may return before they have run; failures
// surface at the next wait, finish or operation. Tensors are views on this rank's backend, of any strides; matching
// blocks have the same dtype and element count. Their memory must stay until the operation has run, also when an
// exception ends the rank: that of an arena does, as its backend stops its streams before it goes. Blocks may be empty.
// Sums are made in rank order, so results are the same bits on every rank and in every run. Forms: threads of one
// process that read each other's memory or send through NCCL (comm/thread_ranks.h). Thread-safety: the rank's own
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "backend/backend.h"
#include "tensor/tensor.h"

namespace ithaca {

enum class Collective : uint8_t {
  all_to_all,
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  send_receive,
  barrier,
  split
};
inline constexpr int kCollectives = 8;
std::string_view collective_name(Collective collective);

// Bytes this rank has sent to OTHER ranks, and calls, by operation (comm/collective_call.h has the formulas).
// all_reduce counts what a reduce-scatter and an all-gather send.
struct Traffic {
  std::array<int64_t, kCollectives> bytes_sent{};
  std::array<int64_t, kCollectives> calls{};
  int64_t total_bytes_sent() const;
};

class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // send[p] goes to rank p's receive[this rank]; one block per rank of the group, own block included (copied locally).
  // An absent or empty block sends nothing; it must match an absent or empty block of the peer.
  virtual void all_to_all(Stream& stream, std::span<const Tensor> send, std::span<const Tensor> receive) = 0;
  // receive[p] = rank p's `send`; sizes may differ between ranks. receive[own] may be `send` itself (then nothing is
  // copied).
  virtual void all_gather(Stream& stream, const Tensor& send, std::span<const Tensor> receive) = 0;
  // receive = sum over ranks p, in rank order, of p's send[this rank]. float32, float64 or int64. `receive` may be
  // send[own].
  virtual void reduce_scatter(Stream& stream, std::span<const Tensor> send, const Tensor& receive) = 0;
  // data = sum over ranks in rank order, in place. float32, float64 or int64; contiguous.
  virtual void all_reduce(Stream& stream, const Tensor& data) = 0;
  // data = root's data.
  virtual void broadcast(Stream& stream, const Tensor& data, int root) = 0;
  // The ring's step: `send` goes to rank `to`, `receive` comes from rank `from`. Either side may be absent (then
  // `to`/`from` is ignored); the peer must agree. An empty block is a message like any other. All ranks of the group
  // need not take part, but every send must meet its receive in the same order between a pair of ranks, and between the
  // same collectives of the group. A rank may send to itself when it also receives from itself in the same call.
  virtual void send_receive(Stream& stream, const Tensor& send, int to, const Tensor& receive, int from) = 0;
  // Returns, on the host, when every rank of the group has called it.
  virtual void barrier() = 0;

  // The ranks with the same colour, ordered by key (then by rank). Collective over the whole group, on the host; the
  // new group shares this group's failures. `name` is what errors call the new group.
  virtual std::unique_ptr<Communicator> split(int color, int key, std::string_view name = {}) = 0;
  // Ends every rank of the world with `reason`, unless another reason came first.
  virtual void abort(std::string_view reason) noexcept = 0;

  // See HostWork.
  virtual void begin_host_work() noexcept {}
  virtual void end_host_work() noexcept {}

  // What this rank has sent in this group so far: every call that has been made, whether it has run yet or not.
  virtual const Traffic& traffic() const = 0;
};

// While one lives on any rank, no rank's wait counts against the timeout: for work on the host that takes as long as it
// takes, such as reading and writing files, while the others wait for the rank. Failures end all ranks as ever.
class HostWork {
 public:
  explicit HostWork(Communicator& group) : group_(group) { group_.begin_host_work(); }
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;
  ~HostWork() { group_.end_host_work(); }

 private:
  Communicator& group_;
};

}  // namespace ithaca
