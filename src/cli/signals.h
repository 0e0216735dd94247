// Ctrl-C and SIGTERM: the first asks the run to stop after its current step, the second ends the program at once.
// SIGXFSZ is ignored, so that a file that may not grow is a failed write. Thread-safety: call install_stop_signals
// once, from main.
#pragma once

#include <atomic>

namespace ithaca {

// True once SIGINT or SIGTERM has come.
const std::atomic<bool>& stop_requested();
// Which signal came last; 0 when none did.
int stop_signal();
void install_stop_signals();

}  // namespace ithaca
