#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "backend/check.h"
#include "backend/cpu/address_space.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/cpu_stream.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels.h"

namespace ithaca {
namespace {

using cpu::AddressSpace;
using cpu::CpuStream;
using cpu::InlineStream;
using cpu::QueueStream;

class CpuAttentionState final : public AttentionState {
 public:
  CpuAttentionState(const AttentionShape& shape, const AttentionDestination& destination, Buffer buffer)
      : shape_(shape), destination_(destination), buffer_(std::move(buffer)) {}

  const AttentionShape& shape() const { return shape_; }
  const AttentionDestination& destination() const { return destination_; }
  const Tensor& memory() const { return buffer_.tensor(); }
  void used_on(Stream& stream) { buffer_.last_used_on(stream); }
  // Set by the work of begin_attention, so only work behind it may look inside.
  const std::shared_ptr<cpu::AttentionAccumulator>& accumulator() const { return accumulator_; }

 private:
  AttentionShape shape_;
  AttentionDestination destination_;  // written by finish_attention only
  std::shared_ptr<cpu::AttentionAccumulator> accumulator_ = std::make_shared<cpu::AttentionAccumulator>();
  Buffer buffer_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options)
      : device_space_(size_or_physical(options.memory_limit_bytes), "the device arena"),
        host_space_(size_or_physical(options.host_memory_limit_bytes), "the host arena"),
        device_arena_(*this, Tier::device, device_space_.data(), device_space_.size(), Arena::Addressing::host),
        host_arena_(*this, Tier::host, host_space_.data(), host_space_.size(), Arena::Addressing::host) {}

  // Work that is still queued is done first, as somebody may rely on it (another rank's receive, say), unless an
  // exception is passing: then it is dropped.
  ~CpuBackend() override {
    const bool abandon = std::uncaught_exceptions() > exceptions_at_start_;
    communication_.close(abandon);
    copy_.close(abandon);
  }

  std::string_view name() const override { return "cpu"; }
  DType compute_dtype() const override { return DType::float32; }
  int64_t preferred_length_multiple() const override { return 1; }
  int64_t preferred_attention_rows() const override { return kCpuAttentionRows; }
  TileSizes preferred_tiles() const override { return {1024, int64_t{64} << 20}; }

  // ---- order ----
  Stream& compute_stream() override { return compute_; }
  Stream& communication_stream() override { return communication_; }
  Stream& copy_stream() override { return copy_; }

  Event record(Stream& stream) override { return own(stream).record(); }

  void wait(Stream& stream, const Event& event) override { exposed_wait_seconds_ += own(stream).wait(event); }

  void finish(const Event& event) override { cpu::await(event); }

  void enqueue(Stream& stream, std::function<void()> work) override { own(stream).enqueue(std::move(work)); }

  double exposed_wait_seconds() const override { return exposed_wait_seconds_; }

  // ---- memory ----
  Arena& arena(Tier tier) override {
    if (tier == Tier::device) return device_arena_;
    if (tier == Tier::host) return host_arena_;
    throw ContractError(
        fmt::format("the CPU backend has no arena of the tier {}; device and host are there", tier_name(tier)));
  }

  void copy_from_host(Stream& stream, std::span<const std::byte> from, const Tensor& to) override {
    check_host_bytes("copy_from_host", static_cast<int64_t>(from.size()), to);
    if (own(stream).is_inline()) {
      run(stream, [&] { cpu::copy({host_view(from.data(), to), to}); });
      return;
    }
    run(stream, [bytes = std::vector<std::byte>(from.begin(), from.end()), to] {
      cpu::copy({host_view(bytes.data(), to), to});
    });
  }

  void copy_to_host(Stream& stream, const Tensor& from, std::span<std::byte> to) override {
    check_host_bytes("copy_to_host", static_cast<int64_t>(to.size()), from);
    require(from.is_contiguous(), "copy_to_host: a tensor that is not contiguous: " + from.describe());
    run(stream, [from, to] {
      if (!to.empty()) std::memcpy(to.data(), from.data, to.size());
    });
  }

  // ---- operations ----
  void gemm(Stream& stream, const Gemm& arguments) override {
    check(arguments, DType::float32);
    cpu::check_blas_sizes(arguments);
    run(stream, [arguments] { cpu::gemm(arguments); });
  }

  std::unique_ptr<AttentionState> begin_attention(Stream& stream, const AttentionShape& shape,
                                                  const AttentionDestination& destination) override {
    check(shape);
    check(destination, shape, DType::float32);
    auto state = std::make_unique<CpuAttentionState>(
        shape, destination,
        device_arena_.allocate("attention.accumulator", MemoryClass::workspace, DType::float32,
                               {cpu::attention_accumulator_elements(shape)}, stream));
    run(stream, [shape, memory = state->memory(), accumulator = state->accumulator()] {
      *accumulator = cpu::begin_attention(shape, memory);
    });
    return state;
  }

  void attention_forward(Stream& stream, const AttentionForward& arguments) override {
    CpuAttentionState& state = own(arguments.state);
    check(arguments, state.shape(), DType::float32);
    const Buffer workspace =
        bytes("attention_forward.blocks",
              cpu::attention_forward_workspace_bytes(arguments.query.extent(2), arguments.value.extent(2)), stream);
    run_with_tasks(stream, arguments,
                   [accumulator = state.accumulator(), blocks = span_of(workspace)](const AttentionForward& forward) {
                     cpu::attention_forward(forward, *accumulator, blocks);
                   });
    state.used_on(stream);
  }

  void finish_attention(Stream& stream, AttentionState& state, const Tensor& output,
                        const Tensor& log_sum_exp) override {
    CpuAttentionState& cpu_state = own(&state);
    check_attention_results(cpu_state.shape(), output, log_sum_exp, DType::float32);
    check_attention_destination(cpu_state.destination(), output, log_sum_exp);
    run(stream, [accumulator = cpu_state.accumulator(), output, log_sum_exp] {
      cpu::finish_attention(*accumulator, output, log_sum_exp);
    });
    cpu_state.used_on(stream);
  }

  void attention_backward(Stream& stream, const AttentionBackward& arguments) override {
    check(arguments, DType::float32);
    const Buffer workspace =
        bytes("attention_backward.blocks",
              cpu::attention_backward_workspace_bytes(arguments.query.extent(2), arguments.value.extent(2)), stream);
    run_with_tasks(stream, arguments, [blocks = span_of(workspace)](const AttentionBackward& backward) {
      if (backward.overwrites_dquery) cpu::fill({backward.dquery, 0.0});
      if (backward.overwrites_dkey_dvalue) {
        cpu::fill({backward.dkey, 0.0});
        cpu::fill({backward.dvalue, 0.0});
      }
      cpu::attention_backward(backward, blocks);
    });
  }

  void rms_norm_forward(Stream& stream, const RmsNormForward& arguments) override {
    check(arguments, DType::float32);
    run(stream, [arguments] { cpu::rms_norm_forward(arguments); });
  }

  void rms_norm_backward(Stream& stream, const RmsNormBackward& arguments) override {
    check(arguments, DType::float32);
    const int64_t columns = arguments.dweight.is_absent() ? 0 : arguments.dweight.extent(0);
    run_weight_sum(stream, "rms_norm_backward.weight_sum", columns,
                   [arguments](cpu::WeightSumSpace space) { cpu::rms_norm_backward(arguments, space); });
  }

  void rope_table(Stream& stream, const RopeTable& arguments) override {
    check(arguments);
    run(stream, [arguments] { cpu::rope_table(arguments); });
  }

  void head_rope_forward(Stream& stream, const HeadRopeForward& arguments) override {
    check(arguments, DType::float32);
    run(stream, [arguments] { cpu::head_rope_forward(arguments); });
  }

  void head_rope_backward(Stream& stream, const HeadRopeBackward& arguments) override {
    check(arguments, DType::float32);
    const int64_t columns = arguments.dnorm_weight.is_absent() ? 0 : arguments.dnorm_weight.extent(0);
    run_weight_sum(stream, "head_rope_backward.weight_sum", columns,
                   [arguments](cpu::WeightSumSpace space) { cpu::head_rope_backward(arguments, space); });
  }

  void swiglu_forward(Stream& stream, const SwigluForward& arguments) override {
    check(arguments, DType::float32);
    run(stream, [arguments] { cpu::swiglu_forward(arguments); });
  }

  void swiglu_backward(Stream& stream, const SwigluBackward& arguments) override {
    check(arguments, DType::float32);
    run(stream, [arguments] { cpu::swiglu_backward(arguments); });
  }

  void embedding_forward(Stream& stream, const EmbeddingForward& arguments) override {
    check(arguments, DType::float32);
    run(stream, [arguments] { cpu::embedding_forward(arguments); });
  }

  void embedding_backward(Stream& stream, const EmbeddingBackward& arguments) override {
    check(arguments, DType::float32);
    run(stream, [arguments] { cpu::embedding_backward(arguments); });
  }

  void cross_entropy(Stream& stream, const CrossEntropy& arguments) override {
    check(arguments, DType::float32);
    run(stream, [arguments] { cpu::cross_entropy(arguments); });
  }

  void copy(Stream& stream, const Copy& arguments) override {
    check(arguments);
    run(stream, [arguments] { cpu::copy(arguments); });
  }

  void add(Stream& stream, const Add& arguments) override {
    check(arguments, DType::float32);
    run(stream, [arguments] { cpu::add(arguments); });
  }

  void fill(Stream& stream, const Fill& arguments) override {
    check(arguments);
    run(stream, [arguments] { cpu::fill(arguments); });
  }

  void column_sum(Stream& stream, const ColumnSum& arguments) override {
    check(arguments, DType::float32);
    run_weight_sum(stream, "column_sum.sum", arguments.sum.extent(0),
                   [arguments](cpu::WeightSumSpace space) { cpu::column_sum(arguments, space); });
  }

  void square_sum(Stream& stream, const SquareSum& arguments) override {
    check(arguments);
    run(stream, [arguments] { cpu::square_sum(arguments); });
  }

  void step_numbers(Stream& stream, const StepNumbers& arguments) override {
    check(arguments);
    run(stream, [arguments] { cpu::step_numbers(arguments); });
  }

  void adamw(Stream& stream, const AdamW& arguments) override {
    check(arguments, DType::float32);
    run(stream, [arguments] { cpu::adamw(arguments); });
  }

 private:
  static int64_t size_or_physical(int64_t bytes) {
    require(bytes >= 0, "CpuBackendOptions: a memory limit must be 0 or more");
    return bytes > 0 ? bytes : cpu::physical_memory_bytes();
  }

  static void check_host_bytes(std::string_view operation, int64_t bytes, const Tensor& tensor) {
    if (bytes == tensor.byte_count()) return;
    throw ContractError(fmt::format("{}: {} bytes on the host for {}, which has {}", operation, bytes,
                                    tensor.describe(), tensor.byte_count()));
  }

  // Host bytes as a tensor like `tensor`. Only read from.
  static Tensor host_view(const std::byte* bytes, const Tensor& tensor) {
    return Tensor::contiguous(const_cast<std::byte*>(bytes), tensor.dtype, tensor.extents);
  }

  static CpuAttentionState& own(AttentionState* state) {
    auto* const own_state = dynamic_cast<CpuAttentionState*>(state);
    require(own_state != nullptr, "attention: the state is missing, or of another backend");
    return *own_state;
  }

  CpuStream& own(Stream& stream) {
    if (&stream == &compute_) return compute_;
    if (&stream == &communication_) return communication_;
    require(&stream == &copy_, "the stream belongs to another backend");
    return copy_;
  }

  template <typename Work>
  void run(Stream& stream, Work work) {
    if (&stream == &compute_) {
      compute_.run(work);
    } else {
      own(stream).enqueue(std::move(work));
    }
  }

  // The tasks of the arguments are the caller's, who may change them when the call has returned.
  template <typename Arguments, typename Work>
  void run_with_tasks(Stream& stream, const Arguments& arguments, Work work) {
    if (&stream == &compute_) {
      compute_.run([&] { work(arguments); });
      return;
    }
    own(stream).enqueue(
        [work, arguments, tasks = std::vector<AttentionTask>(arguments.tasks.begin(), arguments.tasks.end())] {
          Arguments with_own_tasks = arguments;
          with_own_tasks.tasks = tasks;
          work(with_own_tasks);
        });
  }

  // Given back when the caller's buffer goes, behind the work that it was lent to.
  Buffer bytes(std::string_view name, int64_t count, Stream& stream) {
    return device_arena_.allocate(name, MemoryClass::workspace, DType::uint8, {count}, stream);
  }
  static std::span<std::byte> span_of(const Buffer& buffer) {
    return {static_cast<std::byte*>(buffer.tensor().data), static_cast<size_t>(buffer.tensor().byte_count())};
  }

  template <typename Work>
  void run_weight_sum(Stream& stream, std::string_view name, int64_t columns, Work work) {
    if (columns == 0) {
      run(stream, [work] { work({}); });
      return;
    }
    const auto count = static_cast<size_t>(columns);
    const Buffer total = device_arena_.allocate(name, MemoryClass::workspace, DType::float64, {columns}, stream);
    const Buffer piece = device_arena_.allocate(name, MemoryClass::workspace, DType::float32, {columns}, stream);
    const cpu::WeightSumSpace space = {{piece.tensor().as<float>(), count}, {total.tensor().as<double>(), count}};
    run(stream, [work, space] { work(space); });
  }

  // Streams go first: their threads may still be using memory.
  AddressSpace device_space_;
  AddressSpace host_space_;
  Arena device_arena_;
  Arena host_arena_;
  InlineStream compute_{"compute"};
  QueueStream communication_{"communication"};
  QueueStream copy_{"copy"};
  double exposed_wait_seconds_ = 0.0;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const CpuBackendOptions& options) {
  cpu::verify_blas();
  return std::make_unique<CpuBackend>(options);
}

}  // namespace ithaca
