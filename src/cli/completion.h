// What may follow on the command line, for shells that complete with TAB.
//
// The shells' scripts (`ithaca completion bash|zsh|fish`) are small: at every TAB they call `ithaca complete -- WORDS`
// with the words after the program's name, the last of them being the one under the cursor, and get a line for every
// word that may stand there: the word, a tab, what it means. A last line ":file PREFIX" or ":folder PREFIX" asks the
// shell for paths after PREFIX of the word. So commands, flags, recipe options and their choices are known in one
// place, and a script never goes out of date. Thread-safety: pure functions.
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "base/option_table.h"

namespace CLI {
class App;
}

namespace ithaca {

// One word that may stand under the cursor. A word that ends in '=' goes on, so no space follows it.
struct CompletionWord {
  std::string text;
  std::string meaning;
};

struct Completion {
  std::vector<CompletionWord> words;
  OptionPath path = OptionPath::none;  // paths may stand there too
  std::string path_prefix;             // the part of the word before the path: "data.train="
};

// `words` are those after the program's name; the last is the one under the cursor, which may be empty.
Completion complete_words(const CLI::App& app, const OptionCatalog& catalog, std::span<const std::string> words);

struct CompletionArguments {
  std::string shell;
};
void declare_completion(CLI::App& app, CompletionArguments& arguments);
// `ithaca completion SHELL`: prints the script of that shell.
int completion_command(const CompletionArguments& arguments, std::ostream& out);
// `ithaca complete -- WORDS`, which the scripts call: `words` without a leading "--".
int complete_command(const CLI::App& app, std::span<const std::string> words, std::ostream& out);

}  // namespace ithaca
