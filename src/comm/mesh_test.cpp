#include "comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

#include "comm/comm_testing.h"

namespace ithaca {
namespace {

using testing::TestRank;

MeshSizes sizes_of(int dp_replicate, int dp_shard, int ring, int ulysses, int tp) {
  return {dp_replicate, dp_shard, ring, ulysses, tp};
}

const std::vector<MeshSizes>& some_shapes() {
  static const std::vector<MeshSizes> kShapes = {
      sizes_of(1, 1, 1, 1, 1), sizes_of(2, 1, 1, 1, 1), sizes_of(1, 3, 1, 1, 1), sizes_of(1, 1, 5, 1, 1),
      sizes_of(1, 1, 1, 4, 1), sizes_of(1, 1, 1, 1, 2), sizes_of(1, 1, 2, 2, 1), sizes_of(2, 1, 2, 2, 1),
      sizes_of(1, 2, 3, 1, 1), sizes_of(2, 2, 2, 1, 1), sizes_of(1, 2, 1, 2, 2), sizes_of(2, 1, 1, 3, 1)};
  return kShapes;
}

TEST(MeshSizes, Describe) {
  const MeshSizes sizes = sizes_of(1, 3, 2, 4, 1);
  EXPECT_EQ(sizes.describe(), "dp_replicate 1 x dp_shard 3 x ring 2 x ulysses 4 x tp 1 = 24 ranks");
  EXPECT_EQ(sizes.cp(), 8);
  EXPECT_EQ(sizes.dp(), 3);
  EXPECT_EQ(sizes.ranks(), 24);
}

TEST(MeshCoordinates, CountLastDirectionFastest) {
  const MeshSizes sizes = sizes_of(2, 3, 2, 4, 5);
  int rank = 0;
  for (int dp_replicate = 0; dp_replicate < 2; ++dp_replicate) {
    for (int dp_shard = 0; dp_shard < 3; ++dp_shard) {
      for (int ring = 0; ring < 2; ++ring) {
        for (int ulysses = 0; ulysses < 4; ++ulysses) {
          for (int tp = 0; tp < 5; ++tp, ++rank) {
            const MeshCoordinates at = mesh_coordinates(sizes, rank);
            EXPECT_EQ(std::tie(at.dp_replicate, at.dp_shard, at.ring, at.ulysses, at.tp),
                      std::tie(dp_replicate, dp_shard, ring, ulysses, tp));
            EXPECT_EQ(mesh_rank(sizes, at), rank);
          }
        }
      }
    }
  }
  EXPECT_EQ(rank, sizes.ranks());
  EXPECT_THROW(mesh_coordinates(sizes, rank), ContractError);
  EXPECT_THROW(mesh_coordinates(sizes, -1), ContractError);
}

// The world ranks of a group, in its order, by an all_gather in it.
std::vector<int64_t> members(const TestRank& self, Communicator& group) {
  std::vector<int64_t> ranks(static_cast<size_t>(group.size()), -1);
  std::vector<Tensor> receive;
  receive.reserve(ranks.size());
  for (int64_t& rank : ranks) receive.push_back(Tensor::contiguous(&rank, DType::int64, {1}));
  int64_t own = self.rank;
  group.all_gather(self.backend.compute_stream(), Tensor::contiguous(&own, DType::int64, {1}), receive);
  self.finish();
  EXPECT_EQ(ranks[static_cast<size_t>(group.rank())], self.rank);
  return ranks;
}

TEST(Mesh, GroupsHoldTheRanksThatAgreeInAllOtherDirections) {
  for (const MeshSizes& sizes : some_shapes()) {
    SCOPED_TRACE(sizes.describe());
    ThreadRankOptions options;
    options.timeout_seconds = 30.0;
    run_thread_ranks(sizes.ranks(), options, [&](ThreadRank& thread_rank) {
      CpuBackendOptions backend_options;
      backend_options.memory_limit_bytes = backend_options.host_memory_limit_bytes = 1 << 20;
      const auto backend = make_cpu_backend(backend_options);
      Mesh mesh(thread_rank.connect(*backend), sizes);
      std::deque<std::shared_ptr<void>> kept;
      TestRank self{thread_rank.rank(), thread_rank.size(), *backend, mesh.world(), kept};
      const MeshCoordinates own = mesh.coordinates();
      EXPECT_EQ(mesh_rank(sizes, own), self.rank);
      const auto expected = [&](const auto& is_member) {
        std::vector<int64_t> ranks;
        for (int rank = 0; rank < sizes.ranks(); ++rank) {
          if (is_member(mesh_coordinates(sizes, rank))) ranks.push_back(rank);
        }
        return ranks;
      };
      const auto same_dp = [&](const MeshCoordinates& at) {
        return at.dp_replicate == own.dp_replicate && at.dp_shard == own.dp_shard;
      };
      using At = const MeshCoordinates&;
      EXPECT_EQ(members(self, mesh.ring()),
                expected([&](At at) { return same_dp(at) && at.ulysses == own.ulysses && at.tp == own.tp; }));
      EXPECT_EQ(members(self, mesh.ulysses()),
                expected([&](At at) { return same_dp(at) && at.ring == own.ring && at.tp == own.tp; }));
      EXPECT_EQ(members(self, mesh.cp()), expected([&](At at) { return same_dp(at) && at.tp == own.tp; }));
      EXPECT_EQ(members(self, mesh.dp()),
                expected([&](At at) { return at.ring == own.ring && at.ulysses == own.ulysses && at.tp == own.tp; }));
      EXPECT_EQ(members(self, mesh.gradient()), expected([&](At at) { return at.tp == own.tp; }));
      EXPECT_EQ(members(self, mesh.shard()),
                expected([&](At at) { return at.dp_replicate == own.dp_replicate && at.tp == own.tp; }));
      EXPECT_EQ(members(self, mesh.replicate()), expected([&](At at) {
                  return at.dp_shard == own.dp_shard && at.ring == own.ring && at.ulysses == own.ulysses &&
                         at.tp == own.tp;
                }));
      EXPECT_EQ(members(self, mesh.tp()),
                expected([&](At at) { return same_dp(at) && at.ring == own.ring && at.ulysses == own.ulysses; }));
      // Ranks of groups are the coordinates.
      EXPECT_EQ(mesh.ring().rank(), own.ring);
      EXPECT_EQ(mesh.ulysses().rank(), own.ulysses);
      EXPECT_EQ(mesh.tp().rank(), own.tp);
      EXPECT_EQ(mesh.cp().rank(), mesh.cp_rank());
      EXPECT_EQ(mesh.dp().rank(), mesh.dp_rank());
      EXPECT_EQ(mesh.gradient().rank(), mesh.dp_rank() * sizes.cp() + mesh.cp_rank());
      EXPECT_EQ(mesh.shard().rank(), own.dp_shard * sizes.cp() + mesh.cp_rank());
      EXPECT_EQ(mesh.replicate().rank(), own.dp_replicate);
    });
  }
}

TEST(Mesh, ThatDoesNotFitTheRanksSpellsOutTheArithmetic) {
  ThreadRankOptions options;
  const auto run = [&](const MeshSizes& sizes) {
    run_thread_ranks(3, options, [&](ThreadRank& thread_rank) {
      CpuBackendOptions backend_options;
      backend_options.memory_limit_bytes = backend_options.host_memory_limit_bytes = 1 << 20;
      const auto backend = make_cpu_backend(backend_options);
      const Mesh mesh(thread_rank.connect(*backend), sizes);
    });
  };
  try {
    run(sizes_of(1, 1, 2, 2, 1));
    FAIL() << "3 ranks cannot be 2 x 2";
  } catch (const ConfigurationError& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("the mesh is dp_replicate 1 x dp_shard 1 x ring 2 x ulysses 2 x tp 1 = 4 ranks, "
                                     "but there are 3; start 4, or choose sizes whose product is 3"));
  }
  EXPECT_THROW(run(sizes_of(1, 1, 0, 3, 1)), ConfigurationError);
  EXPECT_THROW(run(sizes_of(1 << 20, 1 << 20, 1, 1, 1)), ConfigurationError);
}

}  // namespace
}  // namespace ithaca
