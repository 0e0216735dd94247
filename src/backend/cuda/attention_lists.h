// What is kept of task lists between calls: their classification, and their index arrays on the device.
//
// Every layer of a step uses the same few lists, so they are found by content. The arrays live in one pool that is
// started over when it is full: work that reads the old content is ahead of the new uploads on the same stream.
// Internal to backend/cuda. Thread-safety: one thread, one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/attention_calls.h"
#include "backend/cuda/attention_kernels.h"
#include "backend/cuda/cudnn_attention.h"

namespace ithaca::cuda {

// A block of the pool. It is gone when the pool has been started over since.
struct IndexBlock {
  std::byte* address = nullptr;
  uint64_t generation = 0;
  std::shared_ptr<void> own;  // blocks too large for the pool
};

// A call of a list, with what has been uploaded for it.
struct PreparedCall {
  AttentionCall call;
  std::vector<TokenRange> queries;  // that it writes
  std::vector<TokenRange> keys;     // whose gradients it writes
  int64_t pairs = 0;                // visible ones
  int64_t largest_task_pairs = 0;   // of the task that has most
  int64_t task_count = 0;

  // Strides, batch, first query, first key.
  using RaggedKey = std::tuple<RaggedTokenStrides, int64_t, int64_t, int64_t>;
  std::map<RaggedKey, IndexBlock> ragged;
  // Tasks and tiles by queries, then by keys.
  IndexBlock tasks;
  int64_t query_tiles = 0;
  int64_t key_tiles = 0;
  // Of a call whose tasks share neither queries nor keys and are short enough for the document kernel: the most queries
  // of one task; otherwise 0.
  int64_t longest_document = 0;
  IndexBlock documents;

  // First and end of everything that the call touches.
  TokenRange query_span() const { return {queries.front().begin, queries.back().end}; }
  TokenRange key_span() const { return {keys.front().begin, keys.back().end}; }
  bool covers_query_span() const { return queries.size() == 1; }
  bool covers_key_span() const { return keys.size() == 1; }
};

class AttentionLists {
 public:
  explicit AttentionLists(WorkspaceProvider workspace) : workspace_(std::move(workspace)) {}

  // The calls of a list; valid until the next call of find().
  std::vector<PreparedCall>& find(std::span<const AttentionTask> tasks, const AttentionCallRules& rules);

  // The index arrays of a ragged call for tensors of these token strides; offsets count from the first query and key
  // given. Valid for work enqueued on `stream` before the next call of this class.
  CudnnRaggedArrays ragged_arrays(PreparedCall& prepared, const RaggedTokenStrides& strides, int64_t batch,
                                  int64_t first_query, int64_t first_key, cudaStream_t stream);
  // The tiles of any call (also of one that a fused kernel was meant for). Valid as above.
  struct Tiles {
    TaskTiles by_query;
    TaskTiles by_key;
  };
  Tiles tiles(PreparedCall& prepared, cudaStream_t stream);
  // The tasks of a call with a longest_document. Valid as above.
  DocumentTasks documents(PreparedCall& prepared, cudaStream_t stream);

  int64_t uploads() const { return uploads_; }

 private:
  // Makes `block` one of `bytes` bytes. True when its content must be written.
  bool provide(IndexBlock& block, int64_t bytes, cudaStream_t stream);

  WorkspaceProvider workspace_;
  std::shared_ptr<void> pool_;
  int64_t pool_used_ = 0;
  uint64_t generation_ = 1;
  int64_t uploads_ = 0;
  std::unordered_map<std::string, std::vector<PreparedCall>> lists_;
  int64_t tasks_kept_ = 0;
};

}  // namespace ithaca::cuda
