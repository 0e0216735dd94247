// DeviceBatch: one micro-batch on the device, with its rotary table and its attention plans.
// Thread-safety: the rank's own thread. The MicroBatch must outlive it.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "attention/schedule.h"
#include "backend/backend.h"
#include "data/step_batch.h"
#include "model/description.h"
#include "model/token_context.h"

namespace ithaca {

class DeviceBatch {
 public:
  DeviceBatch(const MicroBatch& batch, const ModelDescription& model, Backend& backend,
              const AttentionSchedule& schedule);

  const TokenContext& context() const { return context_; }

 private:
  Tensor upload(const char* name, DType dtype, const Extents& extents, std::span<const std::byte> bytes,
                Backend& backend);

  std::vector<Buffer> buffers_;
  std::map<int64_t, std::unique_ptr<AttentionPlan>> plans_by_window_;
  std::vector<const AttentionPlan*> plan_of_layer_;
  TokenContext context_;
};

}  // namespace ithaca
