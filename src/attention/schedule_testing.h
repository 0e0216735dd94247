// What the tests of the schedules share: a case (schedule, mesh, heads, documents, mask), the float64 truth for it, and
// a run of it over thread ranks with the sequence scattered and gathered by Shard::positions().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/documents.h"
#include "attention/layout.h"
#include "attention/schedule.h"
#include "backend/backend.h"
#include "comm/communicator.h"
#include "comm/mesh.h"
#include "comm/transport.h"

namespace ithaca::testing {

struct ScheduleCase {
  ScheduleKind kind = ScheduleKind::ring;
  Layout layout = Layout::contiguous;
  int ulysses = 1;
  int ring = 1;
  HeadShape heads{.query_heads = 4, .key_heads = 2, .key_size = 8, .value_size = 8, .scale = 0.35f};
  Documents documents;
  MaskRule mask;

  int ranks() const { return ulysses * ring; }
  std::string describe() const;
};

// Whole-sequence tensors, row-major [tokens, heads, size].
struct SequenceInputs {
  std::vector<float> query, key, value, doutput;
};
struct SequenceResults {
  std::vector<float> output, log_sum_exp, dquery, dkey, dvalue;  // log_sum_exp: [tokens, query heads]
};
struct SequenceTruth {
  std::vector<double> output, log_sum_exp, dquery, dkey, dvalue;
};

SequenceInputs random_inputs(const HeadShape& heads, int64_t tokens, uint64_t seed);
SequenceTruth true_results(const HeadShape& heads, const Documents& documents, const MaskRule& mask,
                           const SequenceInputs& inputs);

// What one rank did.
struct RankReport {
  Traffic forward_ring, forward_ulysses, backward_ring, backward_ulysses;
  CommunicationCost cost;          // for this rank's token count
  int64_t tokens = 0;              // of this rank
  int64_t peak_communication = 0;  // bytes of the communication class
  int64_t memory_left = 0;         // bytes still booked after the run
  int64_t visible_pairs_times_heads = 0;
  int64_t forward_bytes() const;
  int64_t backward_bytes() const;
};

struct CaseRun {
  SequenceResults results;
  std::vector<RankReport> ranks;
};

// Puts something around the CPU backend of a rank.
using BackendWrapper = std::function<std::unique_ptr<Backend>(int rank, std::unique_ptr<Backend> backend)>;

// Forward and backward of the case on its ranks. Inputs are handed over as strided views of one fused tensor per rank.
CaseRun run_case(const ScheduleCase& test_case, const SequenceInputs& inputs, const BackendWrapper& wrap = {},
                 Transport transport = Transport::peer);

// One rank of run_on_mesh.
struct MeshRank {
  Backend& backend;
  Mesh& mesh;
  // Waits for everything.
  void finish() const;
};
// Runs `body` on ulysses x ring thread ranks with a CPU backend each. With Transport::nccl they send each other
// messages, in host memory all the same (comm/device_testing.h).
void run_on_mesh(int ulysses, int ring, const std::function<void(MeshRank&)>& body, const BackendWrapper& wrap = {},
                 Transport transport = Transport::peer);

// One rank's shard of a case with its tensors, for tests that call a schedule themselves.
class RankTensors {
 public:
  RankTensors(const ScheduleCase& test_case, const AttentionPlan& plan, const SequenceInputs& inputs);
  ShardedQkv qkv();
  ShardedQkvGradient gradient();
  Tensor output();
  Tensor log_sum_exp();
  Tensor doutput();
  // Writes this rank's part of the results.
  void gather(const MeshCoordinates& here, SequenceResults& results) const;

 private:
  ScheduleCase case_;
  Shard shard_;
  Extents log_sum_exp_extents_;
  std::vector<float> qkv_;  // [tokens, query | key | value heads and sizes, fused]
  std::vector<float> dqkv_;
  std::vector<float> output_, log_sum_exp_, doutput_;
};
SequenceResults empty_results(const HeadShape& heads, int64_t tokens);

// ||a - b|| / max(||b||, floor) over finite elements of b; where b is -inf, a must be too. 0 when both are empty.
double relative_error(const std::vector<float>& a, const std::vector<double>& b, double floor = 0.0);
// The largest relative error of output, log-sum-exp and gradients. dQ and dK are differences that cancel completely
// where a query sees one key only, so their errors are taken relative to at least a tenth of the size of dV.
double largest_error(const SequenceResults& results, const SequenceTruth& truth);
bool same_bits(const SequenceResults& a, const SequenceResults& b);

// Documents of random lengths, seeded.
Documents random_documents(int64_t tokens, double mean, uint64_t seed);

}  // namespace ithaca::testing
