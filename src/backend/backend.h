// Backend: memory, streams, events and numeric operations of one device, for one rank.
//
// Every operation is enqueued on the stream it is given and may return before it has run. Operations on one stream run
// in order; order between streams is made with record()/wait() only. The memory behind arguments must stay allocated
// until the work has been ENQUEUED (arenas free in stream order); spans and structs are copied or used before the call
// returns. Operations check their arguments and throw ContractError on the calling thread. A failure of enqueued work
// (a lost rank, say) is thrown by the next wait(), finish() or operation on the stream. Thread-safety: one rank's
// thread calls; different ranks have different backends. Destroying a backend first runs what is still queued; while an
// exception passes it drops that instead. Buffers, states and communicators on it must be gone by then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "backend/arena.h"
#include "backend/operations.h"
#include "backend/stream.h"
#include "backend/trace_scope.h"

namespace ithaca {

class SpanRecorder;

// Tiles of the sequence that keep a backend at full speed, where nothing was asked for.
struct TileSizes {
  int64_t mlp_tokens = 0;   // that pass through the MLP at a time
  int64_t logit_bytes = 0;  // of one tile of the loss head
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // "cpu", "cuda", "meta".
  virtual std::string_view name() const = 0;
  // The dtype of activations and of the weights that operations read.
  virtual DType compute_dtype() const = 0;
  // Token counts that are multiples of this run fastest (1 on CPU, 128 on Hopper); callers pad internally.
  virtual int64_t preferred_length_multiple() const = 0;
  // Query rows (tokens x query heads) from which one attention call runs at full speed; calls that are cut into groups
  // of heads had better not be smaller.
  virtual int64_t preferred_attention_rows() const = 0;
  virtual TileSizes preferred_tiles() const = 0;

  // ---- order ----
  virtual Stream& compute_stream() = 0;
  virtual Stream& communication_stream() = 0;
  virtual Stream& copy_stream() = 0;  // device <-> host <-> disk
  virtual Event record(Stream& stream) = 0;
  virtual void wait(Stream& stream, const Event& event) = 0;  // the stream waits, the host need not
  virtual void finish(const Event& event) = 0;                // the host waits: end of a step, tests
  // Runs `work` on the host when the stream gets there. It must not call this backend, and may throw: that fails the
  // stream.
  virtual void enqueue(Stream& stream, std::function<void()> work) = 0;
  // Seconds that compute work has waited for other streams so far: communication and copies that were not hidden.
  virtual double exposed_wait_seconds() const = 0;

  // ---- traces ----
  // The work of a scope (TraceScope) from its beginning to its end. Ignored while nothing is recorded.
  virtual void begin_scope(const ScopeName& /*name*/) {}
  virtual void end_scope() noexcept {}
  // Waits for what was enqueued before, then records what runs on the streams. Throws ConfigurationError where this
  // backend cannot: the CPU backend records inside a tracing backend (backend/tracing_backend.h).
  virtual void start_recording(std::shared_ptr<SpanRecorder> recorder);
  // Waits for what has been enqueued; the recorder is complete afterwards. Nothing where nothing is recorded.
  virtual void stop_recording() {}

  // ---- memory ----
  virtual Arena& arena(Tier tier) = 0;
  // The bytes are taken before the call returns.
  virtual void copy_from_host(Stream& stream, std::span<const std::byte> from, const Tensor& to) = 0;
  // `to` holds the bytes once an event recorded after this call has finished; it must live until then. `from` is
  // contiguous.
  virtual void copy_to_host(Stream& stream, const Tensor& from, std::span<std::byte> to) = 0;

  // ---- operations ----
  virtual void gemm(Stream& stream, const Gemm& arguments) = 0;

  // `destination` is optional ({}).
  virtual std::unique_ptr<AttentionState> begin_attention(Stream& stream, const AttentionShape& shape,
                                                          const AttentionDestination& destination) = 0;
  virtual void attention_forward(Stream& stream, const AttentionForward& arguments) = 0;
  // Writes output [query tokens, query heads, value size] (compute dtype) and log_sum_exp [query tokens, query heads]
  // (float32). A query that saw no key gets 0 and -inf. With a destination given to begin_attention they must be it.
  virtual void finish_attention(Stream& stream, AttentionState& state, const Tensor& output,
                                const Tensor& log_sum_exp) = 0;
  virtual void attention_backward(Stream& stream, const AttentionBackward& arguments) = 0;

  virtual void rms_norm_forward(Stream& stream, const RmsNormForward& arguments) = 0;
  virtual void rms_norm_backward(Stream& stream, const RmsNormBackward& arguments) = 0;
  virtual void rope_table(Stream& stream, const RopeTable& arguments) = 0;
  virtual void head_rope_forward(Stream& stream, const HeadRopeForward& arguments) = 0;
  virtual void head_rope_backward(Stream& stream, const HeadRopeBackward& arguments) = 0;
  virtual void swiglu_forward(Stream& stream, const SwigluForward& arguments) = 0;
  virtual void swiglu_backward(Stream& stream, const SwigluBackward& arguments) = 0;
  virtual void embedding_forward(Stream& stream, const EmbeddingForward& arguments) = 0;
  virtual void embedding_backward(Stream& stream, const EmbeddingBackward& arguments) = 0;
  virtual void cross_entropy(Stream& stream, const CrossEntropy& arguments) = 0;

  virtual void copy(Stream& stream, const Copy& arguments) = 0;
  virtual void add(Stream& stream, const Add& arguments) = 0;
  virtual void fill(Stream& stream, const Fill& arguments) = 0;
  virtual void column_sum(Stream& stream, const ColumnSum& arguments) = 0;
  virtual void square_sum(Stream& stream, const SquareSum& arguments) = 0;
  virtual void step_numbers(Stream& stream, const StepNumbers& arguments) = 0;
  virtual void adamw(Stream& stream, const AdamW& arguments) = 0;
};

}  // namespace ithaca
