#include "shard/device_saved_tensors.h"

#include <fmt/format.h>

#include <utility>

namespace ithaca {

void DeviceSavedTensors::save(const SavedKey& key, Buffer buffer, Stream&) {
  buffer.rebook(MemoryClass::saved);
  const bool inserted = kept_.emplace(key, std::move(buffer)).second;
  require(inserted, fmt::format("layer {} slot {} was saved twice", key.layer, static_cast<int>(key.slot)));
}

void DeviceSavedTensors::prefetch(const SavedKey&) {}  // everything is here already

Buffer DeviceSavedTensors::take(const SavedKey& key, Stream&) {
  const auto entry = kept_.find(key);
  require(entry != kept_.end(), fmt::format("layer {} slot {} was not saved", key.layer, static_cast<int>(key.slot)));
  Buffer buffer = std::move(entry->second);
  kept_.erase(entry);
  return buffer;
}

}  // namespace ithaca
