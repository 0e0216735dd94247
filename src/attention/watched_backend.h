// A backend for tests of order: the CPU backend with a compute stream that runs on a thread of its own, like a GPU's,
// optional pauses that bring wrong order to light, and a log of what was enqueued.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "backend/backend.h"
#include "base/random.h"

namespace ithaca::testing {

struct WatchedBackendOptions {
  uint64_t seed = 0;
  int64_t longest_compute_pause_microseconds = 0;        // before attention, copies, sums and fills
  int64_t longest_communication_pause_microseconds = 0;  // before whatever is enqueued on the communication stream
  int64_t attention_rows = 1;                            // that it says to prefer
};

class WatchedBackend : public Backend {
 public:
  WatchedBackend(std::unique_ptr<Backend> inner, const WatchedBackendOptions& options)
      : inner_(std::move(inner)), options_(options), random_(options.seed, "pauses") {}

  // One letter for every enqueued item: C communication, A attention.
  const std::string& log() const { return log_; }
  void clear_log() { log_.clear(); }

  std::string_view name() const override { return inner_->name(); }
  DType compute_dtype() const override { return inner_->compute_dtype(); }
  int64_t preferred_length_multiple() const override { return inner_->preferred_length_multiple(); }
  int64_t preferred_attention_rows() const override { return options_.attention_rows; }
  TileSizes preferred_tiles() const override { return inner_->preferred_tiles(); }

  // The copy stream has a thread.
  Stream& compute_stream() override { return inner_->copy_stream(); }
  Stream& communication_stream() override { return inner_->communication_stream(); }
  Stream& copy_stream() override { return inner_->copy_stream(); }
  Event record(Stream& stream) override { return inner_->record(stream); }
  void wait(Stream& stream, const Event& event) override { inner_->wait(stream, event); }
  void finish(const Event& event) override { inner_->finish(event); }
  void enqueue(Stream& stream, std::function<void()> work) override {
    if (&stream == &communication_stream()) {
      log_ += 'C';
      pause(stream, options_.longest_communication_pause_microseconds);
    }
    inner_->enqueue(stream, std::move(work));
  }
  double exposed_wait_seconds() const override { return inner_->exposed_wait_seconds(); }

  Arena& arena(Tier tier) override { return inner_->arena(tier); }
  void copy_from_host(Stream& stream, std::span<const std::byte> from, const Tensor& to) override {
    inner_->copy_from_host(stream, from, to);
  }
  void copy_to_host(Stream& stream, const Tensor& from, std::span<std::byte> to) override {
    inner_->copy_to_host(stream, from, to);
  }

  std::unique_ptr<AttentionState> begin_attention(Stream& stream, const AttentionShape& shape,
                                                  const AttentionDestination& destination) override {
    return inner_->begin_attention(stream, shape, destination);
  }
  void attention_forward(Stream& stream, const AttentionForward& arguments) override {
    attention(stream);
    inner_->attention_forward(stream, arguments);
  }
  void finish_attention(Stream& stream, AttentionState& state, const Tensor& output,
                        const Tensor& log_sum_exp) override {
    compute_pause(stream);
    inner_->finish_attention(stream, state, output, log_sum_exp);
  }
  void attention_backward(Stream& stream, const AttentionBackward& arguments) override {
    attention(stream);
    inner_->attention_backward(stream, arguments);
  }
  void copy(Stream& stream, const Copy& arguments) override {
    compute_pause(stream);
    inner_->copy(stream, arguments);
  }
  void add(Stream& stream, const Add& arguments) override {
    compute_pause(stream);
    inner_->add(stream, arguments);
  }
  void fill(Stream& stream, const Fill& arguments) override {
    compute_pause(stream);
    inner_->fill(stream, arguments);
  }

  void gemm(Stream& stream, const Gemm& arguments) override { inner_->gemm(stream, arguments); }
  void rms_norm_forward(Stream& stream, const RmsNormForward& arguments) override {
    inner_->rms_norm_forward(stream, arguments);
  }
  void rms_norm_backward(Stream& stream, const RmsNormBackward& arguments) override {
    inner_->rms_norm_backward(stream, arguments);
  }
  void rope_table(Stream& stream, const RopeTable& arguments) override { inner_->rope_table(stream, arguments); }
  void head_rope_forward(Stream& stream, const HeadRopeForward& arguments) override {
    inner_->head_rope_forward(stream, arguments);
  }
  void head_rope_backward(Stream& stream, const HeadRopeBackward& arguments) override {
    inner_->head_rope_backward(stream, arguments);
  }
  void swiglu_forward(Stream& stream, const SwigluForward& arguments) override {
    inner_->swiglu_forward(stream, arguments);
  }
  void swiglu_backward(Stream& stream, const SwigluBackward& arguments) override {
    inner_->swiglu_backward(stream, arguments);
  }
  void embedding_forward(Stream& stream, const EmbeddingForward& arguments) override {
    inner_->embedding_forward(stream, arguments);
  }
  void embedding_backward(Stream& stream, const EmbeddingBackward& arguments) override {
    inner_->embedding_backward(stream, arguments);
  }
  void cross_entropy(Stream& stream, const CrossEntropy& arguments) override {
    inner_->cross_entropy(stream, arguments);
  }
  void column_sum(Stream& stream, const ColumnSum& arguments) override { inner_->column_sum(stream, arguments); }
  void square_sum(Stream& stream, const SquareSum& arguments) override { inner_->square_sum(stream, arguments); }
  void step_numbers(Stream& stream, const StepNumbers& arguments) override { inner_->step_numbers(stream, arguments); }
  void adamw(Stream& stream, const AdamW& arguments) override { inner_->adamw(stream, arguments); }

 private:
  void attention(Stream& stream) {
    log_ += 'A';
    compute_pause(stream);
  }
  void compute_pause(Stream& stream) { pause(stream, options_.longest_compute_pause_microseconds); }
  void pause(Stream& stream, int64_t longest_microseconds) {
    if (longest_microseconds == 0) return;
    const auto length = static_cast<int64_t>(random_.uniform(pauses_++) * static_cast<double>(longest_microseconds));
    inner_->enqueue(stream, [length] { std::this_thread::sleep_for(std::chrono::microseconds(length)); });
  }

  std::unique_ptr<Backend> inner_;
  WatchedBackendOptions options_;
  RandomStream random_;
  uint64_t pauses_ = 0;
  std::string log_;
};

}  // namespace ithaca::testing
