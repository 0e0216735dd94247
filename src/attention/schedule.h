// Exact attention over a sequence that is split across the cp ranks of a mesh.
//
// forward and backward enqueue on the backend's compute and communication streams and order them by events;
// communication is enqueued before the computation that hides it. Arguments are this rank's shard. One instance per
// layer shape; workspace comes from the arena and goes back in stream order. A plan holds everything that depends on
// documents and mask (task lists, which hops exist, exchange sizes); it is made once per micro-batch and mask and used
// by every layer. All ranks of the cp group must call forward and backward in the same order with plans of the same
// documents. Thread-safety: the rank's own thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "attention/documents.h"
#include "attention/layout.h"
#include "attention/tasks.h"
#include "backend/backend.h"
#include "comm/mesh.h"

namespace ithaca {

enum class ScheduleKind : uint8_t { ulysses, ring, all_gather, hybrid };
std::string_view schedule_name(ScheduleKind kind);

// The heads of one attention layer, whole model (not this rank's part).
struct HeadShape {
  int64_t query_heads = 0;
  int64_t key_heads = 0;
  int64_t key_size = 0;    // of one query or key head
  int64_t value_size = 0;  // of one value head
  float scale = 1.0f;      // of the scores before softmax
  bool operator==(const HeadShape&) const = default;
};

// This rank's tokens, all heads. Compute dtype; the last dimension has stride 1.
struct ShardedQkv {
  Tensor query;  // [tokens, query heads, key size]
  Tensor key;    // [tokens, key heads, key size]
  Tensor value;  // [tokens, key heads, value size]
};
// Gradients of the same, alike, overwritten by backward. Sums over ranks are float32 and are rounded once.
struct ShardedQkvGradient {
  Tensor dquery, dkey, dvalue;
};

// Bytes this rank sends to others for one layer, and exchanges, by the formulas of docs/schedules.md, for unmasked hops
// (documents and windows only lower it).
struct CommunicationCost {
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
  int64_t forward_exchanges = 0;
  int64_t backward_exchanges = 0;
};

// What a schedule has computed from documents and mask. Made by AttentionSchedule::plan, used only with the schedule
// that made it.
class AttentionPlan {
 public:
  AttentionPlan() = default;
  AttentionPlan(const AttentionPlan&) = delete;
  AttentionPlan& operator=(const AttentionPlan&) = delete;
  virtual ~AttentionPlan() = default;

  // The positions this rank holds; its size is the token count of every tensor given to forward and backward.
  virtual const Shard& shard() const = 0;
  // Extents of the log-sum-exp tensor (float32, row-major) that forward writes and backward reads: the schedule's own
  // layout.
  virtual Extents log_sum_exp_extents() const = 0;
  // Visible query-key pairs that this rank computes, times the query heads it computes them for.
  virtual int64_t visible_pairs_times_heads() const = 0;
};

class AttentionSchedule {
 public:
  AttentionSchedule() = default;
  AttentionSchedule(const AttentionSchedule&) = delete;
  AttentionSchedule& operator=(const AttentionSchedule&) = delete;
  virtual ~AttentionSchedule() = default;

  virtual ScheduleKind kind() const = 0;
  // Host only; no communication.
  virtual std::unique_ptr<AttentionPlan> plan(const Documents& documents, const MaskRule& mask) const = 0;
  // output: [tokens, query heads, value size], compute dtype; log_sum_exp: plan.log_sum_exp_extents(). Both
  // overwritten.
  virtual void forward(const AttentionPlan& plan, const ShardedQkv& qkv, const Tensor& output,
                       const Tensor& log_sum_exp) = 0;
  // output and log_sum_exp as forward wrote them; doutput like output.
  virtual void backward(const AttentionPlan& plan, const ShardedQkv& qkv, const Tensor& output,
                        const Tensor& log_sum_exp, const Tensor& doutput, const ShardedQkvGradient& gradient) = 0;
  // For `tokens` tokens on every rank of the group.
  virtual CommunicationCost cost(int64_t tokens_per_rank) const = 0;
};

// A schedule over mesh.ring() and mesh.ulysses(): `ulysses` needs a ring of 1, `ring` and `all_gather` need ulysses 1,
// `hybrid` takes both. A cp group of one rank works with every kind. Throws ConfigurationError, naming what would work,
// when the kind cannot run on the mesh (more ulysses ranks than query heads). `backend` and `mesh` must outlive the
// schedule.
std::unique_ptr<AttentionSchedule> make_schedule(ScheduleKind kind, Layout layout, const HeadShape& heads,
                                                 Backend& backend, Mesh& mesh);

}  // namespace ithaca
