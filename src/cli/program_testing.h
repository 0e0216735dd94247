// The built program (ITHACA_PROGRAM), run by tests as people run it. Thread-safety: one thread at a time.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "cli/test_folder.h"

namespace ithaca {

struct ProgramOutcome {
  int status = -1;  // -1: it did not end by itself
  std::string out;
  std::string err;
};

// A program that runs; its output goes to files of a folder of its own.
class StartedProgram {
 public:
  // `words` are the program and its arguments; the program is looked for in PATH unless it is a path.
  explicit StartedProgram(std::vector<std::string> words) {
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    const std::string out = output_.path("stdout");
    const std::string err = output_.path("stderr");
    posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (posix_spawnp(&process_, pointers[0], &actions, nullptr, pointers.data(), environ) != 0) process_ = -1;
    posix_spawn_file_actions_destroy(&actions);
  }
  StartedProgram(const StartedProgram&) = delete;
  StartedProgram& operator=(const StartedProgram&) = delete;
  ~StartedProgram() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
  }

  void signal(int number) const { kill(process_, number); }
  std::string out_so_far() const { return output_.read("stdout"); }
  std::string err_so_far() const { return output_.read("stderr"); }
  // What it has computed so far, on all of its threads.
  double cpu_seconds() const {
    clockid_t clock{};
    timespec time{};
    if (clock_getcpuclockid(process_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0.0;
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  // Waits for its end.
  ProgramOutcome finish() {
    int wait_status = 0;
    ProgramOutcome outcome;
    if (process_ > 0 && waitpid(process_, &wait_status, 0) == process_ && WIFEXITED(wait_status)) {
      outcome.status = WEXITSTATUS(wait_status);
    }
    process_ = -1;
    outcome.out = out_so_far();
    outcome.err = err_so_far();
    return outcome;
  }

 private:
  TestFolder output_;
  pid_t process_ = -1;
};

// Runs ithaca with the arguments, to its end.
inline ProgramOutcome run_ithaca(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), ITHACA_PROGRAM);
  return StartedProgram(std::move(arguments)).finish();
}

}  // namespace ithaca
