#include "cli/tokenize_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <istream>
#include <iterator>
#include <ostream>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cli/program.h"
#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"

namespace ithaca {

namespace {

constexpr const char* kInput = "standard input";
constexpr std::string_view kBlanks = " \t\r\n";

std::string read_all(std::istream& in) {
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) throw FileError("standard input cannot be read");
  return text;
}

[[noreturn]] void refuse_id(std::string_view word) {
  throw InputError(fmt::format(
      "{}: \"{}\" is not a token id; what is wanted is a JSON array of whole numbers, or whole numbers with "
      "blanks between",
      kInput, word.substr(0, 40)));
}

// A JSON array, or numbers with blanks between.
std::vector<int64_t> read_ids(std::string_view text) {
  std::vector<int64_t> ids;
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return ids;
  if (text[first] == '[') {
    for (const nlohmann::ordered_json& id : parse_json(text, kInput)) {
      if (!id.is_number_integer()) refuse_id(id.dump());
      ids.push_back(id.get<int64_t>());
    }
    return ids;
  }
  for (size_t begin = first; begin != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kBlanks, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    int64_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size()) refuse_id(word);
    ids.push_back(id);
    begin = text.find_first_not_of(kBlanks, end);
  }
  return ids;
}

void write_ids(const std::vector<int64_t>& ids, std::ostream& out) {
  constexpr size_t kBuffer = size_t{1} << 16U;
  fmt::memory_buffer buffer;
  buffer.push_back('[');
  for (size_t index = 0; index < ids.size(); ++index) {
    fmt::format_to(std::back_inserter(buffer), "{}{}", index > 0 ? "," : "", ids[index]);
    if (buffer.size() >= kBuffer) {
      out.write(buffer.data(), static_cast<std::streamsize>(buffer.size()));
      buffer.clear();
    }
  }
  out.write(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  out << "]\n";
}

void check(const TokenizeArguments& arguments) {
  if (arguments.decode && arguments.chat) throw ConfigurationError("--decode and --chat exclude each other");
  if (arguments.decode && arguments.special) {
    throw ConfigurationError("--special says what to add to a text; with --decode every id is shown anyway");
  }
  if (arguments.chat && arguments.special) {
    throw ConfigurationError("--special has no place with --chat: the template writes the special tokens itself");
  }
  if (!arguments.chat && (arguments.generation_prompt || arguments.render)) {
    throw ConfigurationError(fmt::format("{} needs --chat", arguments.render ? "--render" : "--generation-prompt"));
  }
}

}  // namespace

void declare_tokenize(CLI::App& app, TokenizeArguments& arguments) {
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids, ids into text, chats into either");
  command->add_option("--model", arguments.model, "A model directory with tokenizer.json or tokenizer.model")
      ->required()
      ->type_name("DIR");
  command->add_flag("--special", arguments.special, "Add what the model wants around a text, as <s> before it");
  command->add_flag("--decode", arguments.decode, "From ids, a JSON array or numbers with blanks between, to text");
  command->add_flag("--chat", arguments.chat,
                    "From a JSON array of messages, or an object with messages, tools, ..., by the chat template");
  command->add_flag("--generation-prompt", arguments.generation_prompt, "With --chat: end where the assistant begins");
  command->add_flag("--render", arguments.render, "With --chat: print the text, not its ids");
  command->footer(
      "Reads standard input, all of it: a newline at its end is text like any other. Prints a JSON array of ids, or "
      "with "
      "--decode and --render a text and nothing after it.\n\n"
      "Examples:\n"
      "  printf 'Hello world' | ithaca tokenize --model DIR\n"
      "  echo '[9707, 1879]' | ithaca tokenize --model DIR --decode\n"
      "  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | ithaca tokenize --model DIR --chat --render");
}

int tokenize_command(const TokenizeArguments& arguments, std::istream& in, std::ostream& out) {
  check(arguments);
  if (arguments.chat) {
    const ChatTemplate chat = open_chat_template(arguments.model);
    ChatOptions options;
    options.add_generation_prompt = arguments.generation_prompt;
    const std::string input = read_all(in);
    if (input.find_first_not_of(kBlanks) == std::string::npos) {
      throw InputError(
          fmt::format("{} is empty; --chat wants a JSON array of messages, or an object with messages: "
                      "[{{\"role\": \"user\", \"content\": \"Hi\"}}]",
                      kInput));
    }
    const std::string text = chat.render(parse_json(input, kInput), options).text;
    if (arguments.render) {
      out << text;
    } else {
      write_ids(open_tokenizer(arguments.model)->encode(text, {}).ids, out);
    }
    return kExitDone;
  }
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(arguments.model);
  const std::string input = read_all(in);
  if (arguments.decode) {
    out << tokenizer->decode(read_ids(input), {});
  } else {
    EncodeOptions options;
    options.add_special_tokens = arguments.special;
    write_ids(tokenizer->encode(input, options).ids, out);
  }
  return kExitDone;
}

}  // namespace ithaca
