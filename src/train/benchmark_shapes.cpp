#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/random.h"
#include "base/text.h"
#include "train/benchmark.h"

namespace ithaca {

namespace {

struct PublishedShape {
  const char* name;
  const char* config;  // the parts of its config.json that say how much there is to compute
};

const std::vector<PublishedShape>& published_shapes() {
  static const std::vector<PublishedShape> shapes = {
      {"qwen3-0.6b",
       R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
           "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
           "tie_word_embeddings": true, "rope_theta": 1000000, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6})"},
      {"qwen3-4b",
       R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
           "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
           "tie_word_embeddings": true, "rope_theta": 1000000, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6})"},
      {"qwen3-8b",
       R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
           "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
           "tie_word_embeddings": false, "rope_theta": 1000000, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6})"},
      {"llama3.2-1b",
       R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
           "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
           "tie_word_embeddings": true, "rope_theta": 500000, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5})"},
      {"llama3.1-8b",
       R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
           "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
           "tie_word_embeddings": false, "rope_theta": 500000, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5})"},
  };
  return shapes;
}

}  // namespace

std::vector<std::string> published_shape_names() {
  std::vector<std::string> names;
  for (const PublishedShape& shape : published_shapes()) names.emplace_back(shape.name);
  return names;
}

ModelDescription published_shape(const std::string& name) {
  for (const PublishedShape& shape : published_shapes()) {
    if (shape.name == name) return parse_model_description(shape.config, "the shape " + name);
  }
  const std::vector<std::string> names = published_shape_names();
  const std::string near = nearest_name(name, names);
  throw ConfigurationError(fmt::format("--shape {}: the known shapes are {}{}; any other model: --model DIRECTORY",
                                       name, fmt::join(names, ", "),
                                       near.empty() ? "" : ", of which " + near + " is nearest"));
}

double model_step_flops(const ModelDescription& model, const std::vector<int64_t>& document_lengths) {
  const int64_t table = model.vocabulary * model.hidden_size;
  const int64_t multiplied = model.parameter_count() - (model.tied_head ? 0 : table);
  double flops = 0.0;
  for (const int64_t length : document_lengths) {
    const auto tokens = static_cast<double>(length);
    flops += 6.0 * static_cast<double>(multiplied) * tokens;
    for (const LayerDescription& layer : model.layers) {
      // Twice the visible pairs of a causal square, or of a band of `window` keys under the diagonal.
      const auto window = static_cast<double>(layer.window);
      const bool whole = layer.window == 0 || layer.window >= length;
      const double twice_pairs = whole ? tokens * tokens : 2.0 * tokens * window - window * window;
      flops += 3.5 * 2.0 * twice_pairs * static_cast<double>(model.query_heads * model.head_size);
    }
  }
  return flops;
}

namespace {

constexpr std::string_view kLongTailed = "long-tailed:";

std::vector<int64_t> exponential_documents(int64_t tokens, int64_t mean) {
  const RandomStream random(1, "benchmark documents");
  std::vector<int64_t> lengths;
  int64_t left = tokens;
  for (uint64_t number = 0; left > 0; ++number) {
    // Uniform in (0, 1], from the upper 53 bits.
    const double uniform = (static_cast<double>(random.bits(number) >> 11) + 1.0) * std::ldexp(1.0, -53);
    const double drawn = -std::log(uniform) * static_cast<double>(mean);
    const int64_t length = std::min(left, std::max<int64_t>(16, static_cast<int64_t>(drawn)));
    lengths.push_back(length);
    left -= length;
  }
  return lengths;
}

std::vector<int64_t> long_tailed_documents(int64_t tokens, int64_t mean) {
  constexpr double kSigma = 1.2;
  const RandomStream random(1, "long-tailed documents");
  const int64_t count = std::max<int64_t>(1, (tokens + mean / 2) / mean);
  std::vector<double> ends;  // of the documents, before they are scaled
  double end = 0.0;
  for (int64_t number = 0; number < count; ++number) {
    end += std::exp(kSigma * random.normal(static_cast<uint64_t>(number)));
    ends.push_back(end);
  }
  std::vector<int64_t> lengths;
  int64_t begin = 0;
  for (const double each : ends) {
    const auto scaled = static_cast<int64_t>(std::llround(each / end * static_cast<double>(tokens)));
    if (scaled > begin) lengths.push_back(scaled - begin);
    begin = scaled;
  }
  return lengths;
}

}  // namespace

DocumentMix parse_document_mix(const std::string& text) {
  DocumentMix mix;
  std::string_view number = text;
  mix.kind = DocumentMix::Kind::exponential;
  if (number.starts_with(kLongTailed)) {
    mix.kind = DocumentMix::Kind::long_tailed;
    number.remove_prefix(kLongTailed.size());
  }
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), mix.mean);
  const bool is_whole = error == std::errc() && end == number.data() + number.size();
  if (is_whole && mix.kind == DocumentMix::Kind::exponential && mix.mean == 0) return {};
  if (!is_whole || mix.mean < 1) {
    throw ConfigurationError(fmt::format(
        "--documents: '{}' is neither 0 (one document) nor a mean length, such as 8192 or long-tailed:8192", text));
  }
  return mix;
}

std::string document_mix_text(const DocumentMix& mix) {
  return fmt::format("{}{}", mix.kind == DocumentMix::Kind::long_tailed ? kLongTailed : "", mix.mean);
}

void check_benchmark_sequence(int64_t tokens, const DocumentMix& mix) {
  if (tokens < 1 || tokens > kMostBenchmarkTokens) {
    throw ConfigurationError(fmt::format("--tokens: {} is not a number of tokens; at least 1 is needed, and at most {}",
                                         tokens, format_count(kMostBenchmarkTokens)));
  }
  if (mix.kind == DocumentMix::Kind::one || tokens / mix.mean <= kMostBenchmarkDocuments) return;
  throw ConfigurationError(
      fmt::format("--documents: {} tokens in documents of mean {} are more than the {} documents "
                  "that are possible; a mean of {} or more works",
                  tokens, mix.mean, format_count(kMostBenchmarkDocuments), tokens / kMostBenchmarkDocuments + 1));
}

std::vector<int64_t> benchmark_documents(int64_t tokens, const DocumentMix& mix) {
  if (mix.kind == DocumentMix::Kind::one || mix.mean >= tokens) return {tokens};
  return mix.kind == DocumentMix::Kind::exponential ? exponential_documents(tokens, mix.mean)
                                                    : long_tailed_documents(tokens, mix.mean);
}

}  // namespace ithaca
