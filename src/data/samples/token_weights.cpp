#include "data/samples/token_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "data/samples/quoted_text.h"
#include "data/samples/sample.h"

namespace ithaca {

namespace {

constexpr int64_t kShownBytes = 24;

[[noreturn]] void complain_of_boundary(const WeightedText& text, TextSpan token, int64_t boundary,
                                       const std::string& place) {
  const std::string_view bytes = std::string_view(text.text).substr(static_cast<size_t>(token.begin),
                                                                    static_cast<size_t>(token.end - token.begin));
  throw RecordError(
      place,
      fmt::format("the token of {} is partly trained and partly not: a boundary lies inside of it (in {}); move the "
                  "white space or the letters at the boundary to one side of it",
                  quoted_text(bytes.substr(0, 2 * kShownBytes)), quoted_text_around(text.text, boundary, kShownBytes)),
      "a token is partly trained and partly not");
}

}  // namespace

void WeightedText::add(TextSpan span, float weight) {
  if (span.begin >= span.end || weight == 0.0f) return;
  if (!spans.empty() && spans.back().span.end == span.begin && spans.back().weight == weight) {
    spans.back().span.end = span.end;
  } else {
    spans.push_back({span, weight});
  }
}

bool WeightedText::has_one_weight_everywhere(float weight) const {
  return spans.size() == 1 && spans[0].weight == weight && spans[0].span.begin == 0 &&
         spans[0].span.end == static_cast<int64_t>(text.size());
}

std::vector<float> token_weights(const WeightedText& text, const Encoding& encoding, float trailing_weight,
                                 const std::string& place) {
  require(encoding.spans.size() == encoding.ids.size(), "token_weights() needs an encoding with spans");
  std::vector<float> weights(encoding.ids.size(), 0.0f);
  size_t without_bytes = 0;  // tokens right before the one at hand that have no bytes of their own
  for (size_t i = 0; i < weights.size(); ++i) {
    const TextSpan token = encoding.spans[i];
    if (token.begin >= token.end) {
      ++without_bytes;
      continue;
    }
    const auto ends_behind = [](int64_t begin, const WeightedSpan& candidate) { return begin < candidate.span.end; };
    const auto trained = std::upper_bound(text.spans.begin(), text.spans.end(), token.begin, ends_behind);
    if (trained != text.spans.end() && trained->span.begin < token.end) {
      if (trained->span.begin > token.begin) complain_of_boundary(text, token, trained->span.begin, place);
      if (trained->span.end < token.end) complain_of_boundary(text, token, trained->span.end, place);
      weights[i] = trained->weight;
    }
    for (; without_bytes > 0; --without_bytes) weights[i - without_bytes] = weights[i];
  }
  for (; without_bytes > 0; --without_bytes) weights[weights.size() - without_bytes] = trailing_weight;
  return weights;
}

}  // namespace ithaca
