// Names for the work of a training step: what traces show, and the rows of the table of phase times.
//
// A scope names the work that its backend is given while it lives, on whatever stream. Scopes nest: the work of a layer
// holds the phases of the layer, which hold exchanges. They cost one virtual call where nothing is recorded.
// Thread-safety: as Backend; scopes of one backend end in the reverse order of their beginnings.
#pragma once

#include <cstdint>
#include <string_view>

namespace ithaca {

class Backend;

// The phases of a training step, in the order of a step. The names are part of what users see.
namespace phase {
inline constexpr std::string_view kUpload = "upload";
inline constexpr std::string_view kEmbedding = "embedding";
inline constexpr std::string_view kProjections = "forward: norm + projections";
inline constexpr std::string_view kAttention = "forward: attention";
inline constexpr std::string_view kMlp = "forward: output + MLP";
inline constexpr std::string_view kLossHead = "loss head";
inline constexpr std::string_view kRecomputeProjections = "recompute: norm + projections";
inline constexpr std::string_view kRecomputeAttention = "recompute: attention";
inline constexpr std::string_view kRecomputeMlp = "recompute: output + MLP";
inline constexpr std::string_view kMlpBackward = "backward: MLP";
inline constexpr std::string_view kAttentionBackward = "backward: attention";
inline constexpr std::string_view kProjectionsBackward = "backward: projections";
inline constexpr std::string_view kEmbeddingBackward = "backward: embedding";
inline constexpr std::string_view kGradientReduction = "gradient reduction";
inline constexpr std::string_view kOptimizer = "optimizer";

inline constexpr std::string_view kAll[] = {kUpload,
                                            kEmbedding,
                                            kProjections,
                                            kAttention,
                                            kMlp,
                                            kLossHead,
                                            kRecomputeMlp,
                                            kMlpBackward,
                                            kRecomputeAttention,
                                            kRecomputeProjections,
                                            kAttentionBackward,
                                            kProjectionsBackward,
                                            kEmbeddingBackward,
                                            kGradientReduction,
                                            kOptimizer};
}  // namespace phase

struct ScopeName {
  enum class Kind : uint8_t {
    phase,    // a row of the table of phase times; of nested ones the innermost counts
    part,     // of a step or of a phase: a layer, a hop
    exchange  // one call of a communicator
  };
  std::string_view name;  // need not outlive the call that it is given to
  Kind kind = Kind::part;
  int64_t index = -1;  // which layer, hop, group of heads; -1: there is only one
  int64_t bytes = -1;  // exchange: that this rank sends; -1: unknown
  // exchange: what ties it to the exchanges of other ranks that it gets data from and gives data to; 0: nothing.
  uint64_t flow_in = 0;
  uint64_t flow_out = 0;
};

class TraceScope {
 public:
  TraceScope(Backend& backend, const ScopeName& name);
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;
  ~TraceScope();

 private:
  Backend& backend_;
};

// A scope that is a row of the table.
class PhaseScope {
 public:
  PhaseScope(Backend& backend, std::string_view phase) : scope_(backend, {phase, ScopeName::Kind::phase}) {}

 private:
  TraceScope scope_;
};

}  // namespace ithaca
