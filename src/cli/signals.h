// Ctrl-C, SIGTERM and a closed terminal: the first signal asks the run to stop where it can be stopped well, and says
// so at once; the second ends the program at once with exit status 3, and says what is left. SIGPIPE and SIGXFSZ are
// ignored, so that a reader that went away and a file that may not grow are failed writes.
// Thread-safety: call install_stop_signals once, from main; set_stop_texts from one thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <string_view>

namespace ithaca {

// The longest of each text that set_stop_texts keeps, in bytes.
inline constexpr size_t kLongestStopText = 2000;

// True once SIGINT, SIGTERM or SIGHUP has come.
const std::atomic<bool>& stop_requested();
// Which signal came last; 0 when none did.
int stop_signal();
void install_stop_signals();

// What is written to standard error at the first signal, and at the second before the program ends. They are kept in
// memory of their own, since a signal handler may not allocate; longer ones are cut.
void set_stop_texts(std::string_view first, std::string_view second);

}  // namespace ithaca
