// SavedTensors: what forward keeps for backward. The recompute policy decides WHAT is saved, the implementation WHERE:
// device, host or disk. Thread-safety: the rank's own thread.
#pragma once

#include <compare>
#include <cstdint>

#include "backend/arena.h"
#include "backend/stream.h"

namespace ithaca {

enum class SavedSlot : uint8_t {
  layer_input,
  attention_output,
  log_sum_exp,
  normed_attention_input,
  attention_inverse_rms,
  query_key_value,    // projections, before head norm and RoPE (kept where a head norm needs them)
  rotated_query_key,  // with head norms only
  query_inverse_rms,
  key_inverse_rms,
  mlp_input,  // after the attention's residual
  normed_mlp_input,
  mlp_inverse_rms,
  gate_up,
};

struct SavedKey {
  int32_t layer = 0;
  SavedSlot slot = SavedSlot::layer_input;
  auto operator<=>(const SavedKey&) const = default;  // NOLINT(modernize-use-nullptr): what the compiler writes
};

class SavedTensors {
 public:
  SavedTensors() = default;
  SavedTensors(const SavedTensors&) = delete;
  SavedTensors& operator=(const SavedTensors&) = delete;
  virtual ~SavedTensors() = default;

  // Takes the buffer over; its content is what work enqueued on `stream` so far has made of it. A key is saved once
  // until it is taken.
  virtual void save(const SavedKey& key, Buffer buffer, Stream& stream) = 0;
  // A hint that take(key) comes soon.
  virtual void prefetch(const SavedKey& key) = 0;
  // Gives it back, readable on `stream`. Throws ContractError when the key was not saved.
  virtual Buffer take(const SavedKey& key, Stream& stream) = 0;
};

}  // namespace ithaca
