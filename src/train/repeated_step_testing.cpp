#include "train/repeated_step_testing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>

#include "base/random.h"
#include "train/hooked_schedule.h"
#include "train/initialize.h"

namespace ithaca::testing {

namespace {

// Random whole numbers and waits, in a fixed order.
class Dice {
 public:
  Dice(uint64_t seed, const std::string& name) : random_(seed, name) {}
  // Below `end`.
  int64_t below(int64_t end) { return static_cast<int64_t>(random_.uniform(drawn_++) * static_cast<double>(end)); }
  void sleep_below(int64_t microseconds) { sleep(below(microseconds)); }
  static void sleep(int64_t microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

 private:
  RandomStream random_;
  uint64_t drawn_ = 0;
};

// Other work of a device, in bursts of random lengths, on two streams: products of matrices and copies.
void keep_busy(const BackendChoice& choice, int device, int devices, uint64_t seed, const std::atomic<bool>& stop) {
  const bool is_gpu = choice.kind == BackendKind::cuda;
  const int64_t size = is_gpu ? 2048 : 48;
  const int64_t most_elements = is_gpu ? int64_t{1} << 23 : int64_t{1} << 12;
  const std::unique_ptr<Backend> backend = make_backend(choice, device, devices, int64_t{1} << 27);
  Stream& compute = backend->compute_stream();
  Stream& communication = backend->communication_stream();
  const auto allocate = [&](const Extents& extents, DType dtype, Stream& stream) {
    Buffer buffer = backend->arena(Tier::device).allocate("load", MemoryClass::workspace, dtype, extents, stream);
    backend->fill(stream, {buffer.tensor(), 0.0});
    return buffer;
  };
  const Buffer a = allocate({size, size}, backend->compute_dtype(), compute);
  const Buffer b = allocate({size, size}, backend->compute_dtype(), compute);
  const Buffer c = allocate({size, size}, DType::float32, compute);
  const Buffer from = allocate({most_elements}, DType::float32, communication);
  const Buffer to = allocate({most_elements}, DType::float32, communication);
  Dice dice(seed, fmt::format("load of device {}", device));
  while (!stop) {
    for (int64_t left = 1 + dice.below(8); left > 0; --left) {
      if (dice.below(2) == 0) {
        const int64_t rows = size / 8 * (1 + dice.below(8));
        Gemm product;
        product.a = a.tensor().slice(0, 0, rows);
        product.b = b.tensor();
        product.c = c.tensor().slice(0, 0, rows);
        backend->gemm(compute, product);
      } else {
        const int64_t elements = 1 + dice.below(most_elements);
        backend->copy(communication, {from.tensor().slice(0, 0, elements), to.tensor().slice(0, 0, elements)});
      }
    }
    for (Stream* stream : {&compute, &communication}) backend->finish(backend->record(*stream));
    dice.sleep_below(300);
  }
}

// Keeps the devices of `ranks` ranks busy as long as it lives.
class Load {
 public:
  Load(const BackendChoice& choice, int ranks, uint64_t seed) {
    const int devices = std::clamp(choice.devices, 1, ranks);
    for (int device = 0; device < devices; ++device) {
      threads_.emplace_back([=, this] {
        try {
          keep_busy(choice, device, devices, seed, stop_);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "the load of device " << device << ": " << error.what();
        }
      });
    }
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// Holds up nothing, the host or one of the streams.
void pause_somewhere(Backend& backend, Dice& dice) {
  const int64_t place = dice.below(4);
  const int64_t microseconds = dice.below(200);
  if (place == 1) Dice::sleep(microseconds);
  if (place < 2) return;
  Stream& stream = place == 2 ? backend.compute_stream() : backend.communication_stream();
  backend.enqueue(stream, [microseconds] { Dice::sleep(microseconds); });
}

// What the last step has left on this rank.
StepBits bits_of(TrainingRank& rank, const StepResult& result) {
  Backend& backend = rank.backend();
  Stream& stream = backend.compute_stream();
  StepBits bits;
  const auto add_number = [&](const char* name, const auto& number) {
    const auto bytes = std::as_bytes(std::span(&number, 1));
    bits[name].assign(bytes.begin(), bytes.end());
  };
  add_number("loss", result.loss);
  add_number("gradient norm", result.grad_norm);
  add_number("applied steps", result.applied_steps);
  const auto add_tensor = [&](const std::string& name, const Tensor& tensor) {
    std::vector<std::byte>& bytes = bits[name];
    bytes.resize(static_cast<size_t>(tensor.byte_count()));
    backend.copy_to_host(stream, tensor, bytes);
  };
  ShardedParameters& parameters = rank.parameters();
  for (UnitId unit = 0; unit < parameters.unit_count(); ++unit) {
    add_tensor(fmt::format("own gradients of unit {}", unit), parameters.own_slice(unit).gradients);
    add_tensor(fmt::format("own masters of unit {}", unit), parameters.own_slice(unit).weights);
    int index = 0;
    for (const Tensor& weights : parameters.acquire(unit, stream).tensors) {
      add_tensor(fmt::format("weights {} of unit {}", index++, unit), weights);
    }
    parameters.release(unit, stream);
  }
  backend.finish(backend.record(stream));
  return bits;
}

// The names of what differs.
std::string differences(const StepBits& bits, const StepBits& expected) {
  std::string names;
  for (const auto& [name, bytes] : bits) {
    if (bytes != expected.at(name)) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

}  // namespace

std::vector<StepBits> repeat_step(const ModelDescription& model, const Sequence& sequence, const RunSettings& settings,
                                  int count, uint64_t seed) {
  const ListedDataset dataset({sequence});
  const StepLoader loader(dataset, {});
  const Load load(settings.backend, settings.mesh.ranks(), seed);
  std::vector<StepBits> results(static_cast<size_t>(settings.mesh.ranks()));
  run_thread_ranks(settings.mesh.ranks(), {120.0, settings.backend.transport}, [&](ThreadRank& thread) {
    Dice dice(seed, fmt::format("pauses of rank {}", thread.rank()));
    HookedSchedule::Hook hook;
    AdamWOptions adamw;
    adamw.weight_decay = 0.1;
    adamw.max_grad_norm = 0.1;  // clips
    TrainingRankOptions options = rank_options(settings, adamw);
    options.wrap_schedule = [&](std::unique_ptr<AttentionSchedule> schedule, Backend&) {
      return std::make_unique<HookedSchedule>(std::move(schedule), hook);
    };
    TrainingRank rank(thread, model, options);
    hook = [&](std::string_view) { pause_somewhere(rank.backend(), dice); };
    initialize_weights(model, 7, rank.parameters());
    ShardedParameters& parameters = rank.parameters();
    std::vector<std::vector<float>> weights;
    for (size_t spec = 0; spec < parameters.specs().size(); ++spec) {
      weights.emplace_back(static_cast<size_t>(parameters.specs()[spec].extents.product()));
      parameters.get_weights(static_cast<int64_t>(spec), weights.back());
    }
    const StepBatch batch = loader.load(0, rank.batch_position());
    StepBits& expected = results[static_cast<size_t>(thread.rank())];
    std::string first_difference;
    for (int repetition = 0; repetition < count; ++repetition) {
      for (size_t spec = 0; spec < weights.size(); ++spec) {
        parameters.set_weights(static_cast<int64_t>(spec), weights[spec]);
      }
      AdamWOptimizer optimizer(adamw, parameters, rank.backend());
      TrainingStep step(rank.transformer(), parameters, optimizer, rank.schedule(), rank.backend(), rank.mesh());
      StepBits bits = bits_of(rank, step.run(batch, 1e-3));
      if (repetition == 0) {
        expected = std::move(bits);
      } else if (first_difference.empty() && bits != expected) {
        first_difference = fmt::format("step {}: {}", repetition, differences(bits, expected));
      }
    }
    EXPECT_EQ(first_difference, "") << "rank " << thread.rank() << ": " << settings.describe();
  });
  return results;
}

}  // namespace ithaca::testing
