// Transport: how bytes move between ranks of one process whose memory lies on devices.
#pragma once

#include <cstdint>
#include <string_view>

namespace ithaca {

enum class Transport : uint8_t {
  peer,  // a rank reads the memory of the others: copy engines and kernels over peer access, or on one device
  nccl   // NCCL's kernels send and receive: one rank per device
};

constexpr std::string_view transport_name(Transport transport) {
  return transport == Transport::peer ? "peer" : "nccl";
}

}  // namespace ithaca
