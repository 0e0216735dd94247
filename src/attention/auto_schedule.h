// `parallel.schedule: auto`: which schedule, sizes and layout a run should use, and why, in plain words.
//
// Every way to write the cp ranks as ulysses_size x ring_size, with every layout of the ring, is priced by the time
// that the busiest rank needs for one layer, forward and backward, in bytes: the attention that it computes
// (attention/ring_work.h, for the documents of the sequences at hand; kAttentionFlopsPerByte turns it into bytes) plus
// the communication that nothing hides. Of a ulysses exchange in head groups that is the first group's arrival and the
// last one's return; of a ring hop what exceeds the hop's attention, and of the last trip of dK and dV home what
// exceeds the attention that is kept for it (share_behind_way_home). Of the cheapest, and those that cost the same
// within 3%, the one that sends least wins. `all_gather` is never chosen unasked: it sends what `ring` sends and holds
// more memory. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention/communication_cost.h"
#include "attention/documents.h"
#include "attention/layout.h"
#include "attention/schedule.h"
#include "attention/tasks.h"

namespace ithaca {

// Attention operations that a rank gets done while it sends one byte: a Hopper GPU's bfloat16 rate, 540 TFLOP/s, over
// the 300 GB/s that it sends others (docs/benchmarks.md). Only the choice between schedules depends on it.
inline constexpr double kAttentionFlopsPerByte = 1800.0;

struct AutoScheduleRequest {
  HeadShape heads;
  MaskRule mask;
  // Some of the sequences, as the whole axis holds them: prices are means over these.
  std::vector<Documents> sequences;
  int64_t element_bytes = 2;
  int64_t preferred_attention_rows = 1;  // of the backend: it says in how many groups heads are exchanged
  int cp_size = 1;
  // What the user has fixed; the rest is chosen.
  std::optional<ScheduleKind> kind;
  std::optional<int> ulysses_size;
  std::optional<int> ring_size;
  std::optional<Layout> layout;
};

struct AutoScheduleChoice {
  ScheduleSizes sizes;
  Layout layout = Layout::contiguous;
  std::string reason;  // one or two sentences
};

// "ulysses", "ring, zigzag", "hybrid 2x4, striped" (ulysses x ring).
std::string schedule_text(const AutoScheduleChoice& choice);

// Throws ConfigurationError, naming what would work, when the fixed sizes do not fit cp_size, each other or the heads.
AutoScheduleChoice choose_schedule(const AutoScheduleRequest& request);

}  // namespace ithaca
