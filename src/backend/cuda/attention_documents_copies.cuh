// The warpgroup of the document kernel (attention_documents.cuh) that copies: it describes passes, brings their keys
// and tiles of queries to shared memory, as many ahead of the products as there are stages, and makes the row sums dO .
// O of the tiles that a pass is the first to see. Internal to backend/cuda.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/attention_documents_pass.cuh"

namespace ithaca::cuda {

// Number of the named barrier of the threads that copy.
inline constexpr int kCopiesMeet = 1;

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
    // Every key is seen by a query, so every pass has a step.
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
          begin_output(*pass, head, tile);
          is_first_step = false;
        }
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
    own_ = thread_ < kDocumentTile ? -INFINITY : 0.0f;
    if (row >= live_rows_) return;
    if (thread_ < kDocumentTile) {
      own_ = arguments_.log_sum_exp.at(token + row, head);
    } else if (!makes_sums_) {
      // Of another thread, in an earlier pass, with which the products were done before copy_keys() went on.
      own_ = sums_[row * arguments_.sums.token_stride];
    }
  }

  // Hands over what is on its way, if anything is. Of the groups of copies committed last, kLater belong to what comes
  // after it.
  template <int kLater>
  __device__ void finish() {
    if (!is_step_coming_) return;
    wait_for_copies<kLater>();
    float* rows = rows_of(coming_.index);
    if (thread_ < kDocumentTile) {
      rows[thread_] = own_ == -INFINITY ? INFINITY : own_ * kLog2E;
    } else if (!makes_sums_) {
      rows[thread_] = own_;
    }
    if (makes_sums_) make_sums(rows + kDocumentTile);
    publish_to_products();
    if (are_keys_coming_) arrive(shared_ + Memory::kKeysFull);
    arrive(shared_ + Memory::kFull + 8 * coming_.index);
    are_keys_coming_ = is_step_coming_ = false;
  }

  // The thread reads the chunks that it has copied itself.
  __device__ void make_sums(float* sums) const {
    const int thread = forgotten(thread_);
    const uint32_t doutput = shared_ + Memory::kDoutputs + coming_.index * Memory::kTile + offset(thread);
    const uint32_t output = shared_ + Memory::kOutput + offset(thread);
    float parts[kTimes];  // of its rows
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      const uint4 left = load_shared_16(doutput + static_cast<uint32_t>(i * kRows * 128));
      const uint4 right = load_shared_16(output + static_cast<uint32_t>(i * kRows * 128));
      const float first = multiply_pairs(left.y, right.y, multiply_pairs(left.x, right.x, 0.0f));
      const float second = multiply_pairs(left.w, right.w, multiply_pairs(left.z, right.z, 0.0f));
      parts[i] = forgotten(first + second);  // a few chunks at a time: there are no registers for all
    }
    // The lanes of a row halve the rows between them until each two have one.
    static_assert(kTimes * 2 == kChunks);
#pragma unroll
    for (int rows = kTimes / 2; rows > 0; rows /= 2) {
      const bool takes_later = (thread & 2 * rows) != 0;
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const float given = takes_later ? parts[i] : parts[i + rows];
        const float kept = takes_later ? parts[i + rows] : parts[i];
        parts[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, 2 * rows);
      }
    }
    const float sum = parts[0] + __shfl_xor_sync(0xFFFFFFFFu, parts[0], 1);
    const int row = thread / kChunks + thread % kChunks / 2 * kRows;
    if (thread % 2 == 0) {
      sums[row] = sum;
      if (row < live_rows_) sums_[row * arguments_.sums.token_stride] = sum;
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

}  // namespace ithaca::cuda
