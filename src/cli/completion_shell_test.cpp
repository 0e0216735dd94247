// The completion scripts in real shells: bash and zsh at a pseudo terminal with the TAB key, fish through its own
// `complete -C`. A shell that is not installed is skipped, aloud.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/test_folder.h"

namespace ithaca {
namespace {

bool is_installed(const std::string& shell) {
  for (const char* folder : {"/bin/", "/usr/bin/", "/usr/local/bin/"}) {
    if (access((folder + shell).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// The folder of the program first in PATH, so that the shells find it as `ithaca`.
std::string search_path() {
  return std::filesystem::path(ITHACA_PROGRAM).parent_path().string() + ":/usr/local/bin:/usr/bin:/bin";
}

// A shell at a pseudo terminal, in a folder of its own.
class ShellSession {
 public:
  ShellSession(const std::vector<const char*>& arguments, const std::string& folder) {
    winsize size{};
    size.ws_col = 200;
    size.ws_row = 50;
    const std::string path = search_path();
    child_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (child_ == 0) {
      if (chdir(folder.c_str()) != 0) _exit(126);
      setenv("PATH", path.c_str(), 1);
      setenv("HOME", folder.c_str(), 1);
      setenv("TERM", "dumb", 1);
      setenv("PS1", "$ ", 1);
      std::vector<char*> argv;
      for (const char* argument : arguments) argv.push_back(const_cast<char*>(argument));
      argv.push_back(nullptr);
      execvp(argv[0], argv.data());
      _exit(127);
    }
  }
  ShellSession(const ShellSession&) = delete;
  ShellSession& operator=(const ShellSession&) = delete;
  ~ShellSession() {
    close(terminal_);
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  void send(const std::string& keys) {
    size_t sent = 0;
    while (sent < keys.size()) {
      const ssize_t count = write(terminal_, keys.data() + sent, keys.size() - sent);
      if (count <= 0) return;
      sent += static_cast<size_t>(count);
    }
  }

  // Whether the text comes out within 30 seconds. What came out before it is dropped.
  bool wait_for(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < end) {
      const size_t found = output_.find(text);
      if (found != std::string::npos) {
        output_.erase(0, found + text.size());
        return true;
      }
      pollfd ready{terminal_, POLLIN, 0};
      if (poll(&ready, 1, 200) <= 0) continue;
      std::array<char, 4096> block{};
      const ssize_t count = read(terminal_, block.data(), block.size());
      if (count <= 0) return false;
      output_.append(block.data(), static_cast<size_t>(count));
    }
    return false;
  }

  const std::string& output() const { return output_; }

 private:
  int terminal_ = -1;
  pid_t child_ = -1;
  std::string output_;
};

class CompletionShellTest : public testing::Test {
 protected:
  CompletionShellTest() {
    folder_.write("book.jsonl", "{}\n");
    folder_.write("recipe.yaml", "model:\n");
    folder_.write("models/tiny/config.json", "{}\n");
  }

  // The line after the keys, in which '\t' completes.
  void expect_line(ShellSession& shell, const std::string& keys, const std::string& expected) {
    // "echo [" before the line and "]" after it show it as it is, with the space that completion may have added.
    shell.send("\x15" + keys);
    shell.send(
        "\x01"
        "echo '[' \x05"
        " ']'\n");
    EXPECT_TRUE(shell.wait_for("\n[ " + expected + " ]\r\n")) << keys << " gave " << shell.output();
  }

  void expect_completions(ShellSession& shell) {
    expect_line(shell, "ithaca insp\t", "ithaca inspect");
    expect_line(shell, "ithaca train reci\t", "ithaca train recipe.yaml");
    expect_line(shell, "ithaca train recipe.yaml --over\t", "ithaca train recipe.yaml --overwrite");
    expect_line(shell, "ithaca train recipe.yaml --set parallel.sched\t",
                "ithaca train recipe.yaml --set parallel.schedule=");
    expect_line(shell, "ithaca train recipe.yaml --set parallel.sched\tri\t",
                "ithaca train recipe.yaml --set parallel.schedule=ring");
    expect_line(shell, "ithaca train recipe.yaml --set data.train=boo\t",
                "ithaca train recipe.yaml --set data.train=book.jsonl");
    expect_line(shell, "ithaca train recipe.yaml --set model.path=models/ti\t",
                "ithaca train recipe.yaml --set model.path=models/tiny/");
    expect_line(shell, "ithaca options optim.learn\t", "ithaca options optim.learning_rate");
    expect_line(shell, "ithaca bench at\t", "ithaca bench attention");
    expect_line(shell, "ithaca bench step --pha\t", "ithaca bench step --phases");
    expect_line(shell, "ithaca inspect da\t", "ithaca inspect data");
    expect_line(shell, "ithaca inspect data --samp\t", "ithaca inspect data --samples");
  }

  TestFolder folder_;
};

TEST_F(CompletionShellTest, Bash) {
  if (!is_installed("bash")) GTEST_SKIP() << "bash is not installed";
  ShellSession shell({"bash", "--noprofile", "--norc", "-i"}, folder_.path());
  shell.send("bind 'set enable-bracketed-paste off'; bind 'set bell-style none'\n");
  shell.send("source <(ithaca completion bash); echo rea''dy\n");
  ASSERT_TRUE(shell.wait_for("\nready")) << shell.output();
  expect_completions(shell);
}

TEST_F(CompletionShellTest, Zsh) {
  if (!is_installed("zsh")) GTEST_SKIP() << "zsh is not installed";
  ShellSession shell({"zsh", "-f", "-i"}, folder_.path());
  shell.send("bindkey -e; unsetopt PROMPT_SP PROMPT_CR AUTO_REMOVE_SLASH; PS1='$ '; unset zle_bracketed_paste\n");
  shell.send("autoload -Uz compinit; compinit -u -D; source <(ithaca completion zsh); echo rea''dy\n");
  ASSERT_TRUE(shell.wait_for("\nready")) << shell.output();
  expect_completions(shell);
}

TEST_F(CompletionShellTest, Fish) {
  if (!is_installed("fish")) GTEST_SKIP() << "fish is not installed";
  const auto complete = [&](const std::string& line) {
    const std::string command = "cd '" + folder_.path() + "' && HOME='" + folder_.path() + "' PATH='" + search_path() +
                                "' fish --no-config -c 'ithaca completion fish | source; complete -C \"" + line +
                                "\"' 2>&1";
    std::string output;
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> block{};
    while (fgets(block.data(), block.size(), pipe) != nullptr) output += block.data();
    pclose(pipe);
    return output;
  };
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  using ::testing::StartsWith;
  EXPECT_THAT(complete("ithaca insp"), StartsWith("inspect\t"));
  EXPECT_THAT(complete("ithaca train reci"), StartsWith("recipe.yaml"));
  EXPECT_THAT(complete("ithaca train recipe.yaml --over"), StartsWith("--overwrite\t"));
  EXPECT_THAT(complete("ithaca train recipe.yaml --set parallel.sched"), StartsWith("parallel.schedule=\t"));
  EXPECT_THAT(complete("ithaca train recipe.yaml --set parallel.schedule=ri"), StartsWith("parallel.schedule=ring\t"));
  EXPECT_THAT(complete("ithaca train recipe.yaml --set data.train=boo"), StartsWith("data.train=book.jsonl"));
  EXPECT_THAT(complete("ithaca train recipe.yaml --set model.path=models/ti"), StartsWith("model.path=models/tiny/"));
  EXPECT_THAT(complete("ithaca options optim.learn"), HasSubstr("optim.learning_rate\t"));
  EXPECT_THAT(complete("ithaca bench "), AllOf(HasSubstr("step\t"), HasSubstr("attention\t"), HasSubstr("gemm\t")));
  EXPECT_THAT(complete("ithaca bench step --pha"), StartsWith("--phases\t"));
  EXPECT_THAT(complete("ithaca inspect da"), StartsWith("data\t"));
  EXPECT_THAT(complete("ithaca inspect data --samp"), StartsWith("--samples\t"));
}

// The manual page, as the tools that show it see it.
TEST(ManualPage, IsCleanForItsReaders) {
  TestFolder folder;
  const std::string page = folder.path("ithaca.1");
  ASSERT_EQ(std::system((std::string("'") + ITHACA_PROGRAM + "' man > " + page).c_str()), 0);
  EXPECT_THAT(folder.read("ithaca.1"), testing::HasSubstr(".B parallel.sp_size\n"));
  for (const char* text :
       {".SS ithaca bench COMMAND\n", ".SS ithaca bench step\n", "\\fB\\-\\-query\\-heads\\fR",
        ".SS ithaca inspect [PATH] [COMMAND]\n", ".SS ithaca inspect data RECIPE\n", "\\fB\\-\\-samples\\fR"}) {
    EXPECT_THAT(folder.read("ithaca.1"), testing::HasSubstr(text));
  }
  bool was_checked = false;
  for (const auto& [tool, command] : {std::pair<std::string, std::string>("mandoc", "mandoc -T lint -W warning "),
                                      std::pair<std::string, std::string>("groff", "groff -man -ww -z ")}) {
    if (!is_installed(tool)) continue;
    was_checked = true;
    const std::string report = folder.path(tool + ".txt");
    std::system((command + page + " > " + report + " 2>&1").c_str());
    EXPECT_EQ(folder.read(tool + ".txt"), "") << command;
  }
  if (!was_checked) GTEST_SKIP() << "neither mandoc nor groff is installed";
}

}  // namespace
}  // namespace ithaca
