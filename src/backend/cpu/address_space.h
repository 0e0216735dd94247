// A range of address space whose pages are committed when they are touched.
// Thread-safety: values that one thread owns.
#pragma once

#include <cstdint>
#include <string_view>

namespace ithaca::cpu {

// The machine's physical memory.
int64_t physical_memory_bytes();

class AddressSpace {
 public:
  // Throws OutOfMemoryError naming `purpose` when the operating system refuses the range.
  AddressSpace(int64_t bytes, std::string_view purpose);
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;
  ~AddressSpace();

  void* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace ithaca::cpu
