// Recording on the CUDA backend: kernels by name, on their streams, in the scopes that they were launched in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_testing.h"
#include "backend/device_movement.h"
#include "backend/phase_table.h"
#include "backend/span_recorder.h"
#include "backend/trace_scope.h"

namespace ithaca {
namespace {

using testing_support::make_test_backend;

TEST(CudaAbsence, OfTheRecorderIsExplained) {
  const std::string reason = cuda_trace_absence_reason();
  EXPECT_THAT(reason, testing::AnyOf("", testing::HasSubstr("CUPTI")));
}

class CudaRecording : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no NVIDIA GPU here: " << cuda_absence_reason();
    if (const std::string reason = cuda_trace_absence_reason(); !reason.empty()) GTEST_SKIP() << reason;
    backend_ = make_test_backend(DType::bfloat16, int64_t{256} << 20, false);
  }

  Backend& backend() { return *backend_; }
  Buffer buffer(DType dtype, const Extents& extents, Stream& stream) {
    return backend().arena(Tier::device).allocate("tensor", MemoryClass::workspace, dtype, extents, stream);
  }
  std::string name(const SpanRecorder::Span& span) const { return recorder_->name(span.name); }
  std::string scope(const SpanRecorder::Span& span) const {
    if (span.scope == kNoScope) return "";
    return recorder_->name(recorder_->scopes()[static_cast<size_t>(span.scope)].name);
  }

  std::shared_ptr<SpanRecorder> recorder_ = std::make_shared<SpanRecorder>();
  std::unique_ptr<Backend> backend_;
};

TEST_F(CudaRecording, NamesKernelsAndPutsThemIntoScopes) {
  Stream& compute = backend().compute_stream();
  const Buffer a = buffer(DType::bfloat16, {1024, 1024}, compute);
  const Buffer b = buffer(DType::bfloat16, {1024, 1024}, compute);
  const Buffer c = buffer(DType::bfloat16, {1024, 1024}, compute);
  Gemm gemm;
  gemm.a = a.tensor();
  gemm.b = b.tensor();
  gemm.c = c.tensor();
  backend().fill(compute, {a.tensor(), 1.0});
  backend().fill(compute, {b.tensor(), 1.0});
  backend().gemm(compute, gemm);  // chooses its kernel
  std::vector<std::byte> host(static_cast<size_t>(c.tensor().byte_count()));

  const TraceScope before(backend(), {.name = "not recorded"});
  backend().start_recording(recorder_);
  {
    const PhaseScope phase(backend(), phase::kMlp);
    backend().fill(compute, {a.tensor(), 2.0});
    const TraceScope inner(backend(), {.name = "inner"});
    backend().gemm(compute, gemm);
  }
  backend().copy_to_host(compute, c.tensor(), host);
  backend().stop_recording();
  backend().fill(compute, {a.tensor(), 3.0});
  backend().finish(backend().record(compute));

  EXPECT_EQ(recorder_->dropped(), 0);
  const auto spans = recorder_->spans_of(TraceTrack::compute);
  ASSERT_GE(spans.size(), 3u);
  EXPECT_THAT(name(spans.front()), testing::HasSubstr("Fill"));
  EXPECT_EQ(scope(spans.front()), phase::kMlp);
  EXPECT_EQ(scope(spans[1]), "inner") << name(spans[1]);
  EXPECT_EQ(name(spans.back()), "memcpy device to host");
  EXPECT_EQ(scope(spans.back()), "");
  for (const auto& span : spans) {
    EXPECT_GT(span.end, span.begin) << name(span);
    EXPECT_GE(span.begin, recorder_->begin_time());
    EXPECT_LE(span.end, recorder_->end_time());
  }
  const PhaseTable table = phase_table(*recorder_);
  EXPECT_EQ(table.sum().total(), table.nanoseconds);
  EXPECT_EQ(table.rows.front().phase, phase::kMlp);
  EXPECT_GE(table.rows.front().operations, 2);
}

TEST_F(CudaRecording, CarriesScopesToTheThreadsOfStreams) {
  Stream& communication = backend().communication_stream();
  const Buffer from = buffer(DType::float32, {1 << 20}, communication);
  const Buffer to = buffer(DType::float32, {1 << 20}, communication);
  backend().fill(communication, {from.tensor(), 1.0});
  auto& movement = dynamic_cast<DeviceMovement&>(backend());
  backend().start_recording(recorder_);
  for (const char* exchange : {"first", "second"}) {
    const TraceScope scope(backend(), {exchange, ScopeName::Kind::exchange});
    movement.issue(communication, [&](DeviceIssuer& issuer) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the scope is over when it is issued
      issuer.copy_elements(from.tensor(), to.tensor());
    });
  }
  backend().stop_recording();
  const auto spans = recorder_->spans_of(TraceTrack::communication);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(scope(spans[0]), "first");
  EXPECT_EQ(scope(spans[1]), "second");
  EXPECT_TRUE(recorder_->spans_of(TraceTrack::compute).empty());
}

TEST_F(CudaRecording, MayBeRepeatedAndGivenUp) {
  Stream& compute = backend().compute_stream();
  const Buffer tensor = buffer(DType::float32, {1 << 16}, compute);
  for (int step = 0; step < 3; ++step) {
    const auto recorder = std::make_shared<SpanRecorder>();
    backend().start_recording(recorder);
    for (int fill = 0; fill <= step; ++fill) backend().fill(compute, {tensor.tensor(), 1.0});
    backend().stop_recording();
    EXPECT_EQ(recorder->spans_of(TraceTrack::compute).size(), static_cast<size_t>(step) + 1);
  }
  {
    const std::unique_ptr<Backend> other = make_test_backend(DType::bfloat16, int64_t{16} << 20, false);
    other->start_recording(std::make_shared<SpanRecorder>());
    other->begin_scope({.name = "never ended"});
  }
  backend().start_recording(recorder_);
  backend().fill(compute, {tensor.tensor(), 1.0});
  backend().stop_recording();
  ASSERT_EQ(recorder_->span_count(), 1);
  EXPECT_EQ(scope(recorder_->spans_of(TraceTrack::compute)[0]), "");
}

TEST_F(CudaRecording, KeepsRanksOfOneDeviceApart) {
  constexpr int kRanks = 3;
  std::vector<std::shared_ptr<SpanRecorder>> recorders(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    recorders[static_cast<size_t>(rank)] = std::make_shared<SpanRecorder>();
    ranks.emplace_back([&, rank] {
      const std::unique_ptr<Backend> own = make_test_backend(DType::bfloat16, int64_t{16} << 20, false);
      const Buffer tensor =
          own->arena(Tier::device)
              .allocate("tensor", MemoryClass::workspace, DType::float32, {1 << 16}, own->compute_stream());
      const auto& recorder = recorders[static_cast<size_t>(rank)];
      own->start_recording(recorder);
      for (int fill = 0; fill < 100 * (rank + 1); ++fill) {
        const PhaseScope scope(*own, phase::kAll[rank]);
        own->fill(own->compute_stream(), {tensor.tensor(), 1.0});
      }
      own->stop_recording();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int rank = 0; rank < kRanks; ++rank) {
    const SpanRecorder& recorder = *recorders[static_cast<size_t>(rank)];
    EXPECT_EQ(recorder.span_count(), 100 * (rank + 1));
    const PhaseTable table = phase_table(recorder);
    ASSERT_FALSE(table.rows.empty());
    EXPECT_EQ(table.rows.front().phase, phase::kAll[rank]);
    EXPECT_EQ(table.rows.front().operations, 100 * (rank + 1));
    EXPECT_EQ(table.sum().total(), table.nanoseconds);
  }
}

}  // namespace
}  // namespace ithaca
