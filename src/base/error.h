// The exceptions of Ithaca.
//
// Everything that can go wrong is reported by throwing one of these. Their text says what was wrong, where (file, line,
// key, tensor, rank), and what would work. The library never prints and never exits: the program turns the type into an
// exit status. Thread-safety: values; copy and rethrow them from any thread.
#pragma once

#include <stdexcept>
#include <string>

namespace ithaca {

// Base of all of them: catch this to catch every failure that Ithaca reports on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A recipe, an option or a combination of options that cannot be honoured. Exit status 2.
class ConfigurationError : public Error {
 public:
  using Error::Error;
};

// A file whose content is wrong: model, tokenizer, data. Exit status 1.
class InputError : public Error {
 public:
  using Error::Error;
};

// The operating system refused: cannot open, read, write, rename. Exit status 1.
class FileError : public Error {
 public:
  using Error::Error;
};

// A rank was lost, a collective did not match or did not finish in time. Exit status 1.
class CommunicationError : public Error {
 public:
  using Error::Error;
};

// An arena has no room. The text names the tensor, its size and the totals of the memory classes. Exit status 1.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

// The run was asked to stop (a signal) at a point where it has nothing to leave behind. Exit status 3.
class StoppedError : public Error {
 public:
  using Error::Error;
};

// A caller broke a documented requirement (shapes, dtypes, order of calls). A fault of the program, not of its input.
class ContractError : public Error {
 public:
  using Error::Error;
};

// Throws ContractError with `text` when `condition` is false. For requirements of public interfaces; cheap enough to
// stay on in release builds.
inline void require(bool condition, const char* text) {
  if (!condition) throw ContractError(text);
}
inline void require(bool condition, const std::string& text) {
  if (!condition) throw ContractError(text);
}

}  // namespace ithaca
