#include "train/trace_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace ithaca {

void parse_trace_steps(const std::string& text, TraceRequest& request) {
  const auto number = [&](std::string_view digits) {
    int64_t value = 0;
    const char* const all = digits.data() + digits.size();
    const auto result = std::from_chars(digits.data(), all, value);
    if (result.ec != std::errc() || result.ptr != all || value < 1) {
      throw ConfigurationError(fmt::format(
          "--trace-steps {}: give one step (3), or the first and the last one (2:3), counted from 1", text));
    }
    return value;
  };
  const size_t colon = text.find(':');
  request.first_step = number(std::string_view(text).substr(0, colon));
  request.last_step =
      colon == std::string::npos ? request.first_step : number(std::string_view(text).substr(colon + 1));
  if (request.last_step < request.first_step) {
    throw ConfigurationError(fmt::format("--trace-steps {}: the last step comes before the first one", text));
  }
}

TraceRequest settle_trace(const TraceRequest& request, int64_t steps, BackendKind backend) {
  TraceRequest settled = request;
  if (settled.path.empty()) return settled;
  if (settled.first_step == 0) {
    constexpr int64_t kWarmStep = 3;
    settled.first_step = settled.last_step = std::min(kWarmStep, steps);
  }
  if (settled.last_step > steps) {
    throw ConfigurationError(fmt::format("--trace-steps {}:{}: the run has only {} step{}; choose among them",
                                         settled.first_step, settled.last_step, steps, steps == 1 ? "" : "s"));
  }
  if (backend == BackendKind::cuda) {
    const std::string reason = cuda_trace_absence_reason();
    if (!reason.empty()) throw ConfigurationError("--trace: " + reason);
  }
  return settled;
}

std::unique_ptr<TraceFile> open_trace(const TraceRequest& request) {
  if (request.path.empty()) return nullptr;
  try {
    return std::make_unique<TraceFile>(request.path);
  } catch (const FileError& error) {
    throw ConfigurationError(fmt::format("--trace: {}", error.what()));
  }
}

}  // namespace ithaca
