// tokenizer.json: anything is read or refused, and what is read encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/json_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = ithaca::tokenizer_internal::make_json_tokenizer(text, "tokenizer.json", {});
    for (const std::string_view sample : {"", " a  ab\n",
                                          "It's 12\xC3\xA9"
                                          "e\xCC\x81\xE2\x96\x81\xF0\x9F\x91\x8D\xFF<s>aab"}) {
      const ithaca::Encoding encoding = tokenizer->encode(sample, {true, true});
      if (encoding.ids.size() != encoding.spans.size()) __builtin_trap();
      for (const ithaca::TextSpan& span : encoding.spans) {
        if (span.begin < 0 || span.begin > span.end || span.end > static_cast<int64_t>(sample.size())) __builtin_trap();
      }
      if (tokenizer->encode(sample, {true, false}).ids != encoding.ids) __builtin_trap();
      tokenizer->decode(encoding.ids, {});
      tokenizer->decode(encoding.ids, {true});
    }
  } catch (const ithaca::Error&) {
    // Refused in words.
  }
  return 0;
}
