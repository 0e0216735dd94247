#include "base/write_all.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ithaca {

bool write_all(int descriptor, std::span<const std::byte> bytes) {
  constexpr size_t kLargestCall = size_t{1} << 30;  // write() takes less than 2 GiB at a time
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), std::min(bytes.size(), kLargestCall));
    if (count < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

}  // namespace ithaca
