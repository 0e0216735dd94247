// Mesh: the ranks as a grid dp_replicate x dp_shard x ring x ulysses x tp (last one fastest), with a communicator for
// every direction.
//
// cp = ring x ulysses: the ranks that share one sequence. Data-parallel ranks (dp_replicate x dp_shard) see different
// samples. Thread-safety: as Communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace ithaca {

struct MeshSizes {
  int dp_replicate = 1;
  int dp_shard = 1;
  int ring = 1;
  int ulysses = 1;
  int tp = 1;

  int cp() const { return ring * ulysses; }
  int dp() const { return dp_replicate * dp_shard; }
  int ranks() const { return dp() * cp() * tp; }
  bool operator==(const MeshSizes&) const = default;
  // "dp_replicate 1 x dp_shard 1 x ring 2 x ulysses 2 x tp 1 = 4 ranks"
  std::string describe() const;
};

struct MeshCoordinates {
  int dp_replicate = 0;
  int dp_shard = 0;
  int ring = 0;
  int ulysses = 0;
  int tp = 0;
};

// The coordinates of a world rank, and back.
MeshCoordinates mesh_coordinates(const MeshSizes& sizes, int rank);
int mesh_rank(const MeshSizes& sizes, const MeshCoordinates& coordinates);

class Mesh {
 public:
  // Collective over `world`, whose size must be sizes.ranks() (ConfigurationError otherwise).
  Mesh(std::unique_ptr<Communicator> world, const MeshSizes& sizes);

  const MeshSizes& sizes() const { return sizes_; }
  const MeshCoordinates& coordinates() const { return coordinates_; }
  // Which of the data-parallel ranks this is, in [0, sizes().dp()).
  int dp_rank() const { return coordinates_.dp_replicate * sizes_.dp_shard + coordinates_.dp_shard; }
  // Which of the ranks of the sequence this is, in [0, sizes().cp()): ring * ulysses_size + ulysses.
  int cp_rank() const { return coordinates_.ring * sizes_.ulysses + coordinates_.ulysses; }

  Communicator& world() { return *world_; }
  Communicator& ring() { return *ring_; }          // same sequence, same head shard
  Communicator& ulysses() { return *ulysses_; }    // same ring position
  Communicator& cp() { return *cp_; }              // same sequence
  Communicator& dp() { return *dp_; }              // same position in the sequence, other samples
  Communicator& gradient() { return *gradient_; }  // dp x cp: the ranks whose weight gradients are summed
  // dp_shard x cp: the ranks that share optimizer state between them. gradient() itself where dp_replicate is 1.
  Communicator& shard() { return shard_ != nullptr ? *shard_ : *gradient_; }
  Communicator& replicate() { return *replicate_; }  // same place in shard(), another dp_replicate
  Communicator& tp() { return *tp_; }
  // By this rank, over all groups.
  int64_t total_bytes_sent() const;

 private:
  MeshSizes sizes_;
  MeshCoordinates coordinates_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<Communicator> ring_, ulysses_, cp_, dp_, gradient_, shard_, replicate_, tp_;
};

}  // namespace ithaca
