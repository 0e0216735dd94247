#include "comm/mesh.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace ithaca {

std::string MeshSizes::describe() const {
  return fmt::format("dp_replicate {} x dp_shard {} x ring {} x ulysses {} x tp {} = {} rank{}", dp_replicate, dp_shard,
                     ring, ulysses, tp, ranks(), ranks() == 1 ? "" : "s");
}

namespace {

void check_sizes(const MeshSizes& sizes) {
  const std::array<std::pair<const char*, int>, 5> named = {{{"dp_replicate", sizes.dp_replicate},
                                                             {"dp_shard", sizes.dp_shard},
                                                             {"ring", sizes.ring},
                                                             {"ulysses", sizes.ulysses},
                                                             {"tp", sizes.tp}}};
  int64_t ranks = 1;
  for (const auto& [name, size] : named) {
    if (size < 1)
      throw ConfigurationError(fmt::format("mesh: {} is {}, but every size must be at least 1", name, size));
    ranks *= size;
    if (ranks > std::numeric_limits<int>::max()) throw ConfigurationError("mesh: more ranks than can be counted");
  }
}

}  // namespace

MeshCoordinates mesh_coordinates(const MeshSizes& sizes, int rank) {
  require(0 <= rank && rank < sizes.ranks(), fmt::format("rank {} is not on the mesh {}", rank, sizes.describe()));
  MeshCoordinates coordinates;
  coordinates.tp = rank % sizes.tp;
  rank /= sizes.tp;
  coordinates.ulysses = rank % sizes.ulysses;
  rank /= sizes.ulysses;
  coordinates.ring = rank % sizes.ring;
  rank /= sizes.ring;
  coordinates.dp_shard = rank % sizes.dp_shard;
  coordinates.dp_replicate = rank / sizes.dp_shard;
  return coordinates;
}

int mesh_rank(const MeshSizes& sizes, const MeshCoordinates& coordinates) {
  int rank = coordinates.dp_replicate;
  rank = rank * sizes.dp_shard + coordinates.dp_shard;
  rank = rank * sizes.ring + coordinates.ring;
  rank = rank * sizes.ulysses + coordinates.ulysses;
  return rank * sizes.tp + coordinates.tp;
}

Mesh::Mesh(std::unique_ptr<Communicator> world, const MeshSizes& sizes) : sizes_(sizes), world_(std::move(world)) {
  check_sizes(sizes);
  if (world_->size() != sizes.ranks()) {
    throw ConfigurationError(
        fmt::format("the mesh is {}, but there {} {}; start {}, or choose sizes whose product is {}", sizes.describe(),
                    world_->size() == 1 ? "is" : "are", world_->size(), sizes.ranks(), world_->size()));
  }
  const int rank = world_->rank();
  coordinates_ = mesh_coordinates(sizes, rank);
  // The group along some directions is made of the ranks that agree in all others: its colour is the smallest of them.
  const auto group_along = [&](std::string_view name, auto&& clear_directions) {
    MeshCoordinates first = coordinates_;
    clear_directions(first);
    return world_->split(mesh_rank(sizes, first), rank, name);
  };
  ring_ = group_along("ring", [](MeshCoordinates& at) { at.ring = 0; });
  ulysses_ = group_along("ulysses", [](MeshCoordinates& at) { at.ulysses = 0; });
  cp_ = group_along("cp", [](MeshCoordinates& at) { at.ring = at.ulysses = 0; });
  dp_ = group_along("dp", [](MeshCoordinates& at) { at.dp_replicate = at.dp_shard = 0; });
  gradient_ = group_along("gradient", [](MeshCoordinates& at) {
    at.dp_replicate = at.dp_shard = 0;
    at.ring = at.ulysses = 0;
  });
  if (sizes.dp_replicate > 1) {
    shard_ = group_along("shard", [](MeshCoordinates& at) { at.dp_shard = at.ring = at.ulysses = 0; });
  }
  replicate_ = group_along("replicate", [](MeshCoordinates& at) { at.dp_replicate = 0; });
  tp_ = group_along("tp", [](MeshCoordinates& at) { at.tp = 0; });
}

int64_t Mesh::total_bytes_sent() const {
  int64_t total = 0;
  for (const auto* group : {&world_, &ring_, &ulysses_, &cp_, &dp_, &gradient_, &shard_, &replicate_, &tp_}) {
    if (*group != nullptr) total += (*group)->traffic().total_bytes_sent();
  }
  return total;
}

}  // namespace ithaca
