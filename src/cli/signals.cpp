#include "cli/signals.h"

#include <csignal>

namespace ithaca {

namespace {

struct StopState {
  std::atomic<bool> requested{false};
  std::atomic<int> signal{0};
};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler may touch only lock-free atomics");

StopState& stop_state() {
  static StopState state;
  return state;
}

extern "C" void handle_stop_signal(int signal) {
  StopState& state = stop_state();
  state.signal = signal;
  state.requested = true;
  // The next one ends the program the ordinary way.
  std::signal(signal, SIG_DFL);
}

}  // namespace

const std::atomic<bool>& stop_requested() {
  return stop_state().requested;
}

int stop_signal() {
  return stop_state().signal;
}

void install_stop_signals() {
  stop_state();  // made here, not in the handler
  std::signal(SIGINT, handle_stop_signal);
  std::signal(SIGTERM, handle_stop_signal);
  std::signal(SIGHUP, handle_stop_signal);  // a closed terminal or connection
  // A reader of our output that goes away (`| head`) must not cost the model: writes fail, and the end says so.
  std::signal(SIGPIPE, SIG_IGN);
  // So that a file that may not grow further is a failed write with its error text, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace ithaca
