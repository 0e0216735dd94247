// What device_recording.h promises in a build whose CUDA toolkit has no CUPTI headers.
#include "backend/cuda/device_recording.h"
#include "base/error.h"

namespace ithaca::cuda {

std::string recording_absence_reason() {
  return "this program was built without CUPTI; install the toolkit's headers (package cuda-cupti-dev-13-0, or pip "
         "install nvidia-cuda-cupti) and configure again";
}

DeviceRecording::DeviceRecording(std::shared_ptr<SpanRecorder> /*recorder*/, int /*device*/,
                                 std::span<const RecordedStream> /*streams*/) {
  throw ConfigurationError(recording_absence_reason());
}

DeviceRecording::~DeviceRecording() = default;

void DeviceRecording::begin_scope(const ScopeName& /*name*/) {}
void DeviceRecording::end_scope() noexcept {}
uint64_t DeviceRecording::launch_scope() const {
  return 0;
}
void DeviceRecording::finish() {}
void DeviceRecording::pop_scopes() noexcept {}

LaunchScope::LaunchScope(uint64_t /*scope*/) : is_pushed_(false) {}
LaunchScope::~LaunchScope() = default;

}  // namespace ithaca::cuda
