#include "comm/communicator.h"

#include <numeric>

namespace ithaca {

std::string_view collective_name(Collective collective) {
  switch (collective) {
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::send_receive:
      return "send_receive";
    case Collective::barrier:
      return "barrier";
    case Collective::split:
      return "split";
  }
  return "unknown";
}

int64_t Traffic::total_bytes_sent() const {
  return std::accumulate(bytes_sent.begin(), bytes_sent.end(), int64_t{0});
}

}  // namespace ithaca
