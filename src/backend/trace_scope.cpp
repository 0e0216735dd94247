#include "backend/trace_scope.h"

#include <fmt/format.h>

#include "backend/backend.h"
#include "base/error.h"

namespace ithaca {

// By value, as those keep it that can record.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Backend::start_recording(std::shared_ptr<SpanRecorder> /*recorder*/) {
  throw ConfigurationError(fmt::format("the backend {} as it was made records no trace", name()));
}

TraceScope::TraceScope(Backend& backend, const ScopeName& name) : backend_(backend) {
  backend_.begin_scope(name);
}

TraceScope::~TraceScope() {
  backend_.end_scope();
}

}  // namespace ithaca
