// Chat templates: the bytes are a template for a fixed conversation or, behind "json:", a conversation for fixed
// templates. Whatever they are, rendering ends soon, with a text or with an ithaca::Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "data/chat/chat_template.h"

namespace {

using Json = nlohmann::ordered_json;

ithaca::ChatOptions small_options() {
  ithaca::ChatOptions options;
  options.add_generation_prompt = true;
  options.now = 1722003723;
  options.limits.steps = 100'000;
  options.limits.bytes = 1 << 20;
  return options;
}

void render(const ithaca::ChatTemplate& chat, const Json& conversation) {
  const ithaca::RenderedChat result = chat.render(conversation, small_options());
  const auto size = static_cast<int64_t>(result.text.size());
  for (const ithaca::TextSpan& span : result.generated) {
    if (span.begin < 0 || span.end < span.begin || span.end > size) std::abort();
  }
}

void fuzz_template(std::string_view source) {
  static const Json kConversation = Json::parse(R"({
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße 🎉", "n": [1, 2.5, null]},
                 {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "text": "Hello, World", "numbers": [3, 1, 2], "mapping": {"b": 2, "A": 1, "c": null}})");
  render(ithaca::ChatTemplate(source, "fuzz.jinja"), kConversation);
}

void fuzz_conversation(std::string_view text) {
  static const ithaca::ChatTemplate kTemplate(
      "{%- for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}{% endgeneration %}"
      "{% elif m.content is string %}{{ m.content[::-1] | title }}{% else %}{{ m | tojson(indent=1) }}{% endif %}"
      "{% for k, v in (m | default({})).items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}"
      "{{ (tools or []) | map(attribute='function') | list }}{{ messages | groupby('role') }}",
      "fixed.jinja");
  const Json conversation = Json::parse(text.begin(), text.end(), nullptr, false);
  if (!conversation.is_discarded()) render(kTemplate, conversation);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  constexpr std::string_view kJson = "json:";
  try {
    if (input.substr(0, kJson.size()) == kJson) {
      fuzz_conversation(input.substr(kJson.size()));
    } else {
      fuzz_template(input);
    }
  } catch (const ithaca::Error&) {
    // Said aloud is all that is asked for.
  }
  return 0;
}
