#include "backend/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/check.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/device_recording.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/nccl_exchange.h"
#include "backend/device_movement.h"
#include "base/text.h"

namespace ithaca {
namespace {

using cuda::CudaEvent;
using cuda::CudaStream;

// Page-locked bytes that copies between host and device pass through.
constexpr int64_t kStagingBytes = int64_t{32} << 20;
constexpr int64_t kDefaultHostArenaBytes = int64_t{1} << 30;
// What the libraries and the driver take beside the arena, at least.
constexpr int64_t kLibraryBytes = int64_t{3} << 29;
// Of each kind. What frees memory, crosses streams or is measured holds one: some hundreds in a step of many layers.
constexpr int kFirstEvents = 512;

// The shape of a running softmax with the state of cuda::CudaAttention, for the checks of later calls.
class CheckedAttentionState final : public AttentionState {
 public:
  CheckedAttentionState(const AttentionShape& shape, std::unique_ptr<AttentionState> state)
      : shape_(shape), state_(std::move(state)) {}
  const AttentionShape& shape() const { return shape_; }
  AttentionState& state() const { return *state_; }

 private:
  AttentionShape shape_;
  std::unique_ptr<AttentionState> state_;
};

// Workspace of work that is enqueued on the stream's handle itself: given back behind it all.
class WorkspaceLease {
 public:
  WorkspaceLease(CudaStream& stream, Buffer buffer) : stream_(stream), buffer_(std::move(buffer)) {}
  WorkspaceLease(const WorkspaceLease&) = delete;
  WorkspaceLease& operator=(const WorkspaceLease&) = delete;
  ~WorkspaceLease() { static_cast<void>(stream_.use()); }
  void* data() const { return buffer_.tensor().data; }

 private:
  CudaStream& stream_;
  Buffer buffer_;  // goes after the destructor's body, so behind use()
};

// Enqueues on a stream from the thread that issues it.
class CudaIssuer final : public DeviceIssuer {
 public:
  explicit CudaIssuer(CudaStream& stream) : stream_(stream) {}

  void copy_elements(const Tensor& from, const Tensor& to) override { cuda::copy_elements(from, to, stream_.handle()); }
  void sum_elements(std::span<const Tensor> parts, const Tensor& to) override {
    cuda::sum_elements(parts, to, stream_.handle());
  }
  void exchange(DeviceExchange& exchange, int rank, std::span<const DeviceMessage> sends,
                std::span<const DeviceMessage> receives) override {
    cuda::run_nccl_exchange(exchange, rank, sends, receives, stream_.handle());
  }
  Event record() override { return stream_.record_issued(); }
  void wait(const Event& event) override {
    const std::shared_ptr<const CudaEvent> state = cuda::cuda_event(event);
    if (state == nullptr || state->is_of(stream_)) return;
    state->wait_until_issued();
    ITHACA_CUDA_CHECK(cudaStreamWaitEvent(stream_.handle(), state->handle(), cudaEventWaitDefault));
  }

 private:
  CudaStream& stream_;
};

class CudaBackend final : public Backend, public DeviceMovement {
 public:
  explicit CudaBackend(const CudaBackendOptions& options)
      : options_(options),
        events_(std::make_shared<cuda::EventPool>(false, kFirstEvents)),
        waits_(std::make_shared<cuda::EventPool>(true, kFirstEvents)),
        device_memory_(std::make_shared<cuda::DeviceMemory>(device_arena_bytes(options))),
        compute_("compute", options.device, 0, events_, failure_),
        communication_("communication", options.device, highest_priority(), events_, failure_),
        copy_("copy", options.device, highest_priority(), events_, failure_),
        device_arena_(*this, Tier::device, device_memory_->data(), device_memory_->size()),
        staging_(kStagingBytes, cuda::has_happened, [this](const Event& event) { finish(event); }),
        attention_(std::make_unique<cuda::CudaAttention>(workspace_provider(), attention_options(options))) {}

  // Work that is still queued is done first, as somebody may rely on it; host work is dropped while an exception is
  // passing.
  ~CudaBackend() override {
    static_cast<void>(cudaSetDevice(options_.device));
    if (std::uncaught_exceptions() > exceptions_at_start_) {
      failure_->set(std::make_exception_ptr(ContractError("the CUDA backend was closed before its work was done")));
    }
    for (CudaStream* stream : {&compute_, &communication_, &copy_}) stream->close();
    for (CudaStream* stream : {&compute_, &communication_, &copy_}) {
      static_cast<void>(cudaStreamSynchronize(stream->handle()));  // an error has been thrown elsewhere, or never will
    }
  }

  std::string_view name() const override { return "cuda"; }
  DType compute_dtype() const override { return options_.compute_dtype; }
  int64_t preferred_length_multiple() const override { return 128; }
  int64_t preferred_attention_rows() const override { return kCudaAttentionRows; }
  // A tile's weight gradients are read and written once more in float32: few tiles, as memory is large.
  TileSizes preferred_tiles() const override { return {8192, int64_t{5} << 28}; }

  // ---- order ----
  Stream& compute_stream() override { return compute_; }
  Stream& communication_stream() override { return communication_; }
  Stream& copy_stream() override { return copy_; }

  Event record(Stream& stream) override {
    select_device();
    return own(stream).record();
  }

  void wait(Stream& stream, const Event& event) override {
    failure_->rethrow_if_set();
    CudaStream& waiting = own(stream);
    std::shared_ptr<const CudaEvent> state = cuda::cuda_event(event);
    if (state == nullptr || state->is_of(waiting)) return;
    select_device();
    if (&waiting != &compute_) {
      waiting.wait(std::move(state));
      return;
    }
    state->wait_until_issued();
    if (state->has_happened()) return;
    waits_.begin_wait(waiting.use());
    waiting.wait(std::move(state));
    waits_.end_wait(waiting.use());
  }

  void finish(const Event& event) override {
    const std::shared_ptr<const CudaEvent> state = cuda::cuda_event(event);
    if (state != nullptr) {
      state->wait_until_issued();
      ITHACA_CUDA_CHECK(cudaEventSynchronize(state->handle()));
    }
    failure_->rethrow_if_set();
  }

  void enqueue(Stream& stream, std::function<void()> work) override {
    failure_->rethrow_if_set();
    select_device();
    own(stream).enqueue(std::move(work));
  }

  // Of waits that are over. A wait counts from the moment that the compute stream has nothing else to do.
  double exposed_wait_seconds() const override { return waits_.seconds(); }

  // ---- traces ----
  void begin_scope(const ScopeName& name) override {
    if (recording_ != nullptr) recording_->begin_scope(name);
  }
  void end_scope() noexcept override {
    if (recording_ != nullptr) recording_->end_scope();
  }

  void start_recording(std::shared_ptr<SpanRecorder> recorder) override {
    require(recorder != nullptr && recording_ == nullptr, "start_recording: no recorder, or another one is still on");
    finish_streams();
    const cuda::DeviceRecording::RecordedStream streams[] = {{compute_.handle(), TraceTrack::compute},
                                                             {communication_.handle(), TraceTrack::communication},
                                                             {copy_.handle(), TraceTrack::copy}};
    recording_ = std::make_unique<cuda::DeviceRecording>(std::move(recorder), options_.device, streams);
    for (CudaStream* stream : {&compute_, &communication_, &copy_}) stream->record_to(recording_.get());
  }

  void stop_recording() override {
    if (recording_ == nullptr) return;
    finish_streams();
    for (CudaStream* stream : {&compute_, &communication_, &copy_}) stream->record_to(nullptr);
    const std::unique_ptr<cuda::DeviceRecording> recording = std::move(recording_);
    recording->finish();
  }

  // ---- memory ----
  Arena& arena(Tier tier) override {
    if (tier == Tier::device) return device_arena_;
    if (tier == Tier::host) return host_arena();
    throw ContractError(
        fmt::format("the CUDA backend has no arena of the tier {}; device and host are there", tier_name(tier)));
  }

  void copy_from_host(Stream& stream, std::span<const std::byte> from, const Tensor& to) override {
    check_host_bytes("copy_from_host", static_cast<int64_t>(from.size()), to);
    if (from.empty()) return;
    if (!to.is_contiguous()) {
      const Buffer buffer =
          device_arena_.allocate("copy_from_host.elements", MemoryClass::workspace, to.dtype, to.extents, stream);
      copy_from_host(stream, from, buffer.tensor());
      copy(stream, {buffer.tensor(), to});
      return;
    }
    run_here(stream, [&](cudaStream_t handle) {
      for_each_piece(from.size(), [&](size_t begin, size_t bytes) {
        std::byte* const staged = staging_.take(static_cast<int64_t>(bytes));
        std::memcpy(staged, from.data() + begin, bytes);
        ITHACA_CUDA_CHECK(
            cudaMemcpyAsync(static_cast<std::byte*>(to.data) + begin, staged, bytes, cudaMemcpyHostToDevice, handle));
        staging_.used_until(mark(stream));
      });
    });
  }

  void copy_to_host(Stream& stream, const Tensor& from, std::span<std::byte> to) override {
    check_host_bytes("copy_to_host", static_cast<int64_t>(to.size()), from);
    require(from.is_contiguous(), "copy_to_host: a tensor that is not contiguous: " + from.describe());
    if (to.empty()) return;
    run_here(stream, [&](cudaStream_t handle) {
      if (is_pinned(to)) {
        ITHACA_CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data, to.size(), cudaMemcpyDeviceToHost, handle));
        return;
      }
      for_each_piece(to.size(), [&](size_t begin, size_t bytes) {
        std::byte* const staged = staging_.take(static_cast<int64_t>(bytes));
        ITHACA_CUDA_CHECK(cudaMemcpyAsync(staged, static_cast<const std::byte*>(from.data) + begin, bytes,
                                          cudaMemcpyDeviceToHost, handle));
        own(stream).enqueue([target = to.data() + begin, staged, bytes] { std::memcpy(target, staged, bytes); });
        staging_.used_until(mark(stream));
      });
    });
  }

  void issue(Stream& stream, std::function<void(DeviceIssuer&)> work) override {
    failure_->rethrow_if_set();
    select_device();
    CudaStream& target = own(stream);
    if (&target == &compute_) {
      target.use();  // what is enqueued now is work of this stream
      CudaIssuer issuer(target);
      work(issuer);
    } else {
      target.post([&target, work = std::move(work)] {
        CudaIssuer issuer(target);
        work(issuer);
      });
    }
  }

  int most_sum_parts() const override { return cuda::kMostSumParts; }

  std::unique_ptr<DeviceExchange> make_exchange(std::span<DeviceMovement* const> ranks) override {
    std::vector<int> devices;
    for (DeviceMovement* const rank : ranks) {
      const auto* const backend = dynamic_cast<const CudaBackend*>(rank);
      require(backend != nullptr, "NCCL connects CUDA backends alone");
      devices.push_back(backend->options_.device);
    }
    return cuda::make_nccl_exchange(devices);
  }

  std::shared_ptr<const void> hold_memory() override { return device_memory_; }
  std::function<void(std::exception_ptr)> failure_handle() override {
    return [failure = failure_](std::exception_ptr exception) { failure->set(std::move(exception)); };
  }

  // ---- operations ----
  void gemm(Stream& stream, const Gemm& arguments) override {
    check(arguments, options_.compute_dtype);
    run_here(stream, [&](cudaStream_t handle) { gemm_.run(arguments, handle); });
  }

  std::unique_ptr<AttentionState> begin_attention(Stream& stream, const AttentionShape& shape,
                                                  const AttentionDestination& destination) override {
    check(shape);
    check(destination, shape, options_.compute_dtype);
    std::unique_ptr<AttentionState> state;
    run_here(stream, [&](cudaStream_t handle) { state = attention_->begin(handle, shape, destination); });
    return std::make_unique<CheckedAttentionState>(shape, std::move(state));
  }

  void attention_forward(Stream& stream, const AttentionForward& arguments) override {
    const CheckedAttentionState& state = own(arguments.state);
    check(arguments, state.shape(), options_.compute_dtype);
    AttentionForward inner = arguments;
    inner.state = &state.state();
    run_here(stream, [&](cudaStream_t handle) { attention_->forward(handle, inner); });
  }

  void finish_attention(Stream& stream, AttentionState& state, const Tensor& output,
                        const Tensor& log_sum_exp) override {
    const CheckedAttentionState& checked = own(&state);
    check_attention_results(checked.shape(), output, log_sum_exp, options_.compute_dtype);
    run_here(stream, [&](cudaStream_t handle) { attention_->finish(handle, checked.state(), output, log_sum_exp); });
  }

  void attention_backward(Stream& stream, const AttentionBackward& arguments) override {
    check(arguments, options_.compute_dtype);
    run_here(stream, [&](cudaStream_t handle) { attention_->backward(handle, arguments); });
  }

  void rms_norm_forward(Stream& stream, const RmsNormForward& arguments) override {
    check(arguments, options_.compute_dtype);
    run(stream, [arguments](cudaStream_t handle) { cuda::rms_norm_forward(arguments, handle); });
  }

  void rms_norm_backward(Stream& stream, const RmsNormBackward& arguments) override {
    check(arguments, options_.compute_dtype);
    const int64_t tokens = arguments.input.extent(0);
    const int64_t size = arguments.input.extent(1);
    const Buffer partial = partial_rows("rms_norm_backward.weight_sums", !arguments.dweight.is_absent(),
                                        cuda::rms_norm_partial_rows(tokens, size), size, stream);
    run(stream,
        [arguments, sums = floats(partial)](cudaStream_t handle) { cuda::rms_norm_backward(arguments, sums, handle); });
  }

  void rope_table(Stream& stream, const RopeTable& arguments) override {
    check(arguments);
    run(stream, [arguments](cudaStream_t handle) { cuda::rope_table(arguments, handle); });
  }

  void head_rope_forward(Stream& stream, const HeadRopeForward& arguments) override {
    check(arguments, options_.compute_dtype);
    run(stream, [arguments](cudaStream_t handle) { cuda::head_rope_forward(arguments, handle); });
  }

  void head_rope_backward(Stream& stream, const HeadRopeBackward& arguments) override {
    check(arguments, options_.compute_dtype);
    const int64_t heads = arguments.doutput.extent(0) * arguments.doutput.extent(1);
    const Buffer partial = partial_rows("head_rope_backward.weight_sums", !arguments.dnorm_weight.is_absent(),
                                        cuda::head_rope_partial_rows(heads), arguments.doutput.extent(2), stream);
    run(stream, [arguments, sums = floats(partial)](cudaStream_t handle) {
      cuda::head_rope_backward(arguments, sums, handle);
    });
  }

  void swiglu_forward(Stream& stream, const SwigluForward& arguments) override {
    check(arguments, options_.compute_dtype);
    run(stream, [arguments](cudaStream_t handle) { cuda::swiglu_forward(arguments, handle); });
  }

  void swiglu_backward(Stream& stream, const SwigluBackward& arguments) override {
    check(arguments, options_.compute_dtype);
    run(stream, [arguments](cudaStream_t handle) { cuda::swiglu_backward(arguments, handle); });
  }

  void embedding_forward(Stream& stream, const EmbeddingForward& arguments) override {
    check(arguments, options_.compute_dtype);
    run(stream, [arguments](cudaStream_t handle) { cuda::embedding_forward(arguments, handle); });
  }

  void embedding_backward(Stream& stream, const EmbeddingBackward& arguments) override {
    check(arguments, options_.compute_dtype);
    select_device();
    const Buffer workspace = bytes(
        "embedding_backward.order",
        cuda::embedding_backward_workspace_bytes(arguments.token_ids.extent(0), arguments.dtable.extent(0)), stream);
    run(stream, [arguments, space = workspace.tensor().data](cudaStream_t handle) {
      cuda::embedding_backward(arguments, space, handle);
    });
  }

  void cross_entropy(Stream& stream, const CrossEntropy& arguments) override {
    check(arguments, options_.compute_dtype);
    const Buffer losses = doubles("cross_entropy.row_losses", arguments.logits.extent(0), stream);
    run(stream, [arguments, rows = losses.tensor().as<double>()](cudaStream_t handle) {
      cuda::cross_entropy(arguments, rows, handle);
    });
  }

  void copy(Stream& stream, const Copy& arguments) override {
    check(arguments);
    run(stream, [arguments](cudaStream_t handle) { cuda::copy(arguments, handle); });
  }

  void add(Stream& stream, const Add& arguments) override {
    check(arguments, options_.compute_dtype);
    run(stream, [arguments](cudaStream_t handle) { cuda::add(arguments, handle); });
  }

  void fill(Stream& stream, const Fill& arguments) override {
    check(arguments);
    run(stream, [arguments](cudaStream_t handle) { cuda::fill(arguments, handle); });
  }

  void column_sum(Stream& stream, const ColumnSum& arguments) override {
    check(arguments, options_.compute_dtype);
    const Buffer partial =
        partial_rows("column_sum.sums", true, cuda::column_sum_partial_rows(arguments.input.extent(0)),
                     arguments.input.extent(1), stream);
    run(stream,
        [arguments, sums = floats(partial)](cudaStream_t handle) { cuda::column_sum(arguments, sums, handle); });
  }

  void square_sum(Stream& stream, const SquareSum& arguments) override {
    check(arguments);
    const Buffer partial = doubles("square_sum.sums", cuda::kSquareSumPartials, stream);
    run(stream, [arguments, sums = partial.tensor().as<double>()](cudaStream_t handle) {
      cuda::square_sum(arguments, sums, handle);
    });
  }

  void step_numbers(Stream& stream, const StepNumbers& arguments) override {
    check(arguments);
    run(stream, [arguments](cudaStream_t handle) { cuda::step_numbers(arguments, handle); });
  }

  void adamw(Stream& stream, const AdamW& arguments) override {
    check(arguments, options_.compute_dtype);
    const Buffer numbers = partial_rows("adamw.numbers", true, 1, cuda::kAdamWNumbers, stream);
    run(stream, [arguments, space = floats(numbers)](cudaStream_t handle) { cuda::adamw(arguments, space, handle); });
  }

 private:
  static int highest_priority() {
    int lowest = 0;
    int highest = 0;
    ITHACA_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    return highest;
  }

  static cuda::CudaAttention::Options attention_options(const CudaBackendOptions& options) {
    cuda::CudaAttention::Options result;
    result.deterministic = options.deterministic;
    return result;
  }

  static int64_t device_arena_bytes(const CudaBackendOptions& options) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    ITHACA_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    const auto available = static_cast<int64_t>(free_bytes);
    if (options.memory_limit_bytes > 0) {
      if (options.memory_limit_bytes > available) {
        throw ConfigurationError(fmt::format("{} of memory are asked for on CUDA device {}, but {} are free of {}",
                                             format_bytes(options.memory_limit_bytes), options.device,
                                             format_bytes(available), format_bytes(static_cast<int64_t>(total_bytes))));
      }
      return options.memory_limit_bytes;
    }
    // Ranks that share the device arrive one by one, so what is free now says little: each takes its part of the whole.
    const int64_t part = options.ranks_on_device == 1
                             ? available - available / 32
                             : static_cast<int64_t>(total_bytes) / 16 * 15 / options.ranks_on_device;
    const int64_t bytes = (part - kLibraryBytes) / Arena::kAlignment * Arena::kAlignment;
    if (bytes <= 0) {
      throw ConfigurationError(fmt::format("CUDA device {} has too little free memory for {} rank(s): {} of {}",
                                           options.device, options.ranks_on_device, format_bytes(available),
                                           format_bytes(static_cast<int64_t>(total_bytes))));
    }
    return bytes;
  }

  static void check_host_bytes(std::string_view operation, int64_t bytes, const Tensor& tensor) {
    if (bytes == tensor.byte_count()) return;
    throw ContractError(fmt::format("{}: {} bytes on the host for {}, which has {}", operation, bytes,
                                    tensor.describe(), tensor.byte_count()));
  }

  static CheckedAttentionState& own(AttentionState* state) {
    auto* const own_state = dynamic_cast<CheckedAttentionState*>(state);
    require(own_state != nullptr, "attention: the state is missing, or of another backend");
    return *own_state;
  }

  static float* floats(const Buffer& buffer) { return buffer.is_empty() ? nullptr : buffer.tensor().as<float>(); }

  CudaStream& own(Stream& stream) {
    if (&stream == &compute_) return compute_;
    if (&stream == &communication_) return communication_;
    require(&stream == &copy_, "the stream belongs to another backend");
    return copy_;
  }

  CudaStream& of_handle(cudaStream_t handle) {
    for (CudaStream* stream : {&compute_, &communication_, &copy_}) {
      if (stream->handle() == handle) return *stream;
    }
    throw ContractError("the CUDA stream belongs to another backend");
  }

  void select_device() const { ITHACA_CUDA_CHECK(cudaSetDevice(options_.device)); }

  // An event behind all work of the stream, kept up to date although the stream's handle was used directly.
  Event mark(Stream& stream) {
    static_cast<void>(own(stream).use());
    return own(stream).record();
  }

  // Runs launch(handle) where the stream issues; `launch` holds what it needs by value, and touches nothing of the
  // backend.
  template <typename Launch>
  void run(Stream& stream, const Launch& launch) {
    failure_->rethrow_if_set();
    select_device();
    own(stream).run(launch);
    if (options_.synchronous) synchronize(stream);
  }

  // Runs launch(handle) on this thread, behind everything that the stream has issued.
  template <typename Launch>
  void run_here(Stream& stream, const Launch& launch) {
    failure_->rethrow_if_set();
    select_device();
    CudaStream& target = own(stream);
    launch(target.use());
    static_cast<void>(target.use());  // there is work behind an event that `launch` may have recorded
    if (options_.synchronous) synchronize(stream);
  }

  void synchronize(Stream& stream) {
    own(stream).synchronize();
    failure_->rethrow_if_set();
  }

  // The host waits until all streams have nothing to do.
  void finish_streams() {
    select_device();
    for (CudaStream* stream : {&compute_, &communication_, &copy_}) stream->synchronize();
    failure_->rethrow_if_set();
  }

  // Whether the bytes lie in the host arena.
  bool is_pinned(std::span<const std::byte> bytes) const {
    const std::byte* const begin = host_memory_.data();
    return begin != nullptr && bytes.data() >= begin && bytes.data() + bytes.size() <= begin + host_memory_.size();
  }

  template <typename Function>
  void for_each_piece(size_t bytes, const Function& function) {
    const auto largest = static_cast<size_t>(staging_.largest_piece());
    for (size_t begin = 0; begin < bytes; begin += largest) function(begin, std::min(largest, bytes - begin));
  }

  Buffer bytes(std::string_view name, int64_t count, Stream& stream) {
    return device_arena_.allocate(name, MemoryClass::workspace, DType::uint8, {count}, stream);
  }
  Buffer doubles(std::string_view name, int64_t count, Stream& stream) {
    return device_arena_.allocate(name, MemoryClass::workspace, DType::float64, {count}, stream);
  }
  // Empty when it is not needed.
  Buffer partial_rows(std::string_view name, bool is_needed, int64_t rows, int64_t columns, Stream& stream) {
    if (!is_needed) return {};
    return device_arena_.allocate(name, MemoryClass::workspace, DType::float32, {rows, columns}, stream);
  }

  cuda::WorkspaceProvider workspace_provider() {
    return [this](std::string_view name, int64_t count, cudaStream_t handle) {
      CudaStream& stream = of_handle(handle);
      const auto lease = std::make_shared<WorkspaceLease>(stream, bytes(name, count, stream));
      return std::shared_ptr<void>(lease, lease->data());
    };
  }

  Arena& host_arena() {
    if (!host_arena_) {
      select_device();
      require(options_.host_memory_limit_bytes >= 0, "CudaBackendOptions: a memory limit must be 0 or more");
      host_memory_ = cuda::PinnedMemory(options_.host_memory_limit_bytes > 0 ? options_.host_memory_limit_bytes
                                                                             : kDefaultHostArenaBytes);
      // Other streams' work may still be using a freed block, so nothing guards it.
      host_arena_.emplace(*this, Tier::host, host_memory_.data(), host_memory_.size());
    }
    return *host_arena_;
  }

  // In this order, so that what uses memory and streams goes before them.
  CudaBackendOptions options_;
  int exceptions_at_start_ = std::uncaught_exceptions();
  std::shared_ptr<cuda::HostFailure> failure_ = std::make_shared<cuda::HostFailure>();
  std::shared_ptr<cuda::EventPool> events_;
  mutable cuda::WaitMeter waits_;
  std::unique_ptr<cuda::DeviceRecording> recording_;  // goes after the streams that refer to it
  std::shared_ptr<cuda::DeviceMemory> device_memory_;
  cuda::PinnedMemory host_memory_;
  CudaStream compute_;
  CudaStream communication_;
  CudaStream copy_;
  Arena device_arena_;
  std::optional<Arena> host_arena_;
  cuda::StagingRing staging_;
  cuda::CudaGemm gemm_{workspace_provider()};
  std::unique_ptr<cuda::CudaAttention> attention_;
};

// Lets kernels of `device` read the memory of those of the first `devices` that can be read: ranks of one process on
// several devices exchange tensors directly.
void enable_peer_access(int device, int devices) {
  for (int other = 0; other < devices; ++other) {
    int can_access = 0;
    if (other == device || cudaDeviceCanAccessPeer(&can_access, device, other) != cudaSuccess || can_access == 0) {
      continue;
    }
    const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
    static_cast<void>(cudaGetLastError());  // "already enabled" stays behind otherwise
    if (status != cudaErrorPeerAccessAlreadyEnabled) {
      cuda::check_cuda(status, "cudaDeviceEnablePeerAccess", __FILE__, __LINE__);
    }
  }
}

cudaError_t count_devices(int& count) {
  count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (status != cudaSuccess) count = 0;
  return status;
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  static_cast<void>(count_devices(count));
  return count;
}

std::string cuda_absence_reason() {
  int count = 0;
  const cudaError_t status = count_devices(count);
  if (status != cudaSuccess) return fmt::format("CUDA says: {}", cudaGetErrorString(status));
  return count == 0 ? "the driver sees no GPU" : "";
}

std::string cuda_trace_absence_reason() {
  return cuda::recording_absence_reason();
}

std::string cuda_nccl_absence_reason() {
  const std::string reason = cuda_device_count() == 0 ? cuda_absence_reason() : std::string();
  return reason.empty() ? cuda::nccl_absence_reason() : reason;
}

bool cuda_devices_are_peers(int devices) {
  for (int device = 0; device < devices; ++device) {
    for (int other = 0; other < devices; ++other) {
      if (other == device) continue;
      int can_access = 0;
      ITHACA_CUDA_CHECK(cudaDeviceCanAccessPeer(&can_access, device, other));
      if (can_access == 0) return false;
    }
  }
  return true;
}

CudaDeviceInfo cuda_device_info(int device) {
  const int count = cuda_device_count();
  if (device < 0 || device >= count) {
    const std::string reason = count == 0 ? cuda_absence_reason() : fmt::format("there are {}", count);
    throw ConfigurationError(fmt::format("no CUDA device {}: {}", device, reason));
  }
  cudaDeviceProp properties{};
  ITHACA_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  CudaDeviceInfo info;
  info.name = properties.name;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.multiprocessors = properties.multiProcessorCount;
  info.compute_capability = properties.major * 10 + properties.minor;
  return info;
}

std::unique_ptr<Backend> make_cuda_backend(const CudaBackendOptions& options) {
  const CudaDeviceInfo info = cuda_device_info(options.device);
  require(options.ranks_on_device >= 1, "CudaBackendOptions: ranks_on_device must be 1 or more");
  require(options.devices_in_use == 0 ||
              (options.devices_in_use > options.device && options.devices_in_use <= cuda_device_count()),
          "CudaBackendOptions: devices_in_use must count the device and no more than there are");
  require(options.memory_limit_bytes >= 0 && options.host_memory_limit_bytes >= 0,
          "CudaBackendOptions: a memory limit must be 0 or more");
  require(options.compute_dtype == DType::bfloat16 || options.compute_dtype == DType::float32,
          "CudaBackendOptions: compute_dtype is bfloat16 or float32");
  ITHACA_CUDA_CHECK(cudaSetDevice(options.device));
  if (const cudaError_t status = cuda::find_kernels(); status != cudaSuccess) {
    throw ConfigurationError(fmt::format(
        "CUDA device {} ({}, compute capability {}.{}) cannot run this program's kernels ({}); configure with "
        "-DCMAKE_CUDA_ARCHITECTURES={}",
        options.device, info.name, info.compute_capability / 10, info.compute_capability % 10,
        cudaGetErrorString(status), info.compute_capability));
  }
  enable_peer_access(options.device, options.devices_in_use > 0 ? options.devices_in_use : cuda_device_count());
  return std::make_unique<CudaBackend>(options);
}

}  // namespace ithaca
