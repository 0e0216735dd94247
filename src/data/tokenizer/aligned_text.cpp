#include "data/tokenizer/aligned_text.h"

#include <algorithm>

#include "base/utf8.h"

namespace ithaca::tokenizer_internal {

AlignedText::AlignedText(const AlignedText& whole, int64_t begin, int64_t end)
    : text_(whole.text_.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin))),
      begin_(whole.begin_ + begin),
      tracked_(whole.tracked_),
      owned_(whole.owned_) {
  if (tracked_ && !whole.parts_.empty()) whole.append_parts(begin, end, -begin, parts_);
}

void AlignedText::append_parts(int64_t begin, int64_t end, int64_t shift, std::vector<Part>& parts) const {
  if (parts_.empty()) {
    parts.push_back({begin + shift, {begin_ + begin, begin_ + end}, true});
    return;
  }
  auto next = std::upper_bound(parts_.begin(), parts_.end(), begin,
                               [](int64_t value, const Part& part) { return value < part.begin; });
  if (next != parts_.begin()) --next;
  for (; next != parts_.end() && (next->begin < end || next->begin == begin); ++next) {
    const int64_t part_end = next + 1 == parts_.end() ? size() : (next + 1)->begin;
    const int64_t from = std::max(begin, next->begin);
    const int64_t to = std::min(end, part_end);
    if (from >= to) continue;
    Part part{from + shift, next->original, next->one_to_one};
    if (part.one_to_one)
      part.original = {next->original.begin + from - next->begin, next->original.begin + to - next->begin};
    parts.push_back(part);
  }
}

TextSpan AlignedText::origin(int64_t begin, int64_t end) const {
  if (parts_.empty()) return {begin_ + begin, begin_ + end};
  std::vector<Part>::const_iterator part =
      std::upper_bound(parts_.begin(), parts_.end(), begin,
                       [](int64_t value, const Part& candidate) { return value < candidate.begin; });
  if (part != parts_.begin()) --part;
  TextSpan result{-1, -1};
  int64_t place = part->original.begin;
  for (; part != parts_.end() && part->begin < end; ++part) {
    const int64_t part_end = part + 1 == parts_.end() ? size() : (part + 1)->begin;
    const int64_t from = std::max(begin, part->begin);
    const int64_t to = std::min(end, part_end);
    if (from >= to) continue;
    TextSpan original = part->original;
    if (part->one_to_one)
      original = {part->original.begin + from - part->begin, part->original.begin + to - part->begin};
    place = original.begin;
    if (original.begin == original.end) continue;
    if (result.begin < 0) result.begin = original.begin;
    result.end = original.end;
  }
  return result.begin < 0 ? TextSpan{place, place} : result;
}

void TextEdit::keep_until(int64_t end) {
  if (end == done_) return;
  text_->append(source_.text().substr(static_cast<size_t>(done_), static_cast<size_t>(end - done_)));
  if (source_.tracked_) source_.append_parts(done_, end, static_cast<int64_t>(text_->size()) - end, parts_);
  done_ = end;
}

void TextEdit::replace(int64_t begin, int64_t end, std::string_view text) {
  if (!text_) {
    text_ = std::make_shared<std::string>();
    text_->reserve(static_cast<size_t>(source_.size() + source_.size() / 8));
  }
  keep_until(begin);
  if (source_.tracked_ && !text.empty()) {
    TextSpan original;
    if (begin < end) {
      original = source_.origin(begin, end);
    } else if (begin < source_.size()) {
      original.begin = original.end = source_.origin(begin, begin + 1).begin;
    } else {
      original.begin = original.end = begin > 0 ? source_.origin(begin - 1, begin).end : source_.origin(0, 0).begin;
    }
    parts_.push_back({static_cast<int64_t>(text_->size()), original, false});
  }
  text_->append(text);
  done_ = end;
}

AlignedText TextEdit::finish() {
  if (!text_) return {source_, 0, source_.size()};
  keep_until(source_.size());
  AlignedText result(*text_, source_.begin_, source_.tracked_);
  // Everything was removed: a part that says where.
  if (source_.tracked_ && parts_.empty()) {
    const int64_t place = source_.origin(0, source_.size()).begin;
    parts_.push_back({0, {place, place}, false});
  }
  result.owned_ = std::move(text_);
  result.parts_ = std::move(parts_);
  return result;
}

AlignedText replace_invalid_utf8(const AlignedText& bytes) {
  TextEdit edit(bytes);
  for (int64_t place = 0; place < bytes.size();) {
    const std::string_view rest = bytes.text().substr(static_cast<size_t>(place));
    const int64_t valid = valid_utf8_prefix(rest);
    place += valid;
    if (place == bytes.size()) break;
    const int64_t invalid = invalid_utf8_length(rest.substr(static_cast<size_t>(valid)));
    edit.replace(place, place + invalid, kReplacementCharacter);
    place += invalid;
  }
  return edit.finish();
}

}  // namespace ithaca::tokenizer_internal
