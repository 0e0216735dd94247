#include "backend/tracing_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/phase_table.h"
#include "backend/span_recorder.h"
#include "base/error.h"

namespace ithaca {
namespace {

using ::testing::ElementsAre;

class TracingBackend : public ::testing::Test {
 protected:
  static std::unique_ptr<Backend> make() {
    CpuBackendOptions options;
    options.memory_limit_bytes = int64_t{64} << 20;
    return make_tracing_backend(make_cpu_backend(options));
  }
  std::vector<std::string> names(TraceTrack track) const {
    std::vector<std::string> result;
    for (const SpanRecorder::Span& span : recorder_->spans_of(track)) result.push_back(recorder_->name(span.name));
    return result;
  }

  std::shared_ptr<SpanRecorder> recorder_ = std::make_shared<SpanRecorder>();
  std::unique_ptr<Backend> backend_ = make();
  std::vector<float> values_ = std::vector<float>(8, 1.0f);
  Tensor tensor_ = Tensor::contiguous(values_.data(), DType::float32, {8});
};

TEST_F(TracingBackend, RecordsOperationsOfEveryStreamByName) {
  Stream& compute = backend_->compute_stream();
  Stream& communication = backend_->communication_stream();
  std::vector<float> copied(8);
  backend_->fill(compute, {tensor_, 2.0});  // before
  backend_->start_recording(recorder_);
  backend_->fill(compute, {tensor_, 3.0});
  backend_->wait(communication, backend_->record(compute));
  backend_->add(communication, {tensor_, tensor_, 1.0f});
  // Far longer than a busy machine keeps this thread from coming to its wait.
  backend_->enqueue(communication, [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
  backend_->wait(compute, backend_->record(communication));
  backend_->copy_to_host(compute, tensor_, std::as_writable_bytes(std::span(copied)));
  backend_->copy_from_host(backend_->copy_stream(), std::as_bytes(std::span(copied)), tensor_);
  backend_->stop_recording();
  backend_->fill(compute, {tensor_, 4.0});  // after

  EXPECT_EQ(copied, std::vector<float>(8, 6.0f));
  EXPECT_THAT(names(TraceTrack::compute), ElementsAre("fill", "wait", "copy_to_host"));
  EXPECT_THAT(names(TraceTrack::communication), ElementsAre("add", ""));
  EXPECT_THAT(names(TraceTrack::copy), ElementsAre("copy_from_host"));
  const auto slept = recorder_->spans_of(TraceTrack::communication)[1];
  EXPECT_GE(slept.end - slept.begin, 300'000'000);
  EXPECT_LT(recorder_->begin_time(), recorder_->end_time());

  const PhaseTable table = phase_table(*recorder_);
  EXPECT_EQ(table.sum().total(), recorder_->end_time() - recorder_->begin_time());
  EXPECT_GE(table.sum().exposed, 4'000'000) << "compute has waited for the communication stream";
}

TEST_F(TracingBackend, PutsWorkIntoTheScopesThatItWasEnqueuedIn) {
  Stream& communication = backend_->communication_stream();
  const TraceScope before(*backend_, {.name = "not recorded"});
  backend_->start_recording(recorder_);
  {
    const TraceScope layer(*backend_, {.name = "layer", .index = 3});
    {
      const PhaseScope attention(*backend_, phase::kAttention);
      backend_->enqueue(communication, [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
    }
    backend_->fill(backend_->compute_stream(), {tensor_, 0.0});
  }
  backend_->fill(backend_->compute_stream(), {tensor_, 0.0});
  backend_->stop_recording();

  ASSERT_EQ(recorder_->scopes().size(), 2u);
  EXPECT_EQ(recorder_->scopes()[0].index, 3);
  EXPECT_EQ(recorder_->scopes()[0].parent, kNoScope);
  EXPECT_EQ(recorder_->scopes()[1].parent, 0);
  EXPECT_EQ(recorder_->spans_of(TraceTrack::communication)[0].scope, 1) << "it ran when the scope was over";
  EXPECT_EQ(recorder_->spans_of(TraceTrack::compute)[0].scope, 0);
  EXPECT_EQ(recorder_->spans_of(TraceTrack::compute)[1].scope, kNoScope);
  EXPECT_EQ(recorder_->phase_of(1), 1);
  EXPECT_EQ(recorder_->phase_of(0), kNoScope);
}

TEST_F(TracingBackend, PassesFailuresOn) {
  backend_->start_recording(recorder_);
  EXPECT_THROW(backend_->gemm(backend_->compute_stream(), {}), ContractError);
  backend_->enqueue(backend_->communication_stream(), [] { throw InputError("broken"); });
  EXPECT_THROW(backend_->finish(backend_->record(backend_->communication_stream())), InputError);
}

TEST_F(TracingBackend, MayGoWhileItRecords) {
  backend_->start_recording(recorder_);
  for (int item = 0; item < 4; ++item) {
    backend_->enqueue(backend_->communication_stream(),
                      [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  }
  backend_.reset();
  EXPECT_EQ(recorder_->span_count(), 4);
}

TEST(Backend, ThatCannotRecordSaysSo) {
  CpuBackendOptions options;
  options.memory_limit_bytes = int64_t{1} << 20;
  const std::unique_ptr<Backend> backend = make_cpu_backend(options);
  EXPECT_THROW(backend->start_recording(std::make_shared<SpanRecorder>()), ConfigurationError);
  const TraceScope ignored(*backend, {.name = "layer", .index = 1});
}

}  // namespace
}  // namespace ithaca
