#include "train/recipe_options.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "train/context_curriculum.h"
#include "train/foreign_options.h"
#include "train/plan_run.h"

namespace ithaca {

namespace {

constexpr double kMostRanks = 1024;
// The step computes in float32, which is 0 or has few digits below this.
constexpr double kSmallestFloat = 1.2e-38;

void add_model(OptionTable<Recipe>& table) {
  table.section("model", &Recipe::model, "which model is trained, and where it comes from")
      .option("path", &ModelSection::path,
              {.help = "Hugging Face directory with config.json and, for init pretrained, the weights.",
               .example = "../models/Llama-3.2-1B",
               .required = true,
               .path = OptionPath::folder})
      .option("init", &ModelSection::init,
              {.help = "Where the weights come from: pretrained reads model.safetensors (or its shards), random draws "
                       "them from train.seed.",
               .example = "random",
               .choices = {"pretrained", "random"}})
      .option("compute_dtype", &ModelSection::compute_dtype,
              {.help = "What activations and the weights that products read are stored in; sums, master weights and "
                       "optimizer state are float32 always. auto: bfloat16 on CUDA, float32 on the CPU, which knows "
                       "nothing else. float32 on CUDA is slow, for comparisons.",
               .choices = {"auto", "float32", "bfloat16"},
               .later_choices = {{"float16", "bfloat16 has the same size, and the range of float32."}}})
      .option("rope_theta", &ModelSection::rope_theta,
              {.help = "Base of the rotary embedding, instead of the model's own. By steps: [500000@0, 5e6@1000]. The "
                       "exported config.json says what held at the end.",
               .example = "5e6"})
      .option("rope_scaling", &ModelSection::rope_scaling,
              {.help = "How positions beyond those that the model knows are scaled, instead of the model's own: none, "
                       "linear:FACTOR, dynamic:FACTOR, yarn:FACTOR or llama3:FACTOR; the last two may name the length "
                       "that the model knows, yarn:4:32768. By steps: [none@0, yarn:8@1000].",
               .example = "yarn:4"});
}

void add_data(OptionTable<Recipe>& table) {
  table.section("data", &Recipe::data, "what it is trained on")
      .option("train", &DataSection::train,
              {.help = "Files to train on, folders, or patterns such as data/**/*.jsonl; a single one may be written "
                       "without brackets. JSON Lines, JSON arrays and plain text; files that end in .gz or .zst are "
                       "read directly.",
               .example = "[book.txt.gz, notes.jsonl]",
               .required = true,
               .path = OptionPath::file})
      .option("eval", &DataSection::eval,
              {.help = "Files to evaluate on.", .example = "[held_out.txt]", .path = OptionPath::file})
      .option(
          "format", &DataSection::format,
          {.help = "What a record of the files is. auto decides from the first ones, and says what. messages: a chat "
                   "as OpenAI writes it. conversations: as ShareGPT does. prompt_completion: \"prompt\" and "
                   "\"completion\". instruction: \"instruction\", \"input\", \"output\". text: \"text\", or a "
                   "plain file as one document. input_ids (or tokens): ready token ids with optional \"labels\", "
                   "\"weights\", \"document_lengths\".",
           .choices = {"auto", "messages", "conversations", "prompt_completion", "instruction", "text", "input_ids",
                       "tokens"},
           .later_choices = {{"chat", "Chats as OpenAI writes them are data.format: messages."},
                             {"sharegpt", "That is data.format: conversations."},
                             {"alpaca", "That is data.format: instruction."}}})
      .option(
          "tokenizer", &DataSection::tokenizer,
          {.help = "How text becomes tokens. auto: by the model's own tokenizer.json or tokenizer.model; where it has "
                   "none, as with bytes. bytes: every byte is a token.",
           .choices = {"auto", "bytes"},
           .later_choices = {{"huggingface", "That is data.tokenizer: auto."}}})
      .option("train_on", &DataSection::train_on,
              {.help = "Which tokens are learnt. assistant: every turn of the assistant. completion: the last one, or "
                       "the completion. all: every token. auto: what suits the format (assistant for messages and "
                       "conversations, completion for prompt_completion and instruction, all for the rest).",
               .choices = {"auto", "assistant", "completion", "all"}})
      .option("append_eos", &DataSection::append_eos,
              {.help = "Whether the end-of-text token follows a text that no chat template has ended. auto: where the "
                       "tokenizer has one.",
               .choices = {"auto", "always", "never"}})
      .option(
          "max_length", &DataSection::max_length,
          {.help = "Longest sequence. Or, by steps, a list: [4K@0, 32K@1000, 1M@2000] has sequences of up to 4096 "
                   "tokens, after 1000 steps of up to 32768, and so on; each stage begins with an epoch of its own. "
                   "K is 1024, M is 1024 x 1024.",
           .unit = "tokens",
           .example = "131072"})
      .option(
          "packing", &DataSection::packing,
          {.help = "How documents share sequences; they never see each other. none: each has its own. wrapped: laid "
                   "end to end and cut into windows of max_length, positions going on over the cuts. best_fit: "
                   "whole documents, so that little room is left over.",
           .choices = {"none", "wrapped", "best_fit"},
           .later_choices = {{"bfd", "That is data.packing: best_fit."}, {"ffd", "The nearest is best_fit."}}})
      .option("overlong", &DataSection::overlong,
              {.help = "What becomes of documents longer than max_length L. split: windows [w L, (w+1) L), where the "
                       "label of a window's last token is the first token of the next, so nothing is lost. truncate: "
                       "only the first L tokens stay. drop: they are left out. All three are counted.",
               .choices = {"split", "truncate", "drop"}})
      .option("on_error", &DataSection::on_error,
              {.help = "What happens when a record cannot be understood. stop: an error that names it. skip: it is "
                       "left out and counted, with the reason.",
               .choices = {"stop", "skip"}})
      .option("cache_dir", &DataSection::cache_dir,
              {.help = "Where tokenized data is kept, so that it is tokenized once; may be deleted at any time. Empty: "
                       ".token_cache beside train.output_dir.",
               .example = "/scratch/token_cache",
               .path = OptionPath::folder})
      .option("shuffle", &DataSection::shuffle,
              {.help = "Draw a new order of the sequences for every epoch, from train.seed."});
}

void add_parallel(OptionTable<Recipe>& table) {
  table.section("parallel", &Recipe::parallel, "how ranks share the work")
      .option("sp_size", &ParallelSection::sp_size,
              {.help = "Ranks that share one sequence. When it is not given, --ranks, or ulysses_size x ring_size, "
                       "sets it.",
               .unit = "ranks",
               .example = "4",
               .range = {.at_least = 1, .at_most = kMostRanks}})
      .option("schedule", &ParallelSection::schedule,
              {.help = "How the parts of a sequence attend to each other. auto chooses from heads, ranks and the "
                       "documents of the data, and says why.",
               .example = "ring",
               .choices = {"auto", "ulysses", "ring", "all_gather", "hybrid"}})
      .option("ulysses_size", &ParallelSection::ulysses_size,
              {.help = "Ranks that exchange sequence parts for head parts; 0: chosen.",
               .unit = "ranks",
               .range = {.at_least = 0, .at_most = kMostRanks}})
      .option("ring_size", &ParallelSection::ring_size,
              {.help = "Ranks (or groups of ulysses_size ranks) that pass keys and values around; 0: chosen.",
               .unit = "ranks",
               .range = {.at_least = 0, .at_most = kMostRanks}})
      .option("layout", &ParallelSection::layout,
              {.help = "Which tokens a rank holds. zigzag and striped balance causal work over a ring.",
               .choices = {"auto", "contiguous", "zigzag", "striped"}})
      .option(
          "dp_replicate_size", &ParallelSection::dp_replicate_size,
          {.help = "Groups of sp_size ranks that train on different sequences, each with a whole copy of the model.",
           .unit = "groups",
           .range = {.at_least = 1, .at_most = kMostRanks}})
      .option("dp_shard_size", &ParallelSection::dp_shard_size,
              {.help = "Groups of sp_size ranks that train on different sequences and share what parallel.zero cuts.",
               .unit = "groups",
               .range = {.at_least = 1, .at_most = kMostRanks}})
      .option(
          "zero", &ParallelSection::zero,
          {.help = "Stage of ZeRO: what the dp_shard_size x sp_size ranks hold a part of each. 0: nothing, every rank "
                   "updates all weights. 1: the optimizer state, and the float32 master weights where "
                   "model.compute_dtype is another; each rank updates its part, and the new weights are gathered "
                   "while the next step begins. What ranks send is no more than at 0.",
           .range = {.at_least = 0, .at_most = 3}})
      .option("transport", &ParallelSection::transport,
              {.help = "How bytes move between GPUs. peer: a rank reads the others' memory. nccl: NCCL sends them, for "
                       "one rank per GPU. auto: peer where all GPUs allow it, nccl where they do not, and says why.",
               .choices = {"auto", "peer", "nccl"}})
      .option(
          "comm_timeout_seconds", &ParallelSection::comm_timeout_seconds,
          {.help =
               "A rank that waits longer than this for another ends the run. Time in which the program is suspended, "
               "or in which a rank reads or writes files, does not count.",
           .unit = "seconds",
           .range = {.above = 0, .at_most = 1e9}});
}

void add_memory(OptionTable<Recipe>& table) {
  table.section("memory", &Recipe::memory, "what is kept, and for how long")
      .option("recompute", &MemorySection::recompute,
              {.help = "What a layer computes again in backward instead of keeping it. none: nothing. attention: keeps "
                       "its input and the attention's output. full: keeps only its input.",
               .choices = {"none", "attention", "full"}})
      .option("mlp_tile", &MemorySection::mlp_tile,
              {.help = "Tokens that go through the MLP at once; 0: chosen.",
               .unit = "tokens",
               .range = {.at_least = 0, .at_most = 1e12}})
      .option("loss_tile", &MemorySection::loss_tile,
              {.help = "Tokens whose logits exist at once; 0: chosen.",
               .unit = "tokens",
               .range = {.at_least = 0, .at_most = 1e12}})
      .option("limit_gib", &MemorySection::limit_gib,
              {.help = "Memory that a rank may use; 0: what the machine has, shared evenly by its ranks.",
               .unit = "GiB",
               .example = "12.5",
               .range = {.at_least = 0, .at_most = 1e6}});
}

void add_optim(OptionTable<Recipe>& table) {
  table.section("optim", &Recipe::optim, "AdamW and its learning rate")
      .option("learning_rate", &OptimSection::learning_rate,
              {.help = "The highest learning rate, reached after the warmup.",
               .example = "2e-5",
               .range = {.at_least = 0, .at_most = 1e3}})
      .option("adam_beta1", &OptimSection::adam_beta1,
              {.help = "Decay of the mean of gradients.", .range = {.at_least = 0, .below = 1}})
      .option("adam_beta2", &OptimSection::adam_beta2,
              {.help = "Decay of the mean of squared gradients.", .range = {.at_least = 0, .below = 1}})
      .option("adam_epsilon", &OptimSection::adam_epsilon,
              {.help = "Added to the root of the mean of squared gradients.",
               .range = {.at_least = kSmallestFloat, .at_most = 1}})
      .option("weight_decay", &OptimSection::weight_decay,
              {.help = "Decoupled weight decay: each step takes learning rate x weight decay of a weight away.",
               .range = {.at_least = 0, .at_most = 1e3}})
      .option("weight_decay_on", &OptimSection::weight_decay_on,
              {.help = "What decays. matrices leaves norms and biases alone.", .choices = {"matrices", "all"}})
      .option("max_grad_norm", &OptimSection::max_grad_norm,
              {.help = "Gradients with a larger norm, over all parameters, are scaled down to it; 0: no clipping.",
               .range = {.at_least = 0}})
      .option("lr_scheduler_type", &OptimSection::lr_scheduler_type,
              {.help = "How the rate goes on after the warmup. wsd: warmup, stable, decay.",
               .choices = {"cosine", "linear", "constant", "wsd"}})
      .option("min_lr_ratio", &OptimSection::min_lr_ratio,
              {.help = "What is left of the learning rate at the end, as a part of it.",
               .range = {.at_least = 0, .at_most = 1}})
      .option("warmup_steps", &OptimSection::warmup_steps,
              {.help = "Steps in which the rate rises evenly from 0.",
               .unit = "steps",
               .range = {.at_least = 0, .at_most = 1e12}})
      .option(
          "decay_ratio", &OptimSection::decay_ratio,
          {.help = "wsd: the last part of the steps, in which the rate falls.", .range = {.above = 0, .at_most = 1}});
}

void add_train(OptionTable<Recipe>& table) {
  table.section("train", &Recipe::train, "the run")
      .option(
          "backend", &TrainSection::backend,
          {.help = "Where it computes. auto: on NVIDIA GPUs where this program was built with CUDA and sees any, one "
                   "rank on each (several where there are more ranks), else on the CPU. --backend says the same.",
           .choices = {"auto", "cpu", "cuda"}})
      .option("max_steps", &TrainSection::max_steps,
              {.help = "Optimizer steps; 0: as many as num_train_epochs needs.",
               .unit = "steps",
               .example = "1000",
               .range = {.at_least = 0, .at_most = 1e12}})
      .option("num_train_epochs", &TrainSection::num_train_epochs,
              {.help = "How often every sequence is seen.", .unit = "epochs", .range = {.above = 0, .at_most = 1e9}})
      .option("micro_batch_size", &TrainSection::micro_batch_size,
              {.help = "Sequences that a group of sp_size ranks computes at once, laid end to end.",
               .unit = "sequences",
               .range = {.at_least = 1, .at_most = 1e6}})
      .option("gradient_accumulation_steps", &TrainSection::gradient_accumulation_steps,
              {.help = "Micro-batches whose gradients are summed for one optimizer step.",
               .unit = "micro-batches",
               .range = {.at_least = 1, .at_most = 1e6}})
      .option("seed", &TrainSection::seed,
              {.help = "Of random weights and of the order of sequences.", .range = {.at_least = 0}})
      .option("deterministic", &TrainSection::deterministic,
              {.help = "The same bits in every run. The CPU always gives them; on CUDA the fused attention backward "
                       "adds in an order that varies, and slower kernels take its place."})
      .option("output_dir", &TrainSection::output_dir,
              {.help = "The run folder: config.yaml, metrics.jsonl, log.txt, and export/ with the trained model. "
                       "Relative to the current folder.",
               .example = "runs/first",
               .required = true,
               .path = OptionPath::folder})
      .option("logging_steps", &TrainSection::logging_steps,
              {.help = "Print a line every so many steps (not in a terminal's live line, which always moves); "
                       "metrics.jsonl has every step.",
               .unit = "steps",
               .range = {.at_least = 1, .at_most = 1e12}})
      .option("tensorboard", &TrainSection::tensorboard,
              {.help = "Write event files to the folder tensorboard of the run, for: tensorboard --logdir RUN. They "
                       "have the numbers of metrics.jsonl, and are readable while the run goes on."})
      .option("eval_steps", &TrainSection::eval_steps,
              {.help = "Evaluate every so many steps; 0: only at the end.",
               .unit = "steps",
               .range = {.at_least = 0, .at_most = 1e12}});
}

void add_absent(OptionCatalog& catalog) {
  const std::vector<AbsentOption> options = {
      {"parallel", "tp_size", "The nearest is parallel.sp_size, which splits the sequence instead of the weights."},
      {"parallel", "tensor_parallel_size",
       "The nearest is parallel.sp_size, which splits the sequence instead of the weights."},
      {"parallel", "pp_size", "The nearest is parallel.sp_size, which splits the sequence instead of the layers."},
      {"parallel", "ep_size", "Only dense models are supported."},
      {"memory", "offload_*", "The nearest is memory.recompute: full, which keeps least."},
      {"train", "save_steps", "The model is exported at the end, and when the run is stopped with Ctrl-C or SIGTERM."},
      {"train", "save_total_limit", "The model is exported once, at the end."},
      {"train", "save_strategy", "The model is exported at the end."},
      {"train", "resume_from_checkpoint", "Train on from an export: set model.path to the run's export folder."},
      {"train", "report_to",
       "Every step is a line of metrics.jsonl in train.output_dir, and in TensorBoard's files there."},
      {"optim", "optimizer", "The optimizer is AdamW."},
      {"data", "chat_template", "It is the model's own; put another one into chat_template.jinja in model.path."},
      {"model", "lora_*", "All parameters are trained."},
      {"model", "quantization*",
       "Weights are kept in float32, and computed with in float32 or bfloat16 (model.compute_dtype)."},
  };
  for (const AbsentOption& option : options) catalog.add_absent(option);
}

// What the ConfigurationError of `action` says; empty when there is none.
template <typename Action>
std::string complaint_of(const Action& action) {
  try {
    action();
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return {};
}

// "sp_size 4 x dp_replicate_size 2", and dp_shard_size where it is not 1.
std::string rank_sizes(const ParallelSection& p) {
  std::string text = fmt::format("sp_size {} x dp_replicate_size {}", p.sp_size, p.dp_replicate_size);
  if (p.dp_shard_size > 1) text += fmt::format(" x dp_shard_size {}", p.dp_shard_size);
  return text;
}

void add_rules(OptionTable<Recipe>& table) {
  table.rule({"data.max_length"}, "`data.max_length` by steps begins with an entry for step 0; steps rise.",
             [](const Recipe& recipe) { return complaint_of([&] { parse_context_stages(recipe.data.max_length); }); });
  table.rule({"data.max_length", "train.max_steps"},
             "`data.max_length` by steps needs `train.max_steps`: how long the last stage is.",
             [](const Recipe& recipe) -> std::string {
               const bool is_schedule = complaint_of([&] { parse_context_stages(recipe.data.max_length); }).empty() &&
                                        parse_context_stages(recipe.data.max_length).size() > 1;
               if (!is_schedule) return {};
               const ContextStage last = parse_context_stages(recipe.data.max_length).back();
               if (recipe.train.max_steps > last.first_step) return {};
               return fmt::format(
                   "data.max_length is a schedule whose last stage begins at step {}, so train.max_steps must say how "
                   "many steps there are, more than that; it is {}",
                   last.first_step, recipe.train.max_steps);
             });
  table.rule({"parallel.ulysses_size", "parallel.ring_size", "parallel.sp_size"},
             "`parallel.ulysses_size` x `parallel.ring_size` = `parallel.sp_size`, where both are given; where one is "
             "given, it divides `sp_size`.",
             [](const Recipe& recipe) -> std::string {
               const ParallelSection& p = recipe.parallel;
               if (p.ulysses_size > 0 && p.ring_size > 0) {
                 const int64_t product = p.ulysses_size * p.ring_size;
                 if (product == p.sp_size) return {};
                 return fmt::format(
                     "parallel.ulysses_size {} x ring_size {} = {} ranks, but sp_size is {}; sp_size {} "
                     "would fit{}",
                     p.ulysses_size, p.ring_size, product, p.sp_size, product,
                     p.sp_size % p.ulysses_size == 0 ? fmt::format(", or ring_size {}", p.sp_size / p.ulysses_size)
                                                     : std::string());
               }
               for (const auto& [name, size] : {std::pair<const char*, int64_t>("ulysses_size", p.ulysses_size),
                                                std::pair<const char*, int64_t>("ring_size", p.ring_size)}) {
                 if (size > 0 && p.sp_size % size != 0) {
                   return fmt::format("parallel.{} {} does not divide sp_size {}; sp_size {} would fit", name, size,
                                      p.sp_size, (p.sp_size / size + 1) * size);
                 }
               }
               return {};
             });
  table.rule({"parallel.schedule", "parallel.ulysses_size", "parallel.ring_size"},
             "`parallel.schedule: ulysses` goes with `ring_size` 1; `ring` and `all_gather` go with `ulysses_size` 1; "
             "`hybrid` takes both.",
             [](const Recipe& recipe) -> std::string {
               const ParallelSection& p = recipe.parallel;
               if (p.schedule == "ulysses") {
                 if (p.ring_size > 1 || (p.ulysses_size > 0 && p.ulysses_size != p.sp_size)) {
                   return fmt::format(
                       "parallel.schedule ulysses uses all {} ranks of sp_size for ulysses, but "
                       "ulysses_size is {} and ring_size is {}; leave both out, or use schedule hybrid",
                       p.sp_size, p.ulysses_size, p.ring_size);
                 }
               } else if (p.schedule == "ring" || p.schedule == "all_gather") {
                 if (p.ulysses_size > 1 || (p.ring_size > 0 && p.ring_size != p.sp_size)) {
                   return fmt::format(
                       "parallel.schedule {} uses all {} ranks of sp_size for its ring, but ulysses_size "
                       "is {} and ring_size is {}; leave both out, or use schedule hybrid",
                       p.schedule, p.sp_size, p.ulysses_size, p.ring_size);
                 }
               }
               return {};
             });
  table.idle_rule("train.num_train_epochs",
                  "`train.max_steps` and `train.num_train_epochs` both say when to stop: give one of them.",
                  [](const Recipe& recipe) -> std::string {
                    if (recipe.train.max_steps == 0) return {};
                    return fmt::format(
                        "train.max_steps {} and train.num_train_epochs {} both say when to stop; leave one of them out",
                        recipe.train.max_steps, recipe.train.num_train_epochs);
                  });
  table.rule({"train.eval_steps"}, "`train.eval_steps` needs files in `data.eval`.",
             [](const Recipe& recipe) -> std::string {
               if (recipe.train.eval_steps == 0 || !recipe.data.eval.empty()) return {};
               return "train.eval_steps needs something to evaluate on: give files in data.eval, or leave it out";
             });
  using RealOption = std::pair<const char*, double OptimSection::*>;
  for (const RealOption& option : {RealOption{"learning_rate", &OptimSection::learning_rate},
                                   RealOption{"weight_decay", &OptimSection::weight_decay},
                                   RealOption{"max_grad_norm", &OptimSection::max_grad_norm}}) {
    const auto name = option.first;
    const auto member = option.second;
    table.rule({fmt::format("optim.{}", name)},
               fmt::format("`optim.{}` is 0 or at least {}: float32 holds nothing smaller.", name, kSmallestFloat),
               [name, member](const Recipe& recipe) -> std::string {
                 const double value = recipe.optim.*member;
                 if (value == 0.0 || value >= kSmallestFloat) return {};
                 return fmt::format("optim.{} is {}, but float32 holds nothing between 0 and {}", name, value,
                                    kSmallestFloat);
               });
  }
  table.idle_rule("optim.decay_ratio", "`optim.decay_ratio` is for `lr_scheduler_type: wsd`.",
                  [](const Recipe& recipe) -> std::string {
                    if (recipe.optim.lr_scheduler_type == "wsd") return {};
                    return fmt::format(
                        "optim.decay_ratio is for lr_scheduler_type wsd, but that is {}; leave decay_ratio "
                        "out, or set lr_scheduler_type: wsd",
                        recipe.optim.lr_scheduler_type);
                  });
  table.idle_rule("optim.min_lr_ratio", "`optim.min_lr_ratio` is not for `lr_scheduler_type: constant`.",
                  [](const Recipe& recipe) -> std::string {
                    if (recipe.optim.lr_scheduler_type != "constant") return {};
                    return "optim.min_lr_ratio says where a falling rate ends, but lr_scheduler_type is constant; "
                           "leave it out, or use cosine, linear or wsd";
                  });
  table.rule(
      {"parallel.zero"}, "`parallel.zero` 2 and 3 are not in this version; the nearest is 1.",
      [](const Recipe& recipe) -> std::string {
        if (recipe.parallel.zero <= 1) return {};
        return fmt::format(
            "this version does not have parallel.zero {}; the nearest is 1, where gradients and the weights that "
            "are computed with stay whole on every rank",
            recipe.parallel.zero);
      });
  table.rule({"parallel.dp_shard_size", "parallel.zero"},
             "`parallel.dp_shard_size` above 1 needs `parallel.zero` above 0: there must be something to share.",
             [](const Recipe& recipe) -> std::string {
               if (recipe.parallel.dp_shard_size == 1 || recipe.parallel.zero > 0) return {};
               return fmt::format(
                   "parallel.dp_shard_size {} shares what parallel.zero cuts, but zero is 0; set zero: 1, or use "
                   "dp_replicate_size {}",
                   recipe.parallel.dp_shard_size, recipe.parallel.dp_shard_size * recipe.parallel.dp_replicate_size);
             });
  table.rule({"parallel.dp_replicate_size", "parallel.dp_shard_size", "parallel.sp_size"},
             "`parallel.sp_size` x `parallel.dp_replicate_size` x `parallel.dp_shard_size` = the ranks of the run, at "
             "most 1024, and `--ranks` where that is given.",
             [](const Recipe& recipe) -> std::string {
               const ParallelSection& p = recipe.parallel;
               const int64_t ranks = p.sp_size * p.dp_replicate_size * p.dp_shard_size;
               if (ranks <= static_cast<int64_t>(kMostRanks)) return {};
               return fmt::format("parallel.{} = {} ranks; at most {} run in one process", rank_sizes(p), ranks,
                                  kMostRanks);
             });
}

OptionTable<Recipe> make_recipe_table() {
  OptionTable<Recipe> table;
  add_model(table);
  add_data(table);
  add_parallel(table);
  add_memory(table);
  add_optim(table);
  add_train(table);
  add_foreign_options(table.catalog());
  add_absent(table.catalog());
  add_rules(table);
  return table;
}

// sp_size where it was not given: from ulysses_size x ring_size, and from --ranks, which must agree with whatever is.
void settle_ranks(Recipe& recipe, std::optional<int64_t> ranks) {
  ParallelSection& p = recipe.parallel;
  GivenOptions& given = recipe.given;
  const bool sp_given = given.contains("parallel.sp_size");
  const int64_t sizes = std::max<int64_t>(1, p.ulysses_size) * std::max<int64_t>(1, p.ring_size);
  if (!ranks) {
    if (!sp_given) p.sp_size = sizes;
    return;
  }
  if (*ranks < 1 || *ranks > static_cast<int64_t>(kMostRanks)) {
    throw ConfigurationError(fmt::format("--ranks must be between 1 and {}, but it is {}", kMostRanks, *ranks));
  }
  const int64_t dp = p.dp_replicate_size * p.dp_shard_size;
  if (sp_given) {
    if (p.sp_size * dp == *ranks) return;
    std::string fits = fmt::format("--ranks {} would fit", p.sp_size * dp);
    const int64_t of_one_copy = p.sp_size * p.dp_shard_size;
    if (*ranks % of_one_copy == 0) fits += fmt::format(", or dp_replicate_size {}", *ranks / of_one_copy);
    if (*ranks % dp == 0) fits += fmt::format(", or sp_size {}", *ranks / dp);
    if (*ranks % dp != 0 && *ranks % of_one_copy != 0) {
      int64_t nearest = 1;
      for (int64_t size = 1; size <= *ranks; ++size) {
        if (*ranks % size == 0 && std::abs(size - p.sp_size) <= std::abs(nearest - p.sp_size)) nearest = size;
      }
      fits += fmt::format(", or sp_size {} with dp_replicate_size {}{}", nearest, *ranks / nearest,
                          p.dp_shard_size > 1 ? " and dp_shard_size 1" : "");
    }
    throw ConfigurationError(fmt::format("{}: {} = {} ranks, but --ranks {}; {}", given.where("parallel.sp_size"),
                                         rank_sizes(p), p.sp_size * dp, *ranks, fits));
  }
  if (*ranks % dp != 0) {
    const char* name = p.dp_shard_size > 1 ? "dp_shard_size" : "dp_replicate_size";
    const std::string sizes =
        p.dp_shard_size > 1 && p.dp_replicate_size > 1
            ? fmt::format("dp_replicate_size {} x dp_shard_size {}", p.dp_replicate_size, p.dp_shard_size)
            : fmt::format("{} {}", name, dp);
    throw ConfigurationError(
        fmt::format("{}: {} does not divide --ranks {}; --ranks {} would fit, or {} 1",
                    given.where(fmt::format("parallel.{}", name)), sizes, *ranks, (*ranks / dp + 1) * dp,
                    p.dp_shard_size > 1 && *ranks % p.dp_replicate_size != 0 ? "both of them" : name));
  }
  p.sp_size = *ranks / dp;
  given.add("parallel.sp_size", fmt::format("--ranks {}", *ranks));
}

// `path` as it is meant when written in `folder`.
std::string resolve_path(const std::string& path, const std::string& folder, const std::string& where) {
  if (path.empty()) return path;
  if (path == "~" || path.starts_with("~/")) {
    throw ConfigurationError(
        fmt::format("{}: \"{}\": the tilde means a home folder only to a shell; write the path in "
                    "full",
                    where, path));
  }
  const std::filesystem::path given(path);
  if (given.is_absolute() || folder.empty()) return given.lexically_normal().string();
  return (std::filesystem::path(folder) / given).lexically_normal().string();
}

void resolve_paths(Recipe& recipe, const std::string& folder, OptionMistakes& mistakes) {
  const auto resolve = [&](std::string& path, const std::string& name, const std::string& recipe_folder) {
    const std::string where = recipe.given.where(name);
    const std::string& base = where.starts_with("--set ") ? std::string() : recipe_folder;
    mistakes.collect([&] { path = resolve_path(path, base, where); }, {name});
  };
  resolve(recipe.model.path, "model.path", folder);
  for (std::string& file : recipe.data.train) resolve(file, "data.train", folder);
  for (std::string& file : recipe.data.eval) resolve(file, "data.eval", folder);
  resolve(recipe.data.cache_dir, "data.cache_dir", folder);
  resolve(recipe.train.output_dir, "train.output_dir", {});
}

}  // namespace

const OptionTable<Recipe>& recipe_table() {
  static const OptionTable<Recipe> table = make_recipe_table();
  return table;
}

namespace {

// Reads, overrides and checks; what is wrong is collected.
Recipe read_recipe(const std::string& text, const std::string& file, const std::string& folder,
                   const RecipeOverrides& overrides, OptionMistakes& mistakes) {
  const OptionTable<Recipe>& table = recipe_table();
  const OptionCatalog& catalog = table.catalog();
  Recipe recipe;
  // Where it is not even YAML nothing can be said about the rest.
  if (!mistakes.collect([&] { table.apply(catalog.read_yaml(text, file, mistakes), recipe, recipe.given); })) {
    mistakes.throw_if_any();
  }
  std::vector<std::string> assignments = overrides.assignments;
  if (overrides.backend) assignments.push_back("train.backend=" + *overrides.backend);
  std::vector<OptionSetting> settings;
  for (const std::string& assignment : assignments) {
    mistakes.collect([&] { settings.push_back(catalog.read_assignment(assignment)); }, catalog.options_of(assignment));
  }
  table.apply(settings, recipe, recipe.given);
  const bool sizes_are_known = !mistakes.concern("parallel.sp_size") && !mistakes.concern("parallel.ulysses_size") &&
                               !mistakes.concern("parallel.ring_size") &&
                               !mistakes.concern("parallel.dp_replicate_size") &&
                               !mistakes.concern("parallel.dp_shard_size");
  if (sizes_are_known) {
    mistakes.collect([&] { settle_ranks(recipe, overrides.ranks); }, {"parallel.sp_size"});
  }
  table.check(recipe, recipe.given, file, mistakes);
  resolve_paths(recipe, folder, mistakes);
  return recipe;
}

// What a recipe names must be there. Whether it is what it should be is found when it is opened.
void check_files(const Recipe& recipe, OptionMistakes& mistakes) {
  namespace fs = std::filesystem;
  const GivenOptions& given = recipe.given;
  std::error_code error;
  if (!mistakes.concern("model.path") && !fs::is_directory(recipe.model.path, error)) {
    mistakes.add(fmt::format("{}: model.path: {}: {}; it is a Hugging Face model directory, with a config.json in it",
                             given.where("model.path"), recipe.model.path,
                             fs::exists(recipe.model.path, error) ? "this is not a folder" : "there is no such folder"),
                 {"model.path"});
  }
  for (const auto& [files, name] :
       {std::pair(&recipe.data.train, "data.train"), std::pair(&recipe.data.eval, "data.eval")}) {
    if (mistakes.concern(name)) continue;
    for (const std::string& file : *files) {
      const bool is_pattern = file.find_first_of("*?[") != std::string::npos;
      if (fs::exists(file, error) || is_pattern) continue;
      mistakes.add(
          fmt::format("{}: {}: {}: {}; relative paths are relative to the recipe, or to the current folder when "
                      "given with --set",
                      given.where(name), name, file,
                      error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory
                          ? "cannot be looked at: " + error.message()
                          : std::string("there is no such file")));
    }
  }
}

}  // namespace

Recipe parse_recipe(const std::string& text, const std::string& file, const std::string& folder,
                    const RecipeOverrides& overrides) {
  OptionMistakes mistakes;
  Recipe recipe = read_recipe(text, file, folder, overrides, mistakes);
  mistakes.throw_if_any();
  return recipe;
}

Recipe load_recipe(const std::string& path, const RecipeOverrides& overrides) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw ConfigurationError(path + ": this is a folder; a recipe is a YAML file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw ConfigurationError(fmt::format("{}: cannot open the recipe: {}", path, std::strerror(errno)));
  }
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) throw FileError(path + ": cannot read the recipe");
  OptionMistakes mistakes;
  Recipe recipe =
      read_recipe(text.str(), path, std::filesystem::path(path).parent_path().string(), overrides, mistakes);
  check_files(recipe, mistakes);
  check_run(recipe, mistakes);
  mistakes.throw_if_any();
  return recipe;
}

std::string resolved_recipe_text(const Recipe& recipe) {
  Recipe resolved = recipe;
  const auto absolute = [](std::string& path) {
    if (!path.empty()) path = std::filesystem::absolute(path).lexically_normal().string();
  };
  absolute(resolved.model.path);
  for (std::string& file : resolved.data.train) absolute(file);
  for (std::string& file : resolved.data.eval) absolute(file);
  absolute(resolved.data.cache_dir);
  absolute(resolved.train.output_dir);
  return recipe_table().write_yaml(resolved,
                                   "Every option that this run went by. Train it again with: ithaca train config.yaml "
                                   "--set train.output_dir=ANOTHER_FOLDER");
}

std::string recipe_reference_page() {
  return "# Options of a recipe\n\n"
         "<!-- Written by `make docs` from the table in src/train/recipe_options.cpp; a test holds it to that. -->\n\n"
         "A recipe is a YAML file of sections. Every option can also be given on the command line, where it wins over "
         "the\nfile: `--set section.name=value`; of several for one option the last one holds. Lists are written "
         "`[first, second]`.\nIntegers may be grouped: `1_000_000`. What is unknown, misspelt, doubled or of the wrong "
         "type is an error that names\nfile, line and column.\n\n"
         "Relative paths are relative to where they are written: `model.path` and data files to the recipe's folder, "
         "or to the\ncurrent folder when given with `--set`. `train.output_dir` is always relative to the current "
         "folder.\n\n"
         "`--ranks N` says how many ranks run: `sp_size` x `dp_replicate_size` x `dp_shard_size`. Where the recipe "
         "does not give\n`sp_size`, `--ranks` sets it.\n\n" +
         recipe_table().catalog().markdown() +
         "\n## Names that other programs use\n\nA name from Transformers, Accelerate, TRL, ms-swift, axolotl, "
         "DeepSpeed, "
         "LLaMA-Factory or Megatron-LM is an error that\nsays what it is here; [migrating.md](migrating.md) has them "
         "all.\n";
}

}  // namespace ithaca
