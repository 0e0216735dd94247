#include "data/tokenizer/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "data/tokenizer/unicode_tables.h"

namespace ithaca::tokenizer_internal {

namespace {

constexpr char32_t kCodePoints = 0x110000;
constexpr char32_t kHangulBegin = 0xAC00;
constexpr char32_t kHangulEnd = 0xD7A4;
// The longest decomposition of one code point has 18 (U+FDFA).
constexpr size_t kLongestDecomposition = 32;

// Code points that Hugging Face's normalization does not know: nothing happens to them or across them.
bool is_young(char32_t code_point) {
  return find_range(young_to_normalization(), code_point) != nullptr;
}

// Appends the full decomposition of a code point.
void decompose(char32_t code_point, bool compatibility, std::vector<utf8proc_int32_t>& result) {
  std::array<utf8proc_int32_t, kLongestDecomposition> buffer{};
  int boundary = 0;
  const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0);
  const utf8proc_ssize_t count =
      is_young(code_point) ? 0
                           : utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), buffer.data(),
                                                     buffer.size(), static_cast<utf8proc_option_t>(options), &boundary);
  if (count <= 0 || count > static_cast<utf8proc_ssize_t>(buffer.size())) {
    result.push_back(static_cast<utf8proc_int32_t>(code_point));
  } else {
    result.insert(result.end(), buffer.begin(), buffer.begin() + count);
  }
}

int combining_class(utf8proc_int32_t code_point) {
  const int value = static_cast<int>(utf8proc_get_property(code_point)->combining_class);
  return value != 0 && is_young(static_cast<char32_t>(code_point)) ? 0 : value;
}

}  // namespace

const NormalForm& NormalForm::get(bool compatibility, bool composed) {
  if (compatibility && composed) {
    static const NormalForm nfkc(true, true);
    return nfkc;
  }
  if (compatibility) {
    static const NormalForm nfkd(true, false);
    return nfkd;
  }
  if (composed) {
    static const NormalForm nfc(false, true);
    return nfc;
  }
  static const NormalForm nfd(false, false);
  return nfd;
}

NormalForm::NormalForm(bool compatibility, bool composed)
    : compatibility_(compatibility), composed_(composed), traits_(kCodePoints, 0) {
  constexpr uint16_t kNone = UINT16_MAX;
  std::vector<utf8proc_int32_t> parts;
  std::vector<char32_t> decomposed;  // those that are not their own decomposition, without the Hangul syllables
  // What may be the second half of a composition: every part but the first of a canonical decomposition.
  std::vector<bool> second(kCodePoints, false);
  for (char32_t vowel = 0x1161; vowel <= 0x1175; ++vowel) second[vowel] = true;
  for (char32_t final = 0x11A8; final <= 0x11C2; ++final) second[final] = true;
  for (char32_t code_point = 0x80; code_point < kCodePoints; ++code_point) {
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point));
    if (property->decomp_seqindex == kNone || is_young(code_point)) continue;
    decomposed.push_back(code_point);
    parts.clear();
    decompose(code_point, false, parts);
    for (size_t index = 1; index < parts.size(); ++index) second[static_cast<size_t>(parts[index])] = true;
  }
  for (char32_t code_point = 0x80; code_point < kCodePoints; ++code_point) {
    if (second[code_point] || combining_class(static_cast<utf8proc_int32_t>(code_point)) != 0) {
      traits_[code_point] = kAttaches;
    }
  }
  std::string before;
  std::string after;
  for (const char32_t code_point : decomposed) {
    parts.clear();
    decompose(code_point, compatibility_, parts);
    if ((traits_[static_cast<size_t>(parts[0])] & kAttaches) != 0) traits_[code_point] |= kAttaches;
    before.clear();
    append_utf8(before, code_point);
    normalize(before, after);
    if (before != after) traits_[code_point] |= kChanges;
  }
  if (!composed_) {
    for (char32_t code_point = kHangulBegin; code_point < kHangulEnd; ++code_point) traits_[code_point] |= kChanges;
  }
}

void NormalForm::normalize(std::string_view segment, std::string& result) const {
  std::vector<utf8proc_int32_t> parts;
  while (!segment.empty()) {
    decompose(first_code_point(segment), compatibility_, parts);
    segment.remove_prefix(static_cast<size_t>(utf8_length(segment[0])));
  }
  // Canonical order: runs of marks sorted by their class, otherwise as they were.
  for (size_t begin = 0; begin < parts.size();) {
    if (combining_class(parts[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < parts.size() && combining_class(parts[end]) != 0) ++end;
    std::stable_sort(parts.begin() + static_cast<std::ptrdiff_t>(begin),
                     parts.begin() + static_cast<std::ptrdiff_t>(end),
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  result.clear();
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin + 1;
    while (end < parts.size() && !is_young(static_cast<char32_t>(parts[end]))) ++end;
    auto size = static_cast<utf8proc_ssize_t>(end - begin);
    if (composed_) {
      size = utf8proc_normalize_utf32(parts.data() + begin, size,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    }
    for (utf8proc_ssize_t index = 0; index < size; ++index) {
      append_utf8(result, static_cast<char32_t>(parts[begin + static_cast<size_t>(index)]));
    }
    begin = end;
  }
}

AlignedText NormalForm::apply(const AlignedText& source) const {
  const std::string_view text = source.text();
  TextEdit edit(source);
  std::string normalized;
  int64_t place = skip_ascii(text, 0);
  while (place < source.size()) {
    // What attaches belongs to the segment of the character before it, which may be ASCII.
    int64_t begin = place;
    uint8_t seen = 0;
    const auto look = [&] {
      const std::string_view rest = text.substr(static_cast<size_t>(place));
      seen = traits(first_code_point(rest));
      return utf8_length(rest[0]);
    };
    int64_t length = look();
    bool involved = (seen & kChanges) != 0;
    if ((seen & kAttaches) != 0 && begin > 0) {
      --begin;
      while (is_continuation(text[static_cast<size_t>(begin)])) --begin;
      involved = true;
    }
    place += length;
    while (place < source.size() && static_cast<unsigned char>(text[static_cast<size_t>(place)]) >= 0x80) {
      length = look();
      if ((seen & kAttaches) == 0) break;
      involved = true;
      place += length;
    }
    if (involved) {
      const std::string_view segment = text.substr(static_cast<size_t>(begin), static_cast<size_t>(place - begin));
      normalize(segment, normalized);
      if (segment != normalized) edit.replace(begin, place, normalized);
    }
    place = skip_ascii(text, place);
  }
  return edit.finish();
}

}  // namespace ithaca::tokenizer_internal
