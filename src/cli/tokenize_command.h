// `ithaca tokenize`: text to token ids, ids to text, conversations to either, from standard input to standard output.
#pragma once

#include <iosfwd>
#include <string>

namespace CLI {
class App;
}

namespace ithaca {

struct TokenizeArguments {
  std::string model;  // a directory
  bool special = false;
  bool decode = false;
  bool chat = false;
  bool generation_prompt = false;
  bool render = false;
};

void declare_tokenize(CLI::App& app, TokenizeArguments& arguments);

// Exit status 0. Throws ConfigurationError for options that exclude each other, InputError for what cannot be read.
int tokenize_command(const TokenizeArguments& arguments, std::istream& in, std::ostream& out);

}  // namespace ithaca
