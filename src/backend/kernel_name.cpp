#include "backend/kernel_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string_view>

namespace ithaca {

namespace {

constexpr size_t kLongest = 200;

std::string demangled(const char* symbol) {
  struct Free {
    void operator()(char* text) const { std::free(text); }  // NOLINT(cppcoreguidelines-owning-memory): as the ABI asks
  };
  int status = 0;
  const std::unique_ptr<char, Free> text(abi::__cxa_demangle(symbol, nullptr, nullptr, &status));
  return status == 0 && text != nullptr ? text.get() : symbol;
}

void remove_all(std::string& text, std::string_view part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) text.erase(at, part.size());
}

// Where the parameters of a function begin: the last parenthesis at the top level that is opened.
size_t parameters_begin(std::string_view text) {
  size_t begin = std::string_view::npos;
  int depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char character = text[at];
    if (character == '<' || character == '(') {
      if (character == '(' && depth == 0) begin = at;
      ++depth;
    } else if ((character == '>' || character == ')') && depth > 0) {
      --depth;
    }
  }
  return begin;
}

}  // namespace

std::string kernel_name(const char* symbol) {
  std::string name = demangled(symbol);
  remove_all(name, "(anonymous namespace)::");
  remove_all(name, "ithaca::cuda::");
  remove_all(name, "ithaca::");
  name = name.substr(0, parameters_begin(name));
  if (name.rfind("void ", 0) == 0) name.erase(0, 5);
  if (name.size() > kLongest) name.replace(kLongest / 2, name.size() - kLongest, "...");
  return name;
}

}  // namespace ithaca
