// Attention of this rank's queries to keys that are here: the piece that every schedule is made of.
//
// Backend operations map query head h to key head h / (query heads / key heads). A ulysses rank may hold parts of key
// groups, where no such ratio exists, so heads are cut into runs that have one. Thread-safety: the rank's own thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "attention/head_deal.h"
#include "attention/schedule.h"
#include "backend/backend.h"

namespace ithaca {

// Neighbouring heads with one ratio of query heads to key heads, counted from the first head of the tensors.
struct HeadRun {
  HeadRange query;
  HeadRange key;
  bool operator==(const HeadRun&) const = default;
};

// Query heads `query` of the whole model, with the key heads that they use, as the fewest runs.
std::vector<HeadRun> head_runs(const HeadShape& shape, const HeadRange& query);

// These heads of a tensor [tokens, heads, ...].
Tensor heads_of(const Tensor& tensor, const HeadRange& heads);

// Some of the heads of one call: whole key heads and their query heads.
struct CallHeads {
  HeadRange query_heads;  // of the model
  HeadRange query;        // in the tensors of the call
  HeadRange key;
};

// The heads of a call, which holds query heads `query_heads` of the model and their key heads, in `count` parts as even
// as can be; in fewer where there are fewer key heads.
std::vector<CallHeads> parted_heads(const HeadShape& shape, const HeadRange& query_heads, int count);

// A gradient that is summed in float32, whatever dtype it is wanted in: in its own memory where that is float32, else
// in memory of the sum, which finish() rounds.
class GradientSum {
 public:
  // Memory, where there is any, comes from the arena in the order of `stream`.
  GradientSum(Backend& backend, std::string_view name, MemoryClass memory_class, const Tensor& target, Stream& stream);

  const Tensor& tensor() const { return sum_; }
  // Enqueues what makes the target of the sum on the compute stream, which must be behind everything that was added.
  void finish();

 private:
  Backend& backend_;
  Tensor target_;
  Buffer own_;
  Tensor sum_;
};

// The running softmax of a set of queries over all keys that are added.
class RunningAttention {
 public:
  // Of the model's query heads `query_heads`; finish() will write output [query tokens, query heads, value size] and
  // log_sum_exp [query tokens, query heads], whose memory holds nothing that add() reads.
  RunningAttention(Backend& backend, const HeadShape& shape, const HeadRange& query_heads, const Tensor& output,
                   const Tensor& log_sum_exp);

  // Enqueues on the compute stream; does nothing for no tasks. query: [query tokens, query heads, key size]; key,
  // value: [key tokens, key heads of the query heads, size].
  void add(const Tensor& query, const Tensor& key, const Tensor& value, std::span<const AttentionTask> tasks);
  void finish();

 private:
  Backend& backend_;
  float scale_;
  Tensor output_;
  Tensor log_sum_exp_;
  std::vector<HeadRun> runs_;
  std::vector<std::unique_ptr<AttentionState>> states_;
};

// Enqueues, on the compute stream, the gradients of `arguments.tasks`. The tensors hold the
// model's query heads `query_heads` and their key heads; `arguments.scale` is taken from the shape.
void add_attention_gradients(Backend& backend, const HeadShape& shape, const HeadRange& query_heads,
                             const AttentionBackward& arguments);

}  // namespace ithaca
