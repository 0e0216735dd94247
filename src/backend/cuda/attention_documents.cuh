// Backward attention of short documents: the work of one block, on warpgroup products (warpgroup_mma.cuh).
//
// A block takes a document and a key head at a time, from a queue, the largest first. It goes through the keys in
// passes of 128 and, in a pass, through the tiles of 64 queries that see them, of all query heads of the group: five
// products for each (K Q^T, V dO^T, dV, dK, dQ). Two warpgroups multiply, each for 64 keys of the pass, whose dK and dV
// stay in its registers; P^T and dS^T are left operands in registers, and dS^T goes to shared memory for dQ, of which
// each warpgroup makes half of the elements for the keys of both. A dQ that more than one pass contributes to waits in
// memory of the block's own, where each thread finds what it has left. So nothing is added by two blocks, and the bits
// are always the same.
//
// A third warpgroup copies: it runs up to three tiles ahead of the products and makes the row sums dO . O of the tiles
// that a pass is the first to see. Tiles and the keys of a pass are handed over through barriers in shared memory,
// filled ones and emptied ones.
//
// With ITHACA_EMULATED_WARPGROUPS this compiles for the CPU (warpgroup_emulation.h), where tests run it.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef ITHACA_EMULATED_WARPGROUPS
#include "backend/cuda/warpgroup_emulation.h"
#else
#include "backend/cuda/warpgroup_mma.cuh"
#endif
#include "backend/cuda/attention_tasks.cuh"

namespace ithaca::cuda {

inline constexpr int kDocumentThreads = 384;
inline constexpr int kWarpgroup = 128;
inline constexpr int kDocumentTile = 64;   // queries of a tile, keys of a warpgroup
inline constexpr int kDocumentKeys = 128;  // of a pass
inline constexpr int kDocumentStages = 3;  // tiles of queries on their way
inline constexpr int kDocumentPasses = 3;  // descriptions of passes
// Registers of a thread that multiplies and of one that copies: 384 threads begin with 168 each.
inline constexpr int kMultiplyingRegisters = 232;
inline constexpr int kCopyingRegisters = 40;

struct DocumentArguments {
  HeadsView<const BFloat> query;
  HeadsView<const BFloat> key;
  HeadsView<const BFloat> value;
  HeadsView<const BFloat> output;
  HeadsView<const BFloat> doutput;
  RowsView log_sum_exp;
  RowsView sums;  // workspace: dO . O of every row
  const AttentionTask* tasks;
  int64_t task_count;
  int64_t key_heads;
  int group;  // query heads of one key head
  float scale;
  int* next;              // the queue: items taken so far
  float4* waiting;        // dQ of one block: [query head of the group][query tile][half][word][thread]
  int64_t waiting_tiles;  // query tiles of the longest document
};

// How a gradient is written: over what is there, or added to it (float32).
template <typename D>
struct GradientView {
  HeadsView<D> to;  // rows that begin at multiples of 8 bytes
  bool adds;

  // Accumulators of 64 rows (of which `rows` are there), columns from `column` on, by all lanes of a warp.
  template <int kCount>
  __device__ void write_tile(const float (&sums)[kCount], float factor, int64_t token, int64_t head, int rows,
                             int column, int thread) const {
    const int first_row = thread / 32 * 16 + thread % 32 / 4;
    column += 2 * (thread % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = first_row + 8 * half;
      D* row = to.row(token + r, head) + column;
      const int columns = r < rows ? to.size - column : 0;
#pragma unroll
      for (int n = 0; n < kCount / 4; n += 2) {
        const float* first = sums + 4 * n + 2 * half;
        const float* second = first + 4;
        if constexpr (std::is_same_v<D, BFloat>) {
          write_blocks(pack_pair(factor * first[0], factor * first[1]),
                       pack_pair(factor * second[0], factor * second[1]), row + 8 * n, columns - 8 * n, thread % 2);
        } else {
          if (8 * n < columns) write(row + 8 * n, factor * first[0], factor * first[1]);
          if (8 * n + 8 < columns) write(row + 8 * n + 8, factor * second[0], factor * second[1]);
        }
      }
    }
  }

 private:
  __device__ void write(float* at, float first, float second) const {
    float2 pair = {first, second};
    if (adds) {
      const float2 before = *reinterpret_cast<const float2*>(at);
      pair.x += before.x;
      pair.y += before.y;
    }
    *reinterpret_cast<float2*>(at) = pair;
  }
  // Of two blocks of 8 columns an even lane takes its neighbour's part of the first, an odd one that of the second:
  // four lanes write the 32 bytes of a row together. `at`, `columns`: the lane's own place in the first block, and how
  // many columns there are from it on.
  __device__ void write_blocks(uint32_t first, uint32_t second, BFloat* at, int columns, int is_odd) const {
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, is_odd != 0 ? first : second, 1);
    const uint2 words = is_odd != 0 ? uint2{other, second} : uint2{first, other};
    if (columns > 8 * is_odd) *reinterpret_cast<uint2*>(at + 6 * is_odd) = words;
  }
};

// 128 keys of a document and a key head, and the tiles of queries that see them.
struct DocumentPass {
  int64_t q_begin;
  int64_t k_begin;
  int query_count;
  int key_count;
  int lower;
  int upper;
  int key_head;
  int key_begin;   // of the pass, in the document
  int first_tile;  // of queries: [first_tile, end_tile)
  int end_tile;
  bool is_backwards;  // through the heads of the group: those that the pass before has read last come first
  bool is_there;      // there was work left

  // The first pass of the next item of the queue.
  __device__ void take(const DocumentArguments& arguments) {
    const int64_t item = atomicAdd(arguments.next, 1);
    is_there = item < arguments.task_count * arguments.key_heads;
    if (!is_there) return;
    const AttentionTask task = arguments.tasks[item / arguments.key_heads];
    q_begin = task.q_begin;
    k_begin = task.k_begin;
    query_count = static_cast<int>(task.q_end - task.q_begin);
    key_count = static_cast<int>(task.k_end - task.k_begin);
    lower = static_cast<int>(task.lower);
    upper = static_cast<int>(task.upper);
    key_head = static_cast<int>(item % arguments.key_heads);
    begin(0);
  }
  // The pass of the keys from `key` on.
  __device__ void begin(int key) {
    key_begin = key;
    is_backwards = key / kDocumentKeys % 2 == 1;
    const int keys = min(key_count - key, kDocumentKeys);
    first_tile = max(0, key - upper) / kDocumentTile;
    end_tile = (min(query_count, key + keys - 1 - lower) - 1) / kDocumentTile + 1;
  }
  __device__ int next_key() const { return key_begin + kDocumentKeys; }

  __device__ int head_of_group(int i, int group) const { return is_backwards ? group - 1 - i : i; }
  __device__ int rows(int tile) const { return min(query_count - tile * kDocumentTile, kDocumentTile); }
  // Keys of a warpgroup.
  __device__ int keys(int warpgroup) const {
    return max(0, min(key_count - key_begin - warpgroup * kDocumentTile, kDocumentTile));
  }
  // The first or last pass that a tile of queries sees keys of.
  __device__ bool is_first(int tile) const {
    return max(0, tile * kDocumentTile + lower + 1) / kDocumentKeys * kDocumentKeys == key_begin;
  }
  __device__ bool is_last(int tile) const {
    const int last_row = min(query_count, (tile + 1) * kDocumentTile) - 1;
    return min(key_count - 1, last_row + upper) / kDocumentKeys * kDocumentKeys == key_begin;
  }
};

// What a tile of queries sees of the keys of a warpgroup. Key r sees query c iff lower < r - c <= upper.
struct DocumentMask {
  int queries;
  int keys;
  int lower;
  int upper;

  __device__ DocumentMask(const DocumentPass& pass, int warpgroup, int tile) {
    const int shift = pass.key_begin + warpgroup * kDocumentTile - tile * kDocumentTile;
    queries = pass.rows(tile);
    keys = pass.keys(warpgroup);
    lower = pass.lower - shift;
    upper = pass.upper - shift;
  }
  __device__ bool is_any_visible() const { return keys > 0 && keys - 1 > lower && 1 - queries <= upper; }
  // Queries that are not there have a log-sum-exp of +inf.
  __device__ bool is_all_visible() const {
    return keys == kDocumentTile && 1 - kDocumentTile > lower && kDocumentTile - 1 <= upper;
  }
};

// Shared memory, from an address that is a multiple of 1,024.
template <int kSize>
struct DocumentMemory {
  static constexpr uint32_t kTile = kSize / 64 * kPanelBytes;
  static constexpr uint32_t kKeys = 0;  // of two warpgroups
  static constexpr uint32_t kValues = kKeys + 2 * kTile;
  static constexpr uint32_t kQueries = kValues + 2 * kTile;  // of all stages
  static constexpr uint32_t kDoutputs = kQueries + kDocumentStages * kTile;
  static constexpr uint32_t kOutput = kDoutputs + kDocumentStages * kTile;
  static constexpr uint32_t kDscores = kOutput + kTile;  // [step % 2][warpgroup] panels of [key][query]
  // [stage] 64 log-sum-exps, in units of log2(e), +inf for rows that are not there or have seen no key; 64 row sums
  static constexpr uint32_t kRows = kDscores + 4 * kPanelBytes;
  static constexpr uint32_t kRowsOfStage = 2 * kDocumentTile * sizeof(float);
  static constexpr uint32_t kBarriers = kRows + kDocumentStages * kRowsOfStage;
  static constexpr uint32_t kFull = kBarriers;  // [stage]
  static constexpr uint32_t kEmpty = kFull + 8 * kDocumentStages;
  static constexpr uint32_t kKeysFull = kEmpty + 8 * kDocumentStages;
  static constexpr uint32_t kKeysEmpty = kKeysFull + 8;
  static constexpr uint32_t kDscoresFull = kKeysEmpty + 8;  // [step % 2][warpgroup]
  static constexpr uint32_t kPasses = kDscoresFull + 8 * 4;
  static constexpr uint32_t kBytes = kPasses + kDocumentPasses * sizeof(DocumentPass);
  static constexpr int kAllocatedBytes = static_cast<int>(kBytes) + 1023;
};

// Number of the named barrier of the threads that copy.
inline constexpr int kCopiesMeet = 1;

// The stage of a step and how often it has been used before.
struct DocumentStage {
  int index = 0;
  int phase = 0;
  __device__ void advance() {
    if (++index == kDocumentStages) {
      index = 0;
      phase ^= 1;
    }
  }
};

// ---- the warpgroup that copies ----

template <int kSize>
class DocumentCopies {
  using Memory = DocumentMemory<kSize>;
  static constexpr int kChunks = kSize / 8;             // of a row
  static constexpr int kRows = kWarpgroup / kChunks;    // that are copied at a time: a multiple of 8
  static constexpr int kTimes = kDocumentTile / kRows;  // until a tile is copied

 public:
  __device__ DocumentCopies(const DocumentArguments& arguments, uint32_t shared, char* base, int thread)
      : arguments_(arguments), shared_(shared), base_(base), thread_(thread) {}

  __device__ void run() {
    for (int number = 0;; ++number) {
      DocumentPass* pass = pass_at(number);
      if (thread_ == 0) {
        const DocumentPass* before = pass_at(number + kDocumentPasses - 1);
        if (number == 0 || before->next_key() >= before->key_count) {
          pass->take(arguments_);
        } else {
          *pass = *before;
          pass->begin(before->next_key());
        }
      }
      meet<kCopiesMeet, kWarpgroup>();
      if (!pass->is_there) {
        finish<0>();
        wait_for_phase(shared_ + Memory::kKeysEmpty, number % 2 ^ 1);
        arrive(shared_ + Memory::kKeysFull);
        return;
      }
      bool is_first_step = true;
      for (int i = 0; i < arguments_.group; ++i) {
        const int64_t head = pass->key_head * arguments_.group + pass->head_of_group(i, arguments_.group);
        for (int tile = pass->first_tile; tile < pass->end_tile; ++tile) {
          begin_step(*pass, head, tile);
          finish<1>();
          if (is_first_step) copy_keys(*pass, number);
          is_first_step = false;
          begin_output(*pass, head, tile);
        }
      }
      if (is_first_step) {  // no query sees these keys
        finish<0>();
        copy_keys(*pass, number);
        finish<0>();
      }
    }
  }

 private:
  __device__ DocumentPass* pass_at(int number) const {
    return reinterpret_cast<DocumentPass*>(base_ + Memory::kPasses) + number % kDocumentPasses;
  }
  __device__ float* rows_of(int stage) const {
    return reinterpret_cast<float*>(base_ + Memory::kRows + stage * Memory::kRowsOfStage);
  }

  // Where a thread's chunk of its first row goes in a tile. It keeps its place from one group of rows to the next.
  static __device__ uint32_t offset(int thread) {
    const int row = thread / kChunks;
    const int chunk = thread % kChunks;
    return static_cast<uint32_t>(chunk / 8) * kPanelBytes + static_cast<uint32_t>(row * 128) +
           static_cast<uint32_t>(((chunk % 8) ^ (row % 8)) * 16);
  }

  // Starts copying a tile: `rows` tokens from `token` on, zeros behind them.
  __device__ void copy(const HeadsView<const BFloat>& from, int64_t token, int64_t head, int rows,
                       uint32_t tile) const {
    const int thread = forgotten(thread_);
    const int row = thread / kChunks;
    const int chunk = thread % kChunks;
    const BFloat* source = from.row(token + row, head) + chunk * 8;
    const int live = chunk * 8 < from.size ? rows : 0;
    const uint32_t target = shared_ + tile + offset(thread);
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      const bool is_live = row + i * kRows < live;
      copy_async_16(target + static_cast<uint32_t>(i * kRows * 128), is_live ? source : from.data, is_live);
      source += kRows * from.token_stride;
    }
  }

  // When the products are done with the keys of the pass before.
  __device__ void copy_keys(const DocumentPass& pass, int number) {
    wait_for_phase(shared_ + Memory::kKeysEmpty, number % 2 ^ 1);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const int64_t token = pass.k_begin + pass.key_begin + i * kDocumentTile;
      copy(arguments_.key, token, pass.key_head, pass.keys(i), Memory::kKeys + i * Memory::kTile);
      copy(arguments_.value, token, pass.key_head, pass.keys(i), Memory::kValues + i * Memory::kTile);
    }
    commit_copies();
    are_keys_coming_ = true;
  }

  // Queries and output gradients, when the products are done with the stage.
  __device__ void begin_step(const DocumentPass& pass, int64_t head, int tile) {
    wait_for_phase(shared_ + Memory::kEmpty + 8 * next_.index, next_.phase ^ 1);
    const int64_t token = pass.q_begin + tile * kDocumentTile;
    const uint32_t stage = next_.index * Memory::kTile;
    copy(arguments_.query, token, head, pass.rows(tile), Memory::kQueries + stage);
    copy(arguments_.doutput, token, head, pass.rows(tile), Memory::kDoutputs + stage);
    commit_copies();
  }

  // The rest of the step: outputs where row sums are to be made of them, and what each row has of its own.
  __device__ void begin_output(const DocumentPass& pass, int64_t head, int tile) {
    coming_ = next_;
    next_.advance();
    is_step_coming_ = true;
    const int64_t token = pass.q_begin + tile * kDocumentTile;
    sums_ = &arguments_.sums.at(token, head);
    live_rows_ = pass.rows(tile);
    makes_sums_ = pass.is_first(tile);
    if (makes_sums_) copy(arguments_.output, token, head, live_rows_, Memory::kOutput);
    commit_copies();
    const int row = thread_ % kDocumentTile;
    own_ = 0.0f;
    if (thread_ < kDocumentTile) {
      own_ = row < live_rows_ ? arguments_.log_sum_exp.at(token + row, head) * kLog2E : -INFINITY;
      if (own_ == -INFINITY) own_ = INFINITY;
    } else if (!makes_sums_ && row < live_rows_) {
      own_ = sums_[row * arguments_.sums.token_stride];
    }
  }

  // Hands over what is on its way, if anything is. Of the groups of copies committed last, kLater belong to what comes
  // after it.
  template <int kLater>
  __device__ void finish() {
    if (!is_step_coming_ && !are_keys_coming_) return;
    wait_for_copies<kLater>();
    float* rows = rows_of(coming_.index);
    if (is_step_coming_) {
      if (thread_ < kDocumentTile || !makes_sums_) rows[thread_] = own_;
      if (makes_sums_) make_sums(rows + kDocumentTile);
    }
    publish_to_products();
    if (are_keys_coming_) arrive(shared_ + Memory::kKeysFull);
    if (is_step_coming_) arrive(shared_ + Memory::kFull + 8 * coming_.index);
    are_keys_coming_ = is_step_coming_ = false;
  }

  // The thread reads the chunks that it has copied itself.
  __device__ void make_sums(float* sums) const {
    const int thread = forgotten(thread_);
    const uint32_t doutput = shared_ + Memory::kDoutputs + coming_.index * Memory::kTile + offset(thread);
    const uint32_t output = shared_ + Memory::kOutput + offset(thread);
#pragma unroll 1
    for (int i = 0; i < kTimes; ++i) {
      const uint4 left = load_shared_16(doutput + static_cast<uint32_t>(i * kRows * 128));
      const uint4 right = load_shared_16(output + static_cast<uint32_t>(i * kRows * 128));
      float sum = multiply_pairs(left.x, right.x, 0.0f);
      sum = multiply_pairs(left.y, right.y, sum);
      sum = multiply_pairs(left.z, right.z, sum);
      sum = multiply_pairs(left.w, right.w, sum);
#pragma unroll
      for (int distance = kChunks / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
      }
      const int row = thread / kChunks + i * kRows;
      if (thread % kChunks == 0) {
        sums[row] = sum;
        if (row < live_rows_) sums_[row * arguments_.sums.token_stride] = sum;
      }
    }
  }
  static __device__ float multiply_pairs(uint32_t left, uint32_t right, float sum) {
    sum += __uint_as_float(left << 16) * __uint_as_float(right << 16);
    return sum + __uint_as_float(left & 0xFFFF0000u) * __uint_as_float(right & 0xFFFF0000u);
  }

  const DocumentArguments& arguments_;
  uint32_t shared_;
  char* base_;
  int thread_;
  DocumentStage next_;
  // What is on its way.
  bool are_keys_coming_ = false;
  bool is_step_coming_ = false;
  bool makes_sums_ = false;
  DocumentStage coming_;
  int live_rows_ = 0;
  float* sums_ = nullptr;  // of the first row, in the workspace
  float own_ = 0.0f;       // log-sum-exp (threads 0 to 63) or row sum (64 to 127) of the thread's row
};

// ---- the warpgroups that multiply ----

template <int kCount>
__device__ void clear(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = 0.0f;
}

template <int kSize, typename D>
class DocumentProducts {
  using Memory = DocumentMemory<kSize>;

 public:
  __device__ DocumentProducts(const DocumentArguments& arguments, const GradientView<D>& dquery,
                              const GradientView<D>& dkey, const GradientView<D>& dvalue, uint32_t shared, char* base,
                              int warpgroup, int thread)
      : arguments_(arguments),
        dquery_(dquery),
        dkey_(dkey),
        dvalue_(dvalue),
        shared_(shared),
        base_(base),
        warpgroup_(warpgroup),
        thread_(thread) {}

  __device__ void run() {
    DocumentStage stage;
    int step = 0;
    for (int number = 0;; ++number) {
      wait_for_phase(shared_ + Memory::kKeysFull, number % 2);
      const DocumentPass& pass =
          reinterpret_cast<const DocumentPass*>(base_ + Memory::kPasses)[number % kDocumentPasses];
      if (!pass.is_there) return;
      float key_sums[kSize / 2];
      float value_sums[kSize / 2];
      clear(key_sums);
      clear(value_sums);
      Tile before;
#pragma unroll 1
      for (int i = 0; i < arguments_.group; ++i) {
        Tile tile = {pass.head_of_group(i, arguments_.group), pass.first_tile};
#pragma unroll 1
        for (; tile.number < pass.end_tile; ++tile.number) {
          wait_for_phase(shared_ + Memory::kFull + 8 * stage.index, stage.phase);
          if (!is_seen(pass, warpgroup_, tile)) {
            if (before.is_there()) add_queries(pass, before, step - 1);
            arrive_with_dscores(step);
          } else if (before.is_there()) {
            add_tile<true>(pass, tile, stage.index, before, step, key_sums, value_sums);
          } else {
            add_tile<false>(pass, tile, stage.index, before, step, key_sums, value_sums);
          }
          __syncwarp();
          if (thread_ % 32 == 0) arrive(shared_ + Memory::kEmpty + 8 * stage.index);
          before = tile;
          stage.advance();
          ++step;
        }
      }
      if (before.is_there()) add_queries(pass, before, step - 1);
      const int thread = forgotten(thread_);
      __syncwarp();
      if (thread % 32 == 0) arrive(shared_ + Memory::kKeysEmpty);
      const int64_t token = pass.k_begin + pass.key_begin + warpgroup_ * kDocumentTile;
      dkey_.write_tile(key_sums, arguments_.scale, token, pass.key_head, pass.keys(warpgroup_), 0, thread);
      dvalue_.write_tile(value_sums, 1.0f, token, pass.key_head, pass.keys(warpgroup_), 0, thread);
    }
  }

 private:
  // Of queries, of a head of the group.
  struct Tile {
    int query_head = 0;
    int number = -1;
    __device__ bool is_there() const { return number >= 0; }
  };

  // Whether a tile sees any of the keys of a warpgroup.
  static __device__ bool is_seen(const DocumentPass& pass, int warpgroup, const Tile& tile) {
    return uniform(DocumentMask(pass, warpgroup, tile.number).is_any_visible());
  }

  // Adds a tile to dK and dV and makes its dS; meanwhile, dQ of the tile before. The compiler can follow products under
  // way as long as no branches meet between their start and the wait for them.
  template <bool kHasBefore>
  __device__ void add_tile(const DocumentPass& pass, const Tile& tile, int stage, const Tile& before, int step,
                           float (&key_sums)[kSize / 2], float (&value_sums)[kSize / 2]) const {
    const int thread = forgotten(thread_);
    const uint32_t query = shared_ + Memory::kQueries + stage * Memory::kTile;
    const uint32_t doutput = shared_ + Memory::kDoutputs + stage * Memory::kTile;
    const float* log_sum_exps =
        reinterpret_cast<const float*>(base_ + Memory::kRows + stage * Memory::kRowsOfStage) + 2 * (thread % 4);
    float query_sums[kSize / 4];
    float products[32];      // V dO^T
    uint32_t weights[4][4];  // P^T
    {
      float scores[32];  // [key][query]
      fence_registers();
      multiply_rows(scores, shared_ + Memory::kKeys + warpgroup_ * Memory::kTile, query);
      commit_products();
      multiply_rows(products, shared_ + Memory::kValues + warpgroup_ * Memory::kTile, doutput);
      commit_products();
      wait_for_products<1>();
      hold(scores);
      exponentiate(DocumentMask(pass, warpgroup_, tile.number), log_sum_exps, thread, scores);
      pack(scores, weights);
    }
    fence_registers();
    multiply_columns(value_sums, weights, doutput);
    commit_products();
    wait_for_products<1>();
    hold(products);
    const float* deltas = log_sum_exps + kDocumentTile;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(deltas + 8 * n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair = weights[n / 2][n % 2 * 2 + half];
        float* dscore = products + 4 * n + 2 * half;
        dscore[0] = __uint_as_float(pair << 16) * (dscore[0] - delta.x);
        dscore[1] = __uint_as_float(pair & 0xFFFF0000u) * (dscore[1] - delta.y);
      }
    }
    uint32_t dscore_words[4][4];  // dS^T
    pack(products, dscore_words);
    // Where the lane's row of the first fragment goes.
    const int row = thread / 32 * 16 + thread % 16;
    const uint32_t place = shared_ + Memory::kDscores + (step % 2 * 2 + warpgroup_) * kPanelBytes +
                           static_cast<uint32_t>(row * 128 + ((thread % 32 / 16) ^ (row % 8)) * 16);
    if constexpr (kHasBefore) wait_for_dscores(step - 1);
#pragma unroll
    for (int k = 0; k < 4; ++k) store_matrices(place ^ static_cast<uint32_t>(k << 5), dscore_words[k]);
    publish_to_products();
    wait_for_products<0>();
    hold(weights);
    hold(value_sums);
    if constexpr (kHasBefore) {
      begin_queries(pass, before, query_sums);
      multiply_queries(pass, before, step - 1, query_sums);
    }
    fence_registers();
    multiply_columns(key_sums, dscore_words, query);
    commit_products();
    if constexpr (kHasBefore) {
      wait_for_products<1>();
      hold(query_sums);
    }
    arrive_with_dscores(step);
    if constexpr (kHasBefore) write_queries(pass, before, query_sums);
    wait_for_products<0>();
    hold(dscore_words);
    hold(key_sums);
  }

  // dS of the warpgroup is there, and its dQ of the step before is done.
  __device__ void arrive_with_dscores(int step) const {
    arrive(shared_ + Memory::kDscoresFull + 16 * (step % 2) + 8 * warpgroup_);
  }
  // Of both warpgroups; then the dS of the step before that may be written over.
  __device__ void wait_for_dscores(int step) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      wait_for_phase(shared_ + Memory::kDscoresFull + 16 * (step % 2) + 8 * i, step / 2 % 2);
    }
  }

  // What the passes before have left of a tile's dQ; its sums are undefined where there were none.
  __device__ void begin_queries(const DocumentPass& pass, const Tile& tile, float (&sums)[kSize / 4]) const {
    clear(sums);
    if (pass.is_first(tile.number)) return;
    const float4* own = waiting(tile);
#pragma unroll
    for (int i = 0; i < kSize / 16; ++i) {
      const float4 word = own[i * kWarpgroup];
      sums[4 * i] = word.x;
      sums[4 * i + 1] = word.y;
      sums[4 * i + 2] = word.z;
      sums[4 * i + 3] = word.w;
    }
  }
  // Starts the products of a tile's dQ. The dS of both warpgroups are there.
  __device__ void multiply_queries(const DocumentPass& pass, const Tile& tile, int step,
                                   float (&sums)[kSize / 4]) const {
    const uint32_t dscores = shared_ + Memory::kDscores + step % 2 * 2 * kPanelBytes;
    fence_registers();
    if (is_seen(pass, warpgroup_, tile)) {
      multiply_dscores(sums, dscores, warpgroup_, true);
      if (is_seen(pass, 1 - warpgroup_, tile)) multiply_dscores(sums, dscores, 1 - warpgroup_, true);
    } else {
      multiply_dscores(sums, dscores, 1 - warpgroup_, true);
    }
    commit_products();
  }
  // Leaves dQ to the passes that follow, or writes it after the last one.
  __device__ void write_queries(const DocumentPass& pass, const Tile& tile, const float (&sums)[kSize / 4]) const {
    if (pass.is_last(tile.number)) {
      dquery_.write_tile(sums, arguments_.scale, pass.q_begin + tile.number * kDocumentTile,
                         pass.key_head * arguments_.group + tile.query_head, pass.rows(tile.number),
                         warpgroup_ * (kSize / 2), forgotten(thread_));
      return;
    }
    float4* own = waiting(tile);
#pragma unroll
    for (int i = 0; i < kSize / 16; ++i) {
      own[i * kWarpgroup] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
    }
  }
  __device__ void add_queries(const DocumentPass& pass, const Tile& tile, int step) const {
    float sums[kSize / 4];
    wait_for_dscores(step);
    begin_queries(pass, tile, sums);
    multiply_queries(pass, tile, step, sums);
    wait_for_products<0>();
    hold(sums);
    write_queries(pass, tile, sums);
  }
  // Where the thread's sums of a tile wait.
  __device__ float4* waiting(const Tile& tile) const {
    return arguments_.waiting +
           ((blockIdx.x * arguments_.group + tile.query_head) * arguments_.waiting_tiles + tile.number) *
               (kDocumentTile * kSize / 4) +
           warpgroup_ * (kSize / 16 * kWarpgroup) + forgotten(thread_);
  }

  // products (64 x 64) = rows of `left` * rows of `right`, transposed.
  static __device__ void multiply_rows(float (&products)[32], uint32_t left, uint32_t right) {
#pragma unroll
    for (int k = 0; k < kSize / 16; ++k) {
      const uint32_t offset = k / 4 * kPanelBytes + k % 4 * 32;
      multiply_shared<false, false>(products, operand(left, offset), operand(right, offset), k > 0);
    }
  }
  // sums (64 x kSize) += weights (64 x 64) * rows of `right`.
  static __device__ void multiply_columns(float (&sums)[kSize / 2], const uint32_t (&weights)[4][4], uint32_t right) {
#pragma unroll
    for (int k = 0; k < 4; ++k) multiply_registers<true>(sums, weights[k], operand(right, k * 2048));
  }
  // The warpgroup's elements of dQ = or += dS * K for the 64 keys of a warpgroup.
  __device__ void multiply_dscores(float (&sums)[kSize / 4], uint32_t dscores, int keys_of, bool adds) const {
    const uint32_t left = dscores + keys_of * kPanelBytes;
    const uint32_t right = shared_ + Memory::kKeys + keys_of * Memory::kTile +
                           (kSize == 128 ? warpgroup_ * kPanelBytes : static_cast<uint32_t>(warpgroup_ * 64));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply_shared<true, true>(sums, operand(left, k * 2048), operand(right, k * 2048), adds || k > 0);
    }
  }

  // P^T of scores K Q^T.
  __device__ void exponentiate(const DocumentMask& mask, const float* log_sum_exps, int thread,
                               float (&scores)[32]) const {
    const float scale = arguments_.scale * kLog2E;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 log_sum_exp = *reinterpret_cast<const float2*>(log_sum_exps + 8 * n);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int k = 4 * n + j;
        scores[k] = exponential_2(scores[k] * scale - (j % 2 == 0 ? log_sum_exp.x : log_sum_exp.y));
      }
    }
    if (mask.is_all_visible()) return;
    const int row = thread / 32 * 16 + thread % 32 / 4;
    // Element (r, c) is seen when r - c - lower - 1 is in [0, upper - lower).
    const int first = row - 2 * (thread % 4) - mask.lower - 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t width = row + 8 * half < mask.keys ? static_cast<uint32_t>(mask.upper - mask.lower) : 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const bool is_visible = static_cast<uint32_t>(first + 8 * half - 8 * n - j) < width;
          if (!is_visible) scores[4 * n + 2 * half + j] = 0.0f;
        }
      }
    }
  }

  // Accumulators of 64 x 64 as left operands of four products, rounded.
  static __device__ void pack(const float (&sums)[32], uint32_t (&words)[4][4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j) words[k][j] = pack_pair(sums[8 * k + 2 * j], sums[8 * k + 2 * j + 1]);
    }
  }

  const DocumentArguments& arguments_;
  const GradientView<D>& dquery_;
  const GradientView<D>& dkey_;
  const GradientView<D>& dvalue_;
  uint32_t shared_;
  char* base_;
  int warpgroup_;
  int thread_;
};

// The work of one block, with kAllocatedBytes of shared memory.
template <int kSize, typename D>
__device__ void document_gradients(const DocumentArguments& arguments, const GradientView<D>& dquery,
                                   const GradientView<D>& dkey, const GradientView<D>& dvalue, void* memory) {
  using Memory = DocumentMemory<kSize>;
  const uint32_t shared = (shared_address(memory) + 1023) / 1024 * 1024;
  char* const base = static_cast<char*>(memory) + (shared - shared_address(memory));
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  if (threadIdx.x == 0) {
    constexpr int kMultiplyingWarps = (kDocumentThreads - kWarpgroup) / 32;
    for (int i = 0; i < kDocumentStages; ++i) {
      init_barrier(shared + Memory::kFull + 8 * i, kWarpgroup);
      init_barrier(shared + Memory::kEmpty + 8 * i, kMultiplyingWarps);
    }
    for (int i = 0; i < 4; ++i) init_barrier(shared + Memory::kDscoresFull + 8 * i, kWarpgroup);
    init_barrier(shared + Memory::kKeysFull, kWarpgroup);
    init_barrier(shared + Memory::kKeysEmpty, kMultiplyingWarps);
  }
  __syncthreads();
  if (warpgroup == 2) {
    give_registers<kCopyingRegisters>();
    DocumentCopies<kSize>(arguments, shared, base, thread).run();
  } else {
    take_registers<kMultiplyingRegisters>();
    DocumentProducts<kSize, D>(arguments, dquery, dkey, dvalue, shared, base, warpgroup, thread).run();
  }
}

}  // namespace ithaca::cuda
