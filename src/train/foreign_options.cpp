#include "train/foreign_options.h"

#include <array>
#include <utility>
#include <vector>

namespace ithaca {

namespace {

constexpr const char* kHuggingFace = "transformers trl swift llamafactory axolotl";
constexpr const char* kTrainer = "transformers trl swift llamafactory";
constexpr const char* kSteps =
    "train.micro_batch_size x train.gradient_accumulation_steps x parallel.dp_replicate_size x dp_shard_size";

// Where a setting says the same thing in several programs it is one row with all of them.
const std::vector<ForeignOption>& parallel_names() {
  static const std::vector<ForeignOption> names = {
      {"sequence_parallel_size", "parallel.sp_size", "parallel.schedule picks between ulysses, ring and hybrid",
       "swift deepspeed"},
      {"sequence_parallel_degree", "parallel.sp_size", "", "axolotl"},
      {"context_parallel_size", "parallel.sp_size", "ulysses, ring, all_gather and hybrid all count as sp_size ranks",
       "axolotl swift megatron"},
      {"context_parallel_degree", "parallel.sp_size", "", "others"},
      {"cp_size", "parallel.sp_size", "", "accelerate"},
      {"sp_degree", "parallel.sp_size", "", "others"},
      {"parallelism_config_cp_size", "parallel.sp_size", "with parallel.schedule: all_gather or ring", "accelerate"},
      {"parallelism_config_sp_size", "parallel.sp_size", "with parallel.schedule: ulysses", "accelerate"},
      {"parallelism_config_dp_replicate_size", "parallel.dp_replicate_size", "", "accelerate"},
      {"parallelism_config_dp_shard_size", "parallel.dp_shard_size", "", "accelerate"},
      {"parallelism_config_tp_size", "parallel.tp_size", "", "accelerate"},
      {"parallelism_config_cp_comm_strategy", "parallel.schedule", "allgather is all_gather, alltoall is ring",
       "accelerate"},
      {"parallelism_config_sp_backend", "parallel.schedule", "the backend deepspeed is schedule ulysses", "accelerate"},
      {"parallelism_config_sp_seq_length*", "", "a sequence may have any length, and each its own", "accelerate"},
      {"parallelism_config_sp_attn_implementation", "", "the attention is always fused, and exact", "accelerate"},
      {"seq_length_is_variable", "", "a sequence may have any length, and each its own", "deepspeed"},
      {"core_attn_implementation", "", "the attention is always fused, and exact", "deepspeed"},
      {"ulysses_sequence_parallel_size", "parallel.ulysses_size", "", "others"},
      {"ulysses_degree", "parallel.ulysses_size", "", "others"},
      {"ring_degree", "parallel.ring_size", "", "others"},
      {"ring_attn_size", "parallel.ring_size", "", "others"},
      {"heads_k_stride", "", "the schedules pick their groups of heads", "axolotl"},
      {"ring_attn_func", "parallel.schedule", "varlen_llama3 is all_gather, batch_ring is ring", "axolotl"},
      {"sp_backend", "parallel.schedule", "the backend deepspeed is schedule ulysses", "accelerate"},
      {"cp_comm_type", "parallel.schedule", "p2p is ring, a2a is ulysses, a2a+p2p is hybrid", "megatron"},
      {"attention_schedule", "parallel.schedule", "", "others"},
      {"dp_size", "parallel.dp_replicate_size", "", "others"},
      {"data_parallel_size", "parallel.dp_replicate_size", "", "others"},
      {"dp_replicate_degree", "parallel.dp_replicate_size", "", "others"},
      {"tensor_model_parallel_size", "parallel.tp_size", "", "swift megatron"},
      {"pipeline_model_parallel_size", "parallel.pp_size", "", "swift megatron"},
      {"expert_model_parallel_size", "parallel.ep_size", "", "swift megatron"},
      {"sequence_parallel", "",
       "with tensor parallelism Megatron splits norms along the sequence; the nearest is "
       "parallel.sp_size",
       "swift megatron"},
      {"world_size", "--ranks N on the command line, which is sp_size x dp_replicate_size x dp_shard_size", "",
       "others"},
      {"num_processes", "--ranks N on the command line, which is sp_size x dp_replicate_size x dp_shard_size", "",
       "accelerate"},
      {"nproc_per_node", "--ranks N on the command line, which is sp_size x dp_replicate_size x dp_shard_size", "",
       "swift"},
      {"num_machines", "", "ranks are started by --ranks on one machine", "accelerate"},
      {"distributed_type", "", "the options of the section parallel say all of it", "accelerate"},
      {"ddp_timeout", "parallel.comm_timeout_seconds", "", "transformers trl swift llamafactory"},
      {"ddp_*", "", "the gradient is summed over all ranks in a fixed order; there is nothing to tune",
       "transformers trl swift llamafactory"},
      {"deepspeed", "parallel.zero", "there is no second file: its settings are options here; 1 is nearest to stage 3",
       kHuggingFace},
      {"zero_optimization", "parallel.zero", "1 is nearest to stages 2 and 3", "deepspeed"},
      {"zero_stage", "parallel.zero", "1 is nearest to stages 2 and 3", "accelerate"},
      {"stage3_*", "", "every rank holds all weights in the compute dtype: none are gathered in forward", "deepspeed"},
      {"zero3_*", "", "every rank holds all weights in the compute dtype: none are gathered in forward", "accelerate"},
      {"overlap_comm", "", "communication always overlaps computation where it can", "deepspeed"},
      {"reduce_bucket_size", "", "gradients are summed unit by unit", "deepspeed"},
      {"allgather_bucket_size", "", "parameters are gathered unit by unit", "deepspeed"},
      {"contiguous_gradients", "", "gradients always lie in one block", "deepspeed"},
      {"seq_parallel_communication_data_type", "", "parts of the attention are merged in float32", "deepspeed"},
      {"fsdp", "parallel.zero", "1 is the nearest", "transformers trl swift axolotl"},
      {"fsdp_config", "parallel.zero", "1 is the nearest", "transformers trl swift axolotl accelerate"},
      {"fsdp_*", "parallel.zero", "1 is the nearest", "accelerate"},
      {"parallelism", "the section parallel", "", "others"},
      {"parallelism_config", "the section parallel", "", "accelerate"},
  };
  return names;
}

const std::vector<ForeignOption>& memory_names() {
  static const std::vector<ForeignOption> names = {
      {"gradient_checkpointing", "memory.recompute", "true is attention, or full to keep least; false is none",
       kHuggingFace},
      {"gradient_checkpointing_kwargs", "memory.recompute", "", kHuggingFace},
      {"activation_checkpointing", "memory.recompute", "none, attention or full", "deepspeed axolotl"},
      {"recompute_granularity", "memory.recompute", "selective is attention, full is full", "swift megatron"},
      {"recompute_method", "memory.recompute", "", "swift megatron"},
      {"recompute_num_layers", "memory.recompute", "it holds for all layers", "swift megatron"},
      {"activation_offloading", "memory.offload_saved", "", "trl axolotl"},
      {"offload_optimizer", "memory.offload_optimizer", "", "deepspeed"},
      {"offload_param", "memory.offload_parameters", "", "deepspeed"},
      {"offload_optimizer_device", "memory.offload_optimizer", "", "accelerate"},
      {"offload_param_device", "memory.offload_parameters", "", "accelerate"},
      {"tiled_mlp", "memory.mlp_tile", "the MLP is always tiled", "axolotl deepspeed"},
      {"tiled_mlp_num_shards", "memory.mlp_tile", "tokens of a tile, not a number of tiles", "axolotl"},
      {"tiled_mlp_compute", "memory.mlp_tile", "the MLP is always tiled", "deepspeed"},
      {"tiled_logits_compute", "memory.loss_tile", "the loss is always tiled", "deepspeed"},
      {"use_liger_kernel", "",
       "the loss never makes the logits of more than memory.loss_tile tokens, and norms, RoPE and "
       "SwiGLU are fused",
       kTrainer},
      {"enable_liger_kernel", "", "the loss never makes the logits of more than memory.loss_tile tokens",
       "llamafactory"},
      {"liger_*", "",
       "the loss never makes the logits of more than memory.loss_tile tokens, and norms, RoPE and SwiGLU "
       "are fused",
       "axolotl"},
      {"cut_cross_entropy", "", "the loss never makes the logits of more than memory.loss_tile tokens", "axolotl"},
      {"plugins", "", "what plugins add elsewhere is built in, or not there", "axolotl"},
  };
  return names;
}

const std::vector<ForeignOption>& training_names() {
  static const std::vector<ForeignOption> names = {
      {"per_device_train_batch_size", "train.micro_batch_size",
       "it counts the sequences of a group of sp_size ranks, not of one device", kTrainer},
      {"per_device_eval_batch_size", "", "evaluation takes train.micro_batch_size sequences at once", kTrainer},
      {"eval_batch_size", "", "evaluation takes train.micro_batch_size sequences at once", "axolotl"},
      {"micro_batch_size_per_gpu", "train.micro_batch_size", "", "others"},
      {"train_micro_batch_size_per_gpu", "train.micro_batch_size", "", "deepspeed"},
      {"batch_size", kSteps, "", "others"},
      {"global_batch_size", kSteps, "", "swift megatron"},
      {"train_batch_size", kSteps, "", "deepspeed"},
      {"gradient_accumulation", "train.gradient_accumulation_steps", "", "others"},
      {"grad_accum_steps", "train.gradient_accumulation_steps", "", "others"},
      {"num_epochs", "train.num_train_epochs", "", "axolotl"},
      {"max_epochs", "train.num_train_epochs", "", "swift"},
      {"epochs", "train.num_train_epochs", "", "others"},
      {"train_iters", "train.max_steps", "", "swift megatron"},
      {"num_train_steps", "train.max_steps", "", "others"},
      {"output_path", "train.output_dir", "", "others"},
      {"save", "train.output_dir", "", "swift megatron"},
      {"save_dir", "train.output_dir", "", "others"},
      {"overwrite_output_dir", "--overwrite on the command line", "", "transformers llamafactory"},
      {"do_train", "", "ithaca train trains; data.eval alone decides whether it evaluates",
       "transformers llamafactory"},
      {"do_eval", "", "data.eval alone decides whether it evaluates", "transformers llamafactory"},
      {"log_every", "train.logging_steps", "", "others"},
      {"log_interval", "train.logging_steps", "", "swift megatron"},
      {"steps_per_print", "train.logging_steps", "", "deepspeed"},
      {"logging_dir", "train.output_dir", "everything of a run lies there", "transformers trl swift llamafactory"},
      {"logging_strategy", "train.logging_steps", "", kTrainer},
      {"logging_first_step", "", "the first step is always printed", kTrainer},
      {"wall_clock_breakdown", "", "metrics.jsonl has every step's time; --verbose prints it", "deepspeed"},
      {"include_tokens_per_second", "", "tokens per second are always counted", kTrainer},
      {"include_num_input_tokens_seen", "", "tokens are always counted", kTrainer},
      {"plot_loss", "ithaca inspect RUN on the command line", "", "llamafactory"},
      {"wandb_*", "", "every step is a line of metrics.jsonl in train.output_dir, which any tool can read", "axolotl"},
      {"use_wandb", "", "every step is a line of metrics.jsonl in train.output_dir, which any tool can read",
       "axolotl"},
      {"mlflow_*", "", "every step is a line of metrics.jsonl in train.output_dir, which any tool can read", "axolotl"},
      {"run_name", "train.output_dir", "a run is called by its folder", kTrainer},
      {"push_to_hub", "", "the export is a Hugging Face directory that any tool can upload", kTrainer},
      {"hub_*", "", "the export is a Hugging Face directory that any tool can upload", kHuggingFace},
      {"eval_interval", "train.eval_steps", "", "swift megatron"},
      {"eval_strategy", "train.eval_steps", "steps, with the number; it always evaluates at the end", kHuggingFace},
      {"evaluation_strategy", "train.eval_steps", "steps, with the number; it always evaluates at the end",
       kHuggingFace},
      {"evals_per_epoch", "train.eval_steps", "a number of steps", "axolotl"},
      {"saves_per_epoch", "train.save_steps", "a number of steps", "axolotl"},
      {"save_interval", "train.save_steps", "", "swift megatron"},
      {"save_only_model", "", "the export holds the model alone", kTrainer},
      {"save_safetensors", "", "weights are always written as safetensors", kTrainer},
      {"load_best_model_at_end", "", "the last weights are exported; metrics.jsonl has every evaluation", kTrainer},
      {"early_stopping_patience", "", "watch the loss and press Ctrl-C: the model is exported", "axolotl"},
      {"auto_resume_from_checkpoints", "train.resume_from_checkpoint", "", "axolotl"},
      {"full_determinism", "train.deterministic", "", "transformers"},
      {"data_seed", "train.seed", "", "transformers trl swift"},
      {"strict", "", "unknown names are always errors", "axolotl"},
      {"dataloader_*", "", "batches are made while the step before them runs", kHuggingFace},
      {"remove_unused_columns", "", "columns that are not needed are not read", kTrainer},
      {"group_by_length", "", "data.shuffle draws the order; sequences of any length cost what they hold",
       kHuggingFace},
      {"torch_compile", "", "kernels are compiled ahead", kHuggingFace},
      {"flash_attention", "", "the attention is always fused, and exact", "axolotl"},
      {"flash_attn", "", "the attention is always fused, and exact", "llamafactory"},
      {"sdp_attention", "", "the attention is always fused, and exact", "axolotl"},
      {"xformers_attention", "", "the attention is always fused, and exact", "axolotl"},
      {"attn_implementation", "", "the attention is always fused, and exact", "trl axolotl"},
      {"attn_impl", "", "the attention is always fused, and exact", "swift"},
      {"use_flash_attn", "", "the attention is always fused, and exact", "megatron"},
      {"attention_backend", "", "the attention is always fused, and exact", "swift megatron"},
      {"training", "the section train", "", "others"},
      {"trainer", "the section train", "", "others"},
  };
  return names;
}

const std::vector<ForeignOption>& optimizer_names() {
  static const std::vector<ForeignOption> names = {
      {"lr", "optim.learning_rate", "", "deepspeed swift megatron"},
      {"max_lr", "optim.learning_rate", "", "others"},
      {"beta1", "optim.adam_beta1", "", "others"},
      {"beta2", "optim.adam_beta2", "", "others"},
      {"betas", "optim.adam_beta1 and optim.adam_beta2", "", "deepspeed"},
      {"eps", "optim.adam_epsilon", "", "deepspeed"},
      {"epsilon", "optim.adam_epsilon", "", "others"},
      {"adam_eps", "optim.adam_epsilon", "", "megatron"},
      {"wd", "optim.weight_decay", "", "others"},
      {"max_norm", "optim.max_grad_norm", "", "others"},
      {"grad_clip", "optim.max_grad_norm", "", "others"},
      {"gradient_clipping", "optim.max_grad_norm", "", "deepspeed accelerate"},
      {"clip_grad", "optim.max_grad_norm", "", "megatron"},
      {"optim_args", "", "the optimizer is AdamW, and the section optim has its numbers", kHuggingFace},
      {"optimizer", "the section optim", "the optimizer is AdamW", "deepspeed axolotl"},
      {"scheduler", "optim.lr_scheduler_type and optim.warmup_steps", "", "deepspeed"},
      {"lr_scheduler", "optim.lr_scheduler_type", "", "axolotl"},
      {"lr_schedule", "optim.lr_scheduler_type", "", "others"},
      {"lr_decay_style", "optim.lr_scheduler_type", "", "megatron swift"},
      {"lr_scheduler_kwargs", "optim.min_lr_ratio and optim.decay_ratio", "", kTrainer},
      {"min_lr", "optim.min_lr_ratio", "a part of learning_rate, not a rate", "megatron swift"},
      {"cosine_min_lr_ratio", "optim.min_lr_ratio", "", "axolotl"},
      {"warmup_ratio", "optim.warmup_steps", "steps, not a part of them", kHuggingFace},
      {"lr_warmup_fraction", "optim.warmup_steps", "steps, not a part of them", "megatron swift"},
      {"lr_warmup_iters", "optim.warmup_steps", "", "megatron swift"},
      {"warmup_num_steps", "optim.warmup_steps", "", "deepspeed"},
      {"warmup", "optim.warmup_steps", "", "others"},
      {"neftune_noise_alpha", "", "embeddings get no noise", kHuggingFace},
      {"label_smoothing_factor", "", "the loss is the plain cross entropy", kTrainer},
      {"loraplus_lr_ratio", "", "all parameters are trained", "axolotl llamafactory"},
  };
  return names;
}

const std::vector<ForeignOption>& model_names() {
  static const std::vector<ForeignOption> names = {
      {"model_name_or_path", "model.path", "a folder on this machine; nothing is downloaded", "trl llamafactory"},
      {"base_model", "model.path", "a folder on this machine; nothing is downloaded", "axolotl"},
      {"base_model_config", "model.path", "", "axolotl"},
      {"pretrained_model", "model.path", "", "others"},
      {"model_id", "model.path", "", "others"},
      {"model_type", "", "config.json in model.path says it", "axolotl swift"},
      {"tokenizer_type", "", "the files in model.path say it", "axolotl"},
      {"tokenizer_config", "data.tokenizer", "the model's own", "axolotl"},
      {"trust_remote_code", "", "no code of a model is ever run", kHuggingFace},
      {"torch_dtype", "model.compute_dtype", "", "swift trl"},
      {"dtype", "model.compute_dtype", "", "trl"},
      {"mixed_precision", "model.compute_dtype", "", "accelerate"},
      {"bf16", "model.compute_dtype", "bfloat16, where the backend has it",
       "transformers trl swift llamafactory axolotl deepspeed megatron"},
      {"bfloat16", "model.compute_dtype", "bfloat16, where the backend has it", "axolotl"},
      {"pure_bf16", "model.compute_dtype", "", "llamafactory"},
      {"fp16", "model.compute_dtype", "float16 is not supported; bfloat16 has the same size, and the range of float32",
       "transformers trl swift llamafactory axolotl deepspeed megatron"},
      {"tf32", "", "products of float32 are computed in float32", "transformers trl axolotl"},
      {"finetuning_type", "", "all parameters are trained: finetuning_type full", "llamafactory"},
      {"train_type", "", "all parameters are trained: train_type full", "swift"},
      {"tuner_type", "", "all parameters are trained: tuner_type full", "swift"},
      {"stage", "",
       "ithaca train is supervised fine-tuning or continued pretraining, as the data's labels say; for "
       "DeepSpeed's stage of ZeRO see parallel.zero",
       "llamafactory deepspeed"},
      {"adapter", "", "all parameters are trained", "axolotl"},
      {"use_peft", "", "all parameters are trained", "trl"},
      {"lora_*", "", "all parameters are trained", "axolotl trl swift llamafactory"},
      {"peft_*", "", "all parameters are trained", "axolotl"},
      {"freeze_*", "", "all parameters are trained", "swift llamafactory"},
      {"unfrozen_parameters", "", "all parameters are trained", "axolotl"},
      {"load_in_8bit", "", "weights are read as float32, bfloat16 or float16", "axolotl trl"},
      {"load_in_4bit", "", "weights are read as float32, bfloat16 or float16", "axolotl trl"},
      {"quant_*", "", "weights are read as float32, bfloat16 or float16", "swift"},
      {"rope_scaling", "model.rope_scaling",
       "yarn:4 and the like; nothing is needed where the model's config.json says it", "axolotl llamafactory swift"},
      {"overrides_of_model_config", "", "change the model's config.json", "axolotl"},
  };
  return names;
}

const std::vector<ForeignOption>& data_names() {
  static const std::vector<ForeignOption> names = {
      {"train_files", "data.train", "", "others"},
      {"train_file", "data.train", "", "transformers"},
      {"dataset", "data.train", "files on this machine; nothing is downloaded", "swift llamafactory"},
      {"dataset_name", "data.train", "files on this machine; nothing is downloaded", "trl transformers"},
      {"dataset_dir", "data.train", "paths are relative to the recipe", "llamafactory"},
      {"datasets", "data.train", "a list of files; data.format says what they hold", "axolotl"},
      {"pretraining_dataset", "data.train", "", "axolotl"},
      {"data_path", "data.train", "", "megatron"},
      {"eval_files", "data.eval", "", "others"},
      {"validation_file", "data.eval", "", "transformers"},
      {"eval_dataset", "data.eval", "", "trl llamafactory"},
      {"val_dataset", "data.eval", "", "swift"},
      {"test_datasets", "data.eval", "", "axolotl"},
      {"val_set_size", "data.eval", "files of their own; nothing is split off", "axolotl"},
      {"val_size", "data.eval", "files of their own; nothing is split off", "llamafactory"},
      {"split_dataset_ratio", "data.eval", "files of their own; nothing is split off", "swift"},
      {"seq_len", "data.max_length", "", "others"},
      {"seq_length", "data.max_length", "", "megatron"},
      {"sequence_len", "data.max_length", "", "axolotl"},
      {"max_seq_length", "data.max_length", "", "trl"},
      {"max_seq_len", "data.max_length", "", "others"},
      {"cutoff_len", "data.max_length", "", "llamafactory"},
      {"block_size", "data.max_length", "", "transformers"},
      {"model_max_length", "data.max_length", "", "others"},
      {"truncation_strategy", "data.overlong", "split loses nothing; truncate and drop are there too", "swift"},
      {"sample_packing", "data.packing", "", "axolotl"},
      {"eval_sample_packing", "data.packing", "it holds for data.eval too", "axolotl"},
      {"neat_packing", "data.packing", "documents never attend to each other", "llamafactory"},
      {"packing_strategy", "data.packing", "bfd is best_fit", "trl"},
      {"multipack_*", "data.packing", "documents never attend to each other", "axolotl"},
      {"padding_free", "", "sequences are laid end to end, never padded to each other", "trl swift"},
      {"pad_to_sequence_len", "", "any length works, and padding is never seen", "axolotl"},
      {"pad_to_multiple_of", "", "any length works, and padding is never seen", "trl"},
      {"template", "",
       "the chat template is the model's own, in tokenizer_config.json or chat_template.jinja of model.path",
       "swift llamafactory"},
      {"chat_template_path", "",
       "the chat template is the model's own; put another one into chat_template.jinja in model.path", "trl"},
      {"chat_template_jinja", "",
       "the chat template is the model's own; put another one into chat_template.jinja in model.path", "axolotl"},
      {"dataset_text_field", "", "a record of data.format: text has its text in \"text\"", "trl"},
      {"text_field", "", "a record of data.format: text has its text in \"text\"", "others"},
      {"train_on_inputs", "data.train_on", "true is all, false is assistant or completion", "axolotl"},
      {"loss_scale", "", "weights of messages and of ready token ids say how much a token counts", "swift"},
      {"special_tokens", "", "the tokenizer's files in model.path have them", "axolotl"},
      {"dataset_prepared_path", "data.cache_dir", "", "axolotl"},
      {"overwrite_cache", "data.cache_dir", "it may be deleted at any time, and knows by itself when it is out of date",
       "llamafactory"},
      {"shuffle_merged_datasets", "data.shuffle", "", "axolotl"},
      {"lazy_tokenize", "data.cache_dir", "data is tokenized once, before the first step", "swift"},
      {"streaming", "data.cache_dir", "data is tokenized once, and read from there without holding it in memory",
       "swift axolotl llamafactory"},
      {"dataset_num_proc", "", "data is tokenized on all cores; there is nothing to tune", "trl swift"},
      {"dataset_kwargs", "", "files are read as they are; there is nothing to tune", "trl"},
      {"assistant_only_loss", "data.train_on", "true is assistant", "trl"},
      {"completion_only_loss", "data.train_on", "true is completion", "trl"},
      {"roles_to_train", "data.train_on", "assistant, completion or all", "axolotl"},
      {"mask_history", "data.train_on", "true is completion: the last turn alone", "llamafactory"},
      {"train_on_prompt", "data.train_on", "true is all", "llamafactory"},
      {"excess_length_strategy", "data.overlong", "drop or truncate, or split, which loses nothing", "axolotl"},
      {"dataset_processes", "", "data is tokenized on all cores; there is nothing to tune", "axolotl"},
      {"preprocessing_num_workers", "", "data is tokenized on all cores; there is nothing to tune", "llamafactory"},
      {"max_samples", "train.max_steps", "give smaller files, or fewer steps", "llamafactory"},
  };
  return names;
}

constexpr const char* kEndMark = "<!-- end of names -->";

}  // namespace

void add_foreign_options(OptionCatalog& catalog) {
  for (const auto* names :
       {&parallel_names(), &memory_names(), &training_names(), &optimizer_names(), &model_names(), &data_names()}) {
    for (const ForeignOption& name : *names) catalog.add_foreign(name);
  }
}

std::string with_foreign_tables(const std::string& page, const OptionCatalog& catalog) {
  constexpr const char* kMark = "<!-- names: ";
  std::string out;
  size_t at = 0;
  while (true) {
    const size_t mark = page.find(kMark, at);
    if (mark == std::string::npos) break;
    const size_t name_begin = mark + std::string(kMark).size();
    const size_t name_end = page.find(" -->\n", name_begin);
    const size_t end = name_end == std::string::npos ? name_end : page.find(kEndMark, name_end);
    if (end == std::string::npos) {
      throw InputError("a table of names begins with \"<!-- names: PROGRAM -->\" and ends with \"" +
                       std::string(kEndMark) + "\"");
    }
    const std::string program = page.substr(name_begin, name_end - name_begin);
    const std::string rows = catalog.foreign_markdown(program);
    if (rows.empty()) throw InputError("no name of a program called \"" + program + "\" is known");
    out += page.substr(at, name_end + 5 - at) + "\n| there | here |\n| --- | --- |\n" + rows + "\n";
    at = end;
  }
  return out + page.substr(at);
}

}  // namespace ithaca
