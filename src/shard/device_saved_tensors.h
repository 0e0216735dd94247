// DeviceSavedTensors: what forward keeps stays in device memory, booked under MemoryClass::saved.
// Thread-safety: the rank's own thread.
#pragma once

#include <map>

#include "model/saved_tensors.h"

namespace ithaca {

class DeviceSavedTensors final : public SavedTensors {
 public:
  void save(const SavedKey& key, Buffer buffer, Stream& stream) override;
  void prefetch(const SavedKey& key) override;
  Buffer take(const SavedKey& key, Stream& stream) override;
  // Lets everything go: after a failed or abandoned micro-batch.
  void clear() { kept_.clear(); }

 private:
  std::map<SavedKey, Buffer> kept_;
};

}  // namespace ithaca
