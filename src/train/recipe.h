// Recipe: everything a run is told, section by section, as in the YAML file. train/recipe_options.h holds the table
// that fills it. Thread-safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/given_options.h"

namespace ithaca {

struct ModelSection {
  std::string path;                    // Hugging Face directory (config.json, weights, tokenizer)
  std::string init = "pretrained";     // pretrained | random
  std::string compute_dtype = "auto";  // auto | float32 | bfloat16: what the backend computes in
  // Instead of what config.json says; values by step (train/context_curriculum.h).
  std::vector<std::string> rope_theta, rope_scaling;
};

struct DataSection {
  std::vector<std::string> train;                  // files, folders, patterns
  std::vector<std::string> eval;                   // the same
  std::string format = "auto";                     // auto | messages | conversations | ... (data/samples)
  std::string tokenizer = "auto";                  // auto | bytes
  std::string train_on = "auto";                   // auto | assistant | completion | all
  std::string append_eos = "auto";                 // auto | always | never
  std::vector<std::string> max_length = {"8192"};  // tokens per sequence, by step (train/context_curriculum.h)
  std::string packing = "none";                    // none | wrapped | best_fit
  std::string overlong = "split";                  // split | truncate | drop
  std::string on_error = "stop";                   // stop | skip
  std::string cache_dir;                           // of token caches; empty: beside train.output_dir
  bool shuffle = true;
};

struct ParallelSection {
  int64_t sp_size = 1;
  std::string schedule = "auto";  // auto | ulysses | ring | all_gather | hybrid
  int64_t ulysses_size = 0;       // 0: chosen from the schedule
  int64_t ring_size = 0;
  std::string layout = "auto";  // auto | contiguous | zigzag | striped
  int64_t dp_replicate_size = 1;
  int64_t dp_shard_size = 1;
  int64_t zero = 1;                // the stage of ZeRO, over dp_shard_size x sp_size ranks
  std::string transport = "auto";  // auto | peer | nccl
  double comm_timeout_seconds = 600.0;
};

struct MemorySection {
  std::string recompute = "attention";  // none | attention | full
  int64_t mlp_tile = 0;                 // tokens; 0: chosen
  int64_t loss_tile = 0;                // tokens; 0: chosen
  double limit_gib = 0.0;               // of each rank's device tier; 0: what the machine has
};

struct OptimSection {
  double learning_rate = 1e-5;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double weight_decay = 0.0;
  std::string weight_decay_on = "matrices";  // matrices | all
  double max_grad_norm = 1.0;                // 0: no clipping
  std::string lr_scheduler_type = "cosine";  // cosine | linear | constant | wsd
  double min_lr_ratio = 0.0;
  int64_t warmup_steps = 0;
  double decay_ratio = 0.1;  // wsd: the last part of the steps, where the rate falls
};

struct TrainSection {
  std::string backend = "auto";  // auto | cpu | cuda
  int64_t max_steps = 0;         // 0: from num_train_epochs
  double num_train_epochs = 1.0;
  int64_t micro_batch_size = 1;  // sequences of one rank's micro-batch
  int64_t gradient_accumulation_steps = 1;
  int64_t seed = 42;
  bool deterministic = false;  // the same bits in the attention backward pass on CUDA too
  std::string output_dir;
  int64_t logging_steps = 1;
  bool tensorboard = true;  // event files in output_dir/tensorboard
  int64_t eval_steps = 0;   // 0: only at the end
};

struct Recipe {
  ModelSection model;
  DataSection data;
  ParallelSection parallel;
  MemorySection memory;
  OptimSection optim;
  TrainSection train;
  GivenOptions given;  // which of them were given, and where
};

}  // namespace ithaca
