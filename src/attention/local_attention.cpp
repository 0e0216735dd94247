#include "attention/local_attention.h"

#include <algorithm>

#include "attention/layout.h"

namespace ithaca {
Tensor heads_of(const Tensor& tensor, const HeadRange& heads) {
  return tensor.slice(1, heads.begin, heads.end);
}

std::vector<HeadRun> head_runs(const HeadShape& shape, const HeadRange& query) {
  const int64_t group_size = shape.query_heads / shape.key_heads;
  const int64_t first_key = query.begin / group_size;
  std::vector<HeadRun> runs;
  int64_t queries_per_key = 0;
  for (int64_t begin = query.begin; begin < query.end;) {
    const int64_t key = begin / group_size;
    const int64_t end = std::min(query.end, (key + 1) * group_size);
    if (!runs.empty() && end - begin == queries_per_key) {
      runs.back().query.end = end - query.begin;
      runs.back().key.end = key - first_key + 1;
    } else {
      queries_per_key = end - begin;
      runs.push_back({{begin - query.begin, end - query.begin}, {key - first_key, key - first_key + 1}});
    }
    begin = end;
  }
  return runs;
}

std::vector<CallHeads> parted_heads(const HeadShape& shape, const HeadRange& query_heads, int count) {
  const int64_t group_size = shape.query_heads / shape.key_heads;
  const int64_t first_key = query_heads.begin / group_size;
  const int64_t key_count = (query_heads.end - 1) / group_size + 1 - first_key;
  const int parts = static_cast<int>(std::min<int64_t>(count, key_count));
  std::vector<CallHeads> result;
  for (int index = 0; index < parts; ++index) {
    CallHeads part;
    part.key = {part_begin(key_count, index, parts), part_begin(key_count, index + 1, parts)};
    part.query_heads = {std::max(query_heads.begin, (first_key + part.key.begin) * group_size),
                        std::min(query_heads.end, (first_key + part.key.end) * group_size)};
    part.query = part.query_heads.from(query_heads.begin);
    result.push_back(part);
  }
  return result;
}

GradientSum::GradientSum(Backend& backend, std::string_view name, MemoryClass memory_class, const Tensor& target,
                         Stream& stream)
    : backend_(backend), target_(target), sum_(target) {
  if (target.dtype == DType::float32) return;
  own_ = backend.arena(Tier::device).allocate(name, memory_class, DType::float32, target.extents, stream);
  sum_ = own_.tensor();
}

void GradientSum::finish() {
  if (own_.is_empty()) return;
  backend_.copy(backend_.compute_stream(), {.from = sum_, .to = target_});
  own_.last_used_on(backend_.compute_stream());
  own_.release();
}

RunningAttention::RunningAttention(Backend& backend, const HeadShape& shape, const HeadRange& query_heads,
                                   const Tensor& output, const Tensor& log_sum_exp)
    : backend_(backend),
      scale_(shape.scale),
      output_(output),
      log_sum_exp_(log_sum_exp),
      runs_(head_runs(shape, query_heads)) {
  for (const HeadRun& run : runs_) {
    states_.push_back(backend.begin_attention(backend.compute_stream(),
                                              {output.extent(0), run.query.count(), shape.value_size},
                                              {heads_of(output, run.query), heads_of(log_sum_exp, run.query)}));
  }
}

void RunningAttention::add(const Tensor& query, const Tensor& key, const Tensor& value,
                           std::span<const AttentionTask> tasks) {
  if (tasks.empty()) return;
  for (size_t index = 0; index < runs_.size(); ++index) {
    const HeadRun& run = runs_[index];
    backend_.attention_forward(backend_.compute_stream(), {.query = heads_of(query, run.query),
                                                           .key = heads_of(key, run.key),
                                                           .value = heads_of(value, run.key),
                                                           .tasks = tasks,
                                                           .scale = scale_,
                                                           .state = states_[index].get()});
  }
}

void RunningAttention::finish() {
  for (size_t index = 0; index < runs_.size(); ++index) {
    const HeadRun& run = runs_[index];
    backend_.finish_attention(backend_.compute_stream(), *states_[index], heads_of(output_, run.query),
                              heads_of(log_sum_exp_, run.query));
  }
}

void add_attention_gradients(Backend& backend, const HeadShape& shape, const HeadRange& query_heads,
                             const AttentionBackward& arguments) {
  if (arguments.tasks.empty() && !arguments.overwrites_dquery && !arguments.overwrites_dkey_dvalue) return;
  for (const HeadRun& run : head_runs(shape, query_heads)) {
    AttentionBackward part = arguments;
    part.scale = shape.scale;
    for (Tensor* tensor : {&part.query, &part.output, &part.log_sum_exp, &part.doutput, &part.dquery}) {
      *tensor = heads_of(*tensor, run.query);
    }
    for (Tensor* tensor : {&part.key, &part.value, &part.dkey, &part.dvalue}) *tensor = heads_of(*tensor, run.key);
    backend.attention_backward(backend.compute_stream(), part);
  }
}

}  // namespace ithaca
