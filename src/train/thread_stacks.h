// Test support: where all threads of this process stand, for tests of what must not wait. Linux only; addresses without
// a name are those of functions that the program does not export (addr2line has them). For test sources only.
#pragma once

#include <execinfo.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace ithaca::testing {

inline std::atomic<int>& stacks_written() {
  static std::atomic<int> count{0};
  return count;
}

inline void write_own_stack(int /*signal*/) {
  std::array<void*, 64> frames{};
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())), STDERR_FILENO);
  ++stacks_written();
}

// Writes the calls that each other thread is in to the error stream. A thread that takes no signals is only named. The
// signal's handler stays, as such a thread may take it later.
inline void write_all_stacks() {
  void* frame = nullptr;
  static_cast<void>(backtrace(&frame, 1));  // the first call loads what a handler must not
  struct sigaction action {};
  action.sa_handler = write_own_stack;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const long thread = std::stol(entry.path().filename().string());
    if (thread == syscall(SYS_gettid)) continue;
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    fmt::print(stderr, "---- thread {} ({})\n", thread, name);
    const int written = stacks_written();
    if (syscall(SYS_tgkill, getpid(), thread, SIGUSR2) != 0) continue;
    for (int turn = 0; turn < 100 && stacks_written() == written; ++turn) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

}  // namespace ithaca::testing
