// `ithaca inspect PATH`: what a model directory, a safetensors file or a run folder holds, in plain words.
// Thread-safety: reads files only.
#pragma once

#include <iosfwd>
#include <string>

namespace ithaca {

struct InspectOptions {
  bool tensors = false;  // list every tensor of a model
};

// Returns the exit status: 0, or 1 when what is there cannot be used (the text says why). Throws FileError, InputError.
int inspect_path(const std::string& path, const InspectOptions& options, std::ostream& out);

}  // namespace ithaca
