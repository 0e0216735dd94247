#include "backend/cpu/address_space.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/text.h"

namespace ithaca::cpu {

int64_t physical_memory_bytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_size = sysconf(_SC_PAGESIZE);
  require(pages > 0 && page_size > 0, "the operating system does not say how much memory the machine has");
  return pages * page_size;
}

AddressSpace::AddressSpace(int64_t bytes, std::string_view purpose) : size_(bytes) {
  require(bytes > 0, "AddressSpace needs a size above 0");
  void* const range = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    throw OutOfMemoryError(
        fmt::format("cannot reserve {} of address space for {}: {}. A limit on virtual memory (ulimit -v) or strict "
                    "overcommit (vm.overcommit_memory = 2) may be the cause; a smaller memory limit would fit",
                    format_bytes(bytes), purpose, std::generic_category().message(errno)));
  }
  data_ = range;
  // Large pages make first touches and random access cheaper. Where they are not to be had, small ones do.
  static_cast<void>(madvise(data_, static_cast<size_t>(size_), MADV_HUGEPAGE));
}

AddressSpace::~AddressSpace() {
  munmap(data_, static_cast<size_t>(size_));
}

}  // namespace ithaca::cpu
