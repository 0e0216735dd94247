#include "comm/nccl_world.h"

#include <fmt/format.h>

#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "comm/collective_call.h"

namespace ithaca {

namespace {

// A failure ends all ranks this much later at most; looking costs microseconds.
constexpr std::chrono::milliseconds kLookEvery{20};

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

NcclWorld::NcclWorld(std::shared_ptr<RankWorld> world)
    : world_(std::move(world)),
      board_(std::make_shared<MeetingBoard>(world_, "transport nccl", all_ranks(world_->size()))),
      ranks_(static_cast<size_t>(world_->size())),
      orders_(static_cast<size_t>(world_->size())) {}

NcclWorld::~NcclWorld() {
  if (!watcher_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

void NcclWorld::connect(int rank, DeviceMovement& movement) {
  ranks_[static_cast<size_t>(rank)] = {&movement, movement.failure_handle()};
  const auto call = std::make_shared<CollectiveCall>();
  call->collective = Collective::barrier;
  const auto ticket = board_->meet(rank, call);
  ticket->wait_for_calls();
  ticket->close();
  if (rank == 0) {
    std::vector<DeviceMovement*> movements;
    for (const Rank& each : ranks_) movements.push_back(each.movement);
    auto exchange = movement.make_exchange(movements);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      exchange_ = std::move(exchange);
      watcher_ = std::thread([this] { watch(); });
    }
    changed_.notify_all();
    return;
  }
  // However long the library takes, which the world's timeout is not about.
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kLookEvery, [this] { return exchange_ != nullptr; })) world_->throw_if_failed();
}

void NcclWorld::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kLookEvery, [this] { return is_stopping_; })) {
    if (!world_->has_failed()) look_for_failures();
    if (world_->has_failed()) return end_everything();
  }
}

void NcclWorld::look_for_failures() {
  if (const auto failure = exchange_->failure()) {
    const std::string what = order(failure->rank).describe_oldest();
    world_->found(failure->rank, what.empty() ? failure->text : fmt::format("{}: {}", what, failure->text));
  }
  const double timeout = world_->timeout_seconds();
  for (int rank = 0; rank < world_->size(); ++rank) {
    try {
      const std::optional<std::string> stalled = order(rank).find_stalled(*exchange_, timeout, world_->has_host_work());
      if (!stalled) continue;
      world_->found(rank, fmt::format("{}: the device of rank {} has waited {} in it for other ranks", *stalled, rank,
                                      world_->describe_timeout()));
    } catch (...) {  // the rank's device has failed
      world_->fail(rank, std::current_exception());
    }
  }
}

void NcclWorld::end_everything() noexcept {
  std::exception_ptr cause;
  try {
    world_->throw_if_failed();
  } catch (...) {
    cause = std::current_exception();
  }
  // In this order: who waits on the host wakes when its device has stopped, and must not take that for success.
  for (const Rank& rank : ranks_) rank.fail(cause);
  exchange_->abort();
}

}  // namespace ithaca
