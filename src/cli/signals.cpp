#include "cli/signals.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

namespace ithaca {

namespace {

constexpr int kExitStopped = 3;

struct Text {
  std::array<char, kLongestStopText> bytes{};
  size_t size = 0;

  void set(std::string_view text) {
    size = std::min(text.size(), bytes.size());
    std::copy_n(text.begin(), size, bytes.begin());
  }
};

struct StopTexts {
  Text first;
  Text second;
};

struct StopState {
  std::atomic<bool> requested{false};
  std::atomic<int> signal{0};
  // Two sets: one is read by the handler while the other is written.
  std::array<StopTexts, 2> texts;
  std::atomic<int> current{0};
};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler may touch only lock-free atomics");

StopState& stop_state() {
  static StopState state;
  return state;
}

void write_text(const Text& text) {
  size_t written = 0;
  while (written < text.size) {
    const ssize_t count = ::write(STDERR_FILENO, text.bytes.data() + written, text.size - written);
    if (count <= 0) return;
    written += static_cast<size_t>(count);
  }
}

extern "C" void handle_stop_signal(int signal) {
  const int saved_errno = errno;
  StopState& state = stop_state();
  const StopTexts& texts = state.texts[static_cast<size_t>(state.current.load())];
  state.signal = signal;
  if (state.requested.exchange(true)) {
    write_text(texts.second);
    ::_exit(kExitStopped);
  }
  write_text(texts.first);
  errno = saved_errno;
}

}  // namespace

const std::atomic<bool>& stop_requested() {
  return stop_state().requested;
}

int stop_signal() {
  return stop_state().signal;
}

void set_stop_texts(std::string_view first, std::string_view second) {
  StopState& state = stop_state();
  const int next = 1 - state.current.load();
  StopTexts& texts = state.texts[static_cast<size_t>(next)];
  texts.first.set(first);
  texts.second.set(second);
  state.current = next;
}

void install_stop_signals() {
  // Made here, not in the handler.
  set_stop_texts("ithaca: stopping; once more to end at once\n", "ithaca: ended at once\n");
  std::signal(SIGINT, handle_stop_signal);
  std::signal(SIGTERM, handle_stop_signal);
  std::signal(SIGHUP, handle_stop_signal);  // a closed terminal or connection
  // A reader of our output that goes away (`| head`) must not cost the model: writes fail, and the end says so.
  std::signal(SIGPIPE, SIG_IGN);
  // So that a file that may not grow further is a failed write with its error text, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace ithaca
