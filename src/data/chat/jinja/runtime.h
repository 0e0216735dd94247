// Runtime: what filters, tests, methods and functions see of the interpreter that calls them.
//
// Thread-safety: one rendering, one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/jinja/value.h"

namespace ithaca::jinja {

class Runtime {
 public:
  Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  virtual ~Runtime() = default;

  // Counts work; throws Failure when a rendering has done too much of it.
  virtual void charge(int64_t steps) = 0;
  // A new string or list of this many bytes: counted, and refused when it is too large.
  virtual void charge_bytes(int64_t bytes) = 0;
  // Objects that can hold themselves are emptied when the rendering ends.
  virtual void own(std::shared_ptr<Object> object) = 0;
  // Seconds since 1970, and the offset of the local time is the system's.
  virtual int64_t now() const = 0;
};

// Distributes arguments to named parameters as a Python function does.
class Parameters {
 public:
  // `names` are the parameters, of which the first `required` must be given. Throws Failure.
  Parameters(const std::string& function, const Arguments& arguments, const std::vector<std::string>& names,
             size_t required);
  bool has(size_t index) const { return values_[index].has_value(); }
  // None where it is not given.
  Value value(size_t index) const { return values_[index].value_or(Value()); }
  Value value(size_t index, Value otherwise) const { return values_[index].value_or(std::move(otherwise)); }
  bool truth(size_t index, bool otherwise) const;
  // Throw Failure for another type.
  int64_t integer(size_t index, int64_t otherwise) const;
  std::string text(size_t index, const std::string& otherwise) const;

 private:
  std::string function_;
  std::vector<std::string> names_;
  std::vector<std::optional<Value>> values_;
};

// An int (or bool) that fits 64 bits. Throws Failure: what `name` needs.
int64_t small_integer(const Value& value, const std::string& name);

}  // namespace ithaca::jinja
