#include "data/tokenizer/pattern.h"

#include <array>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/oniguruma_syntax.h"
#include "data/tokenizer/unicode_tables.h"

namespace ithaca::tokenizer_internal {

namespace {

struct PcreDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

template <class Resource>
using PcrePointer = std::unique_ptr<Resource, PcreDeleter>;

std::string pcre_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  if (pcre2_get_error_message(code, buffer.data(), buffer.size()) < 0) return "error " + std::to_string(code);
  return reinterpret_cast<const char*>(buffer.data());
}

PCRE2_SPTR pcre_text(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

// Backtracking over long runs keeps its state on a stack of its own, which grows as needed up to this.
constexpr size_t kLargestStack = size_t{256} << 20U;

// Which code points PCRE2 needs a stand-in for: a bit for each block of 64, then the table.
const std::vector<bool>& stand_in_blocks() {
  static const std::vector<bool> blocks = [] {
    std::vector<bool> result(0x110000 / 64, false);
    for (const StandIn& range : stand_ins()) {
      for (char32_t block = range.first / 64; block <= range.last / 64; ++block) result[block] = true;
    }
    return result;
  }();
  return blocks;
}

// The text with stand-ins; empty where there is nothing to replace.
std::string with_stand_ins(std::string_view text) {
  const std::vector<bool>& blocks = stand_in_blocks();
  std::string result;
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t place = skip_ascii(text, 0); place < size; place = skip_ascii(text, place)) {
    const std::string_view rest = text.substr(static_cast<size_t>(place));
    const int64_t length = utf8_length(rest[0]);
    const char32_t code_point = first_code_point(rest);
    const StandIn* range = blocks[code_point / 64] ? find_range(stand_ins(), code_point) : nullptr;
    if (range != nullptr) {
      if (result.empty()) result = text;
      std::string known;
      append_utf8(known, range->known);
      result.replace(static_cast<size_t>(place), static_cast<size_t>(length), known);
    }
    place += length;
  }
  return result;
}

}  // namespace

struct PatternScratch::State {
  PcrePointer<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};
  PcrePointer<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  PcrePointer<pcre2_jit_stack> stack{pcre2_jit_stack_create(size_t{32} << 10U, kLargestStack, nullptr)};
};

PatternScratch::PatternScratch() : state_(std::make_unique<State>()) {
  if (!state_->data || !state_->context) throw std::bad_alloc();
  if (state_->stack) pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
  pcre2_set_heap_limit(state_->context.get(), static_cast<uint32_t>(kLargestStack >> 10U));
}
PatternScratch::PatternScratch(PatternScratch&&) noexcept = default;
PatternScratch& PatternScratch::operator=(PatternScratch&&) noexcept = default;
PatternScratch::~PatternScratch() = default;

struct Pattern::Compiled {
  PcrePointer<pcre2_code> code;
  bool jit = false;
};

Pattern::Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Pattern Pattern::literal(std::string text) {
  Pattern result;
  result.literal_ = std::move(text);
  return result;
}

Pattern Pattern::regex(std::string_view oniguruma, const std::string& where) {
  const std::string translated = pcre_from_oniguruma(oniguruma, where);
  const PcrePointer<pcre2_compile_context> context{pcre2_compile_context_create(nullptr)};
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Pattern result;
  result.where_ = where;
  result.compiled_ = std::make_unique<Compiled>();
  // In Oniguruma ^ and $ always stand for the borders of lines.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  result.compiled_->code.reset(
      pcre2_compile(pcre_text(translated), translated.size(), options, &error, &offset, context.get()));
  if (!result.compiled_->code) {
    throw InputError(where + ": the regular expression " + brief_expression(oniguruma, 0) +
                     " is not understood: " + pcre_message(error) + " (near byte " + std::to_string(offset) +
                     " of its form for PCRE2, " + brief_expression(translated, offset) + ")");
  }
  result.compiled_->jit = pcre2_jit_compile(result.compiled_->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return result;
}

std::optional<TextSpan> Pattern::find(std::string_view text, int64_t begin, PatternScratch& scratch) const {
  if (!compiled_) {
    const size_t found = text.find(literal_, static_cast<size_t>(begin));
    if (found == std::string_view::npos) return std::nullopt;
    return TextSpan{static_cast<int64_t>(found), static_cast<int64_t>(found + literal_.size())};
  }
  PatternScratch::State& state = *scratch.state_;
  const pcre2_code* code = compiled_->code.get();
  const auto run = [&](bool jit) {
    return jit ? pcre2_jit_match(code, pcre_text(text), text.size(), static_cast<size_t>(begin), PCRE2_NO_UTF_CHECK,
                                 state.data.get(), state.context.get())
               : pcre2_match(code, pcre_text(text), text.size(), static_cast<size_t>(begin),
                             PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data.get(), state.context.get());
  };
  int status = run(compiled_->jit);
  if (status == PCRE2_ERROR_JIT_STACKLIMIT) status = run(false);
  if (status == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (status < 0) {
    throw InputError(where_ + ": the regular expression cannot be matched with a text of " +
                     std::to_string(text.size()) + " bytes: " + pcre_message(status));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(state.data.get());
  return TextSpan{static_cast<int64_t>(offsets[0]), static_cast<int64_t>(offsets[1])};
}

Pattern::Walk::Walk(const Pattern& pattern, std::string_view text, PatternScratch& scratch)
    : pattern_(pattern), text_(text), scratch_(scratch) {
  if (!pattern_.compiled_) return;
  stand_in_ = with_stand_ins(text);
  if (!stand_in_.empty()) text_ = stand_in_;
}

std::optional<TextSpan> Pattern::Walk::next() {
  const auto size = static_cast<int64_t>(text_.size());
  while (place_ <= size) {
    const std::optional<TextSpan> found = pattern_.find(text_, place_, scratch_);
    if (!found) break;
    if (found->begin == found->end && found->end == last_end_) {
      place_ += place_ < size ? utf8_length(text_[static_cast<size_t>(place_)]) : 1;
      continue;
    }
    place_ = last_end_ = found->end;
    return found;
  }
  place_ = size + 1;
  return std::nullopt;
}

}  // namespace ithaca::tokenizer_internal
