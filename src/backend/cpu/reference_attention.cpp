#include "backend/cpu/reference_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ithaca {

namespace {

size_t index(int64_t value) {
  return static_cast<size_t>(value);
}

// The visible keys of one query and their probabilities.
struct ProbabilityRow {
  std::vector<int64_t> keys;
  std::vector<double> probabilities;
  double log_sum_exp = -std::numeric_limits<double>::infinity();
};

class RowMaker {
 public:
  RowMaker(const ReferenceAttention& attention, const AttentionVisibility& visible)
      : attention_(attention), visible_(visible) {}

  const double* query(int64_t token, int64_t head) const {
    return attention_.query.data() + (token * attention_.query_heads + head) * attention_.key_size;
  }
  const double* key(int64_t token, int64_t head) const {
    return attention_.key.data() + (token * attention_.key_heads + head) * attention_.key_size;
  }
  const double* value(int64_t token, int64_t head) const {
    return attention_.value.data() + (token * attention_.key_heads + head) * attention_.value_size;
  }
  int64_t key_head(int64_t query_head) const { return query_head / (attention_.query_heads / attention_.key_heads); }

  ProbabilityRow row(int64_t token, int64_t head) const {
    ProbabilityRow row;
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t k = 0; k < attention_.key_tokens; ++k) {
      if (!visible_(token, k)) continue;
      const double* q = query(token, head);
      const double* key_row = key(k, key_head(head));
      double score = 0.0;
      for (int64_t i = 0; i < attention_.key_size; ++i) score += q[i] * key_row[i];
      score *= attention_.scale;
      row.keys.push_back(k);
      row.probabilities.push_back(score);
      maximum = std::max(maximum, score);
    }
    if (row.keys.empty()) return row;
    double sum = 0.0;
    for (double& probability : row.probabilities) {
      probability = std::exp(probability - maximum);
      sum += probability;
    }
    for (double& probability : row.probabilities) probability /= sum;
    row.log_sum_exp = maximum + std::log(sum);
    return row;
  }

 private:
  const ReferenceAttention& attention_;
  const AttentionVisibility& visible_;
};

void check(const ReferenceAttention& attention) {
  const auto holds = [](const std::vector<double>& values, int64_t tokens, int64_t heads, int64_t size) {
    return static_cast<int64_t>(values.size()) == Extents{tokens, heads, size}.product();
  };
  require(holds(attention.query, attention.query_tokens, attention.query_heads, attention.key_size) &&
              holds(attention.key, attention.key_tokens, attention.key_heads, attention.key_size) &&
              holds(attention.value, attention.key_tokens, attention.key_heads, attention.value_size),
          "reference attention: arrays do not fit the extents");
  require(attention.key_heads > 0 ? attention.query_heads % attention.key_heads == 0 : attention.query_heads == 0,
          "reference attention: query heads must be a multiple of key heads");
}

template <typename T>
void append(const Tensor& tensor, int dimension, const T* data, std::vector<double>& to) {
  if (dimension == tensor.rank()) {
    to.push_back(static_cast<double>(*data));
    return;
  }
  for (int64_t i = 0; i < tensor.extent(dimension); ++i) {
    append(tensor, dimension + 1, data + i * tensor.stride(dimension), to);
  }
}

}  // namespace

AttentionVisibility visible_in_tasks(std::span<const AttentionTask> tasks) {
  return [copy = std::vector<AttentionTask>(tasks.begin(), tasks.end())](int64_t query, int64_t key) {
    return std::any_of(copy.begin(), copy.end(), [&](const AttentionTask& task) {
      if (query < task.q_begin || query >= task.q_end || key < task.k_begin || key >= task.k_end) return false;
      const int64_t diagonal = (key - task.k_begin) - (query - task.q_begin);
      return task.lower < diagonal && diagonal <= task.upper;
    });
  };
}

AttentionVisibility visible_everywhere() {
  return [](int64_t, int64_t) { return true; };
}

AttentionVisibility visible_causally() {
  return [](int64_t query, int64_t key) { return key <= query; };
}

std::vector<double> to_doubles(const Tensor& tensor) {
  std::vector<double> result;
  result.reserve(index(tensor.element_count()));
  if (tensor.dtype == DType::float32) {
    append(tensor, 0, tensor.as<float>(), result);
  } else {
    append(tensor, 0, tensor.as<double>(), result);
  }
  return result;
}

ReferenceAttention make_reference_attention(const Tensor& query, const Tensor& key, const Tensor& value, double scale) {
  require(query.rank() == 3 && key.rank() == 3 && value.rank() == 3,
          fmt::format("reference attention: query {}, key {} and value {} must have dimensions [tokens, heads, size]",
                      query.describe(), key.describe(), value.describe()));
  return {query.extent(0), key.extent(0), query.extent(1),   key.extent(1),   query.extent(2),
          value.extent(2), scale,         to_doubles(query), to_doubles(key), to_doubles(value)};
}

ReferenceAttentionOutput reference_attention_forward(const ReferenceAttention& attention,
                                                     const AttentionVisibility& visible) {
  check(attention);
  const RowMaker maker(attention, visible);
  ReferenceAttentionOutput result;
  result.output.assign(index(attention.query_tokens * attention.query_heads * attention.value_size), 0.0);
  result.log_sum_exp.assign(index(attention.query_tokens * attention.query_heads), 0.0);
  for (int64_t token = 0; token < attention.query_tokens; ++token) {
    for (int64_t head = 0; head < attention.query_heads; ++head) {
      const ProbabilityRow row = maker.row(token, head);
      const int64_t at = token * attention.query_heads + head;
      result.log_sum_exp[index(at)] = row.log_sum_exp;
      double* output = result.output.data() + at * attention.value_size;
      for (size_t j = 0; j < row.keys.size(); ++j) {
        const double* value = maker.value(row.keys[j], maker.key_head(head));
        for (int64_t i = 0; i < attention.value_size; ++i) output[i] += row.probabilities[j] * value[i];
      }
    }
  }
  return result;
}

ReferenceAttentionGradient reference_attention_backward(const ReferenceAttention& attention,
                                                        std::span<const double> doutput,
                                                        const AttentionVisibility& visible) {
  check(attention);
  require(static_cast<int64_t>(doutput.size()) == attention.query_tokens * attention.query_heads * attention.value_size,
          "reference attention: doutput does not fit the extents");
  const RowMaker maker(attention, visible);
  ReferenceAttentionGradient result;
  result.dquery.assign(attention.query.size(), 0.0);
  result.dkey.assign(attention.key.size(), 0.0);
  result.dvalue.assign(attention.value.size(), 0.0);
  for (int64_t token = 0; token < attention.query_tokens; ++token) {
    for (int64_t head = 0; head < attention.query_heads; ++head) {
      const ProbabilityRow row = maker.row(token, head);
      const int64_t at = token * attention.query_heads + head;
      const double* row_doutput = doutput.data() + at * attention.value_size;
      const double* query = maker.query(token, head);
      double* dquery = result.dquery.data() + at * attention.key_size;
      std::vector<double> dprobabilities(row.keys.size(), 0.0);
      double mean = 0.0;  // of dprobabilities under the probabilities
      for (size_t j = 0; j < row.keys.size(); ++j) {
        const double* value = maker.value(row.keys[j], maker.key_head(head));
        for (int64_t i = 0; i < attention.value_size; ++i) dprobabilities[j] += row_doutput[i] * value[i];
        mean += row.probabilities[j] * dprobabilities[j];
      }
      for (size_t j = 0; j < row.keys.size(); ++j) {
        const int64_t key_at = row.keys[j] * attention.key_heads + maker.key_head(head);
        const double* key = attention.key.data() + key_at * attention.key_size;
        double* dkey = result.dkey.data() + key_at * attention.key_size;
        double* dvalue = result.dvalue.data() + key_at * attention.value_size;
        const double dscore = row.probabilities[j] * (dprobabilities[j] - mean) * attention.scale;
        for (int64_t i = 0; i < attention.value_size; ++i) dvalue[i] += row.probabilities[j] * row_doutput[i];
        for (int64_t i = 0; i < attention.key_size; ++i) {
          dquery[i] += dscore * key[i];
          dkey[i] += dscore * query[i];
        }
      }
    }
  }
  return result;
}

}  // namespace ithaca
