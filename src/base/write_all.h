// Writing to a descriptor to the last byte. Thread-safety: as the descriptor's.
#pragma once

#include <cstddef>
#include <span>

namespace ithaca {

// Begins again where a signal interrupted it or the system took a part only. False where it fails, with the reason in
// errno; a part may have been written then.
bool write_all(int descriptor, std::span<const std::byte> bytes);

}  // namespace ithaca
