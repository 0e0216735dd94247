// Bytes as a safetensors file: the header is read, and every tensor that passes its checks is read whole.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const ithaca::SafetensorsFile file("input", std::as_bytes(std::span(data, size)));
    for (const ithaca::SafetensorsFile::Entry& entry : file.entries()) {
      if (file.bytes(entry).size() > size) __builtin_trap();
      try {
        (void)file.read_float32(entry.name);
        (void)file.tensor(entry.name);
      } catch (const ithaca::InputError&) {
        continue;  // of a type or rank that is of no use here
      }
    }
  } catch (const ithaca::InputError&) {
    return 0;
  }
  return 0;
}
