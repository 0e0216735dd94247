// Attention on more ranks than there are GPUs, predicted from what was measured in the same run.
//
// Measured: the attention that the busiest rank would compute (its own tasks, head groups and hops, on one device, by
// the schedule's own code, with exchanges that move nothing), and the bandwidth of exchanges between the ranks that
// there are. Predicted: the time of one layer on that rank, with the rules by which `auto` prices schedules
// (attention/auto_schedule.h) in seconds instead of bytes:
//
//   forward   A_f + X_f / L_x + h max(0, H_f / L_h - A_f / (h + 1))
//   backward  A_b + X_b / L_x + h max(0, H_b / L_h - A_b / (h + 1)) + max(0, D / L_h - s A_b / (h + 1))
//
//   A     seconds of the busiest rank's attention
//   X     bytes that a rank sends for the first of its head groups before that one's attention, and for the last one
//         behind it (seen_exchanges): the others' hide behind another group's attention
//   H, h  bytes of one ring hop, and the hops that bring keys which the busiest rank needs: a hop hides behind the
//         attention of the shard at hand
//   D, s  bytes of the last trip of dK and dV home (0 where h is 0), and the share of a hop's attention that it hides
//         behind (share_behind_way_home)
//   L     bytes per second of one rank, of head exchanges and of hops, at the size of one call
//
// Assumed: a rank reaches the same rate with any number of others (a switch between all GPUs, as NVSwitch is), all
// ranks run at one clock, and exchanges take nothing from the attention that they hide behind. Thread-safety: pure
// functions; measure_rank_attention starts a thread of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/communication_cost.h"
#include "attention/documents.h"
#include "attention/layout.h"
#include "attention/tasks.h"
#include "train/backend_choice.h"

namespace ithaca {

// What one rank would compute.
struct RankAttention {
  double forward_seconds = 0.0;
  double backward_seconds = 0.0;
  int hops = 0;         // that bring keys which the rank needs
  int head_groups = 1;  // whose exchanges hide behind each other's attention
};

struct LinkRate {
  int64_t bytes = 0;  // of one call
  double bytes_per_second = 0.0;
};
struct LinkRates {
  std::vector<LinkRate> exchange;  // all_to_all of head slices, by rising bytes; at least one
  std::vector<LinkRate> hop;       // send_receive
};

struct AttentionPrediction {
  double forward_seconds = 0.0;
  double backward_seconds = 0.0;
  double exposed_seconds = 0.0;  // of both: communication that nothing hides
};

// For `tokens` tokens over all ranks.
AttentionPrediction predict_attention(const ScheduleSizes& sizes, const HeadShape& heads, int64_t tokens,
                                      int64_t element_bytes, const RankAttention& attention, const LinkRates& links);

// The busiest rank of `sizes` on the first device: the ulysses rank with most query heads on the ring rank with most
// visible pairs. Throws OutOfMemoryError where its tensors do not fit.
RankAttention measure_rank_attention(const BackendChoice& backend, const ScheduleSizes& sizes, Layout layout,
                                     const HeadShape& heads, const Documents& documents, const MaskRule& mask,
                                     double seconds_per_measurement);

}  // namespace ithaca
