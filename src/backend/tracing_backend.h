// TracingBackend: a backend around another one whose streams run on the host, which records when each operation runs.
//
// Operations of the compute stream are timed where they are called, those of other streams on the threads that run
// them; waits of the compute stream are recorded as such. While nothing is recorded it only passes calls on.
// Thread-safety: as Backend.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace ithaca {

// `inner` runs the work of its compute stream before it returns, as the CPU backend does.
std::unique_ptr<Backend> make_tracing_backend(std::unique_ptr<Backend> inner);

}  // namespace ithaca
