#include "backend/tracing_backend.h"

#include <chrono>
#include <string>
#include <utility>

#include "backend/span_recorder.h"
#include "base/error.h"

namespace ithaca {
namespace {

// Nanoseconds of the process's steady clock.
int64_t clock_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Shorter waits are only calls.
constexpr int64_t kShortestWait = 2000;

class TracingBackend final : public Backend {
 public:
  explicit TracingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  DType compute_dtype() const override { return inner_->compute_dtype(); }
  int64_t preferred_length_multiple() const override { return inner_->preferred_length_multiple(); }
  int64_t preferred_attention_rows() const override { return inner_->preferred_attention_rows(); }
  TileSizes preferred_tiles() const override { return inner_->preferred_tiles(); }

  Stream& compute_stream() override { return inner_->compute_stream(); }
  Stream& communication_stream() override { return inner_->communication_stream(); }
  Stream& copy_stream() override { return inner_->copy_stream(); }
  Event record(Stream& stream) override { return inner_->record(stream); }

  void wait(Stream& stream, const Event& event) override {
    if (&stream == &compute_stream()) {
      waiting("wait", [&] { inner_->wait(stream, event); });
    } else {
      inner_->wait(stream, event);
    }
  }
  void finish(const Event& event) override {
    waiting("wait of the host", [&] { inner_->finish(event); });
  }

  void enqueue(Stream& stream, std::function<void()> work) override {
    if (recorder_ == nullptr) return inner_->enqueue(stream, std::move(work));
    inner_->enqueue(stream, [recorder = recorder_, track = track_of(stream), scope = recorder_->current_scope(),
                             work = std::move(work)] {
      const int64_t begin = clock_now();
      work();
      recorder->add(track, "", scope, begin, clock_now());
    });
  }

  double exposed_wait_seconds() const override { return inner_->exposed_wait_seconds(); }

  void begin_scope(const ScopeName& name) override {
    if (recorder_ != nullptr) recorder_->open_scope(name, clock_now());
  }
  void end_scope() noexcept override {
    if (recorder_ != nullptr) recorder_->close_scope(clock_now());
  }
  void start_recording(std::shared_ptr<SpanRecorder> recorder) override {
    require(recorder != nullptr && recorder_ == nullptr, "start_recording: no recorder, or another one is still on");
    finish_all();
    recorder->begin(clock_now());
    recorder_ = std::move(recorder);
  }
  void stop_recording() override {
    if (recorder_ == nullptr) return;
    const std::shared_ptr<SpanRecorder> recorder = std::exchange(recorder_, nullptr);
    finish_all();
    recorder->finish(clock_now());
  }

  Arena& arena(Tier tier) override { return inner_->arena(tier); }
  void copy_from_host(Stream& stream, std::span<const std::byte> from, const Tensor& to) override {
    timed(stream, "copy_from_host", [&] { inner_->copy_from_host(stream, from, to); });
  }
  void copy_to_host(Stream& stream, const Tensor& from, std::span<std::byte> to) override {
    timed(stream, "copy_to_host", [&] { inner_->copy_to_host(stream, from, to); });
  }

  void gemm(Stream& stream, const Gemm& arguments) override {
    timed(stream, "gemm", [&] { inner_->gemm(stream, arguments); });
  }
  std::unique_ptr<AttentionState> begin_attention(Stream& stream, const AttentionShape& shape,
                                                  const AttentionDestination& destination) override {
    std::unique_ptr<AttentionState> state;
    timed(stream, "begin_attention", [&] { state = inner_->begin_attention(stream, shape, destination); });
    return state;
  }
  void attention_forward(Stream& stream, const AttentionForward& arguments) override {
    timed(stream, "attention_forward", [&] { inner_->attention_forward(stream, arguments); });
  }
  void finish_attention(Stream& stream, AttentionState& state, const Tensor& output,
                        const Tensor& log_sum_exp) override {
    timed(stream, "finish_attention", [&] { inner_->finish_attention(stream, state, output, log_sum_exp); });
  }
  void attention_backward(Stream& stream, const AttentionBackward& arguments) override {
    timed(stream, "attention_backward", [&] { inner_->attention_backward(stream, arguments); });
  }
  void rms_norm_forward(Stream& stream, const RmsNormForward& arguments) override {
    timed(stream, "rms_norm_forward", [&] { inner_->rms_norm_forward(stream, arguments); });
  }
  void rms_norm_backward(Stream& stream, const RmsNormBackward& arguments) override {
    timed(stream, "rms_norm_backward", [&] { inner_->rms_norm_backward(stream, arguments); });
  }
  void rope_table(Stream& stream, const RopeTable& arguments) override {
    timed(stream, "rope_table", [&] { inner_->rope_table(stream, arguments); });
  }
  void head_rope_forward(Stream& stream, const HeadRopeForward& arguments) override {
    timed(stream, "head_rope_forward", [&] { inner_->head_rope_forward(stream, arguments); });
  }
  void head_rope_backward(Stream& stream, const HeadRopeBackward& arguments) override {
    timed(stream, "head_rope_backward", [&] { inner_->head_rope_backward(stream, arguments); });
  }
  void swiglu_forward(Stream& stream, const SwigluForward& arguments) override {
    timed(stream, "swiglu_forward", [&] { inner_->swiglu_forward(stream, arguments); });
  }
  void swiglu_backward(Stream& stream, const SwigluBackward& arguments) override {
    timed(stream, "swiglu_backward", [&] { inner_->swiglu_backward(stream, arguments); });
  }
  void embedding_forward(Stream& stream, const EmbeddingForward& arguments) override {
    timed(stream, "embedding_forward", [&] { inner_->embedding_forward(stream, arguments); });
  }
  void embedding_backward(Stream& stream, const EmbeddingBackward& arguments) override {
    timed(stream, "embedding_backward", [&] { inner_->embedding_backward(stream, arguments); });
  }
  void cross_entropy(Stream& stream, const CrossEntropy& arguments) override {
    timed(stream, "cross_entropy", [&] { inner_->cross_entropy(stream, arguments); });
  }
  void copy(Stream& stream, const Copy& arguments) override {
    timed(stream, "copy", [&] { inner_->copy(stream, arguments); });
  }
  void add(Stream& stream, const Add& arguments) override {
    timed(stream, "add", [&] { inner_->add(stream, arguments); });
  }
  void fill(Stream& stream, const Fill& arguments) override {
    timed(stream, "fill", [&] { inner_->fill(stream, arguments); });
  }
  void column_sum(Stream& stream, const ColumnSum& arguments) override {
    timed(stream, "column_sum", [&] { inner_->column_sum(stream, arguments); });
  }
  void square_sum(Stream& stream, const SquareSum& arguments) override {
    timed(stream, "square_sum", [&] { inner_->square_sum(stream, arguments); });
  }
  void step_numbers(Stream& stream, const StepNumbers& arguments) override {
    timed(stream, "step_numbers", [&] { inner_->step_numbers(stream, arguments); });
  }
  void adamw(Stream& stream, const AdamW& arguments) override {
    timed(stream, "adamw", [&] { inner_->adamw(stream, arguments); });
  }

 private:
  TraceTrack track_of(const Stream& stream) const {
    if (&stream == &inner_->compute_stream()) return TraceTrack::compute;
    if (&stream == &inner_->communication_stream()) return TraceTrack::communication;
    return TraceTrack::copy;
  }

  // `operation` enqueues work on `stream`.
  template <typename Operation>
  void timed(Stream& stream, std::string_view name, const Operation& operation) {
    if (recorder_ == nullptr) return operation();
    const TraceTrack track = track_of(stream);
    const int32_t scope = recorder_->current_scope();
    if (track == TraceTrack::compute) {
      const int64_t begin = clock_now();
      operation();
      recorder_->add(track, name, scope, begin, clock_now());
      return;
    }
    // The work runs on the stream's thread, between two marks.
    const auto begin = std::make_shared<int64_t>(0);
    inner_->enqueue(stream, [begin] { *begin = clock_now(); });
    operation();
    inner_->enqueue(stream, [recorder = recorder_, track, scope, begin, text = std::string(name)] {
      recorder->add(track, text, scope, *begin, clock_now());
    });
  }

  template <typename Wait>
  void waiting(std::string_view name, const Wait& wait) {
    if (recorder_ == nullptr) return wait();
    const int64_t begin = clock_now();
    wait();
    const int64_t end = clock_now();
    if (end - begin < kShortestWait) return;
    recorder_->add(TraceTrack::compute, name, recorder_->current_scope(), begin, end, SpanRecorder::Kind::wait);
  }

  void finish_all() {
    for (Stream* stream : {&inner_->compute_stream(), &inner_->communication_stream(), &inner_->copy_stream()}) {
      inner_->finish(inner_->record(*stream));
    }
  }

  std::shared_ptr<SpanRecorder> recorder_;
  std::unique_ptr<Backend> inner_;  // goes first: its threads may still hold the recorder
};

}  // namespace

std::unique_ptr<Backend> make_tracing_backend(std::unique_ptr<Backend> inner) {
  require(inner != nullptr, "make_tracing_backend: no backend");
  return std::make_unique<TracingBackend>(std::move(inner));
}

}  // namespace ithaca
