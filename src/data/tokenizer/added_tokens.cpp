#include "data/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "base/utf8.h"
#include "data/tokenizer/unicode.h"

namespace ithaca::tokenizer_internal {

void SpellingMatcher::add(std::string_view spelling, int32_t index) {
  if (spelling.empty()) return;
  const auto first = static_cast<unsigned char>(spelling[0]);
  if (!begins_[first]) {
    begins_[first] = true;
    lone_beginning_.push_back(spelling[0]);
  }
  size_t node = 0;
  for (const char byte : spelling) {
    const auto [next, added] =
        nodes_[node].next.emplace(static_cast<unsigned char>(byte), static_cast<int32_t>(nodes_.size()));
    const auto target = static_cast<size_t>(next->second);
    if (added) nodes_.emplace_back();
    node = target;
  }
  // Of equal spellings the first counts.
  if (nodes_[node].index < 0) nodes_[node].index = index;
  longest_ = std::max(longest_, static_cast<int32_t>(spelling.size()));
}

std::optional<SpellingMatcher::Match> SpellingMatcher::find(std::string_view text, int64_t begin) const {
  for (auto start = static_cast<size_t>(begin); start < text.size(); ++start) {
    if (lone_beginning_.size() == 1) {
      const void* found = std::memchr(text.data() + start, lone_beginning_[0], text.size() - start);
      if (found == nullptr) return std::nullopt;
      start = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    } else {
      while (start < text.size() && !begins_[static_cast<unsigned char>(text[start])]) ++start;
    }
    std::optional<Match> longest;
    size_t node = 0;
    for (size_t place = start; place < text.size(); ++place) {
      const auto next = nodes_[node].next.find(static_cast<unsigned char>(text[place]));
      if (next == nodes_[node].next.end()) break;
      node = static_cast<size_t>(next->second);
      if (nodes_[node].index >= 0) {
        longest = Match{{static_cast<int64_t>(start), static_cast<int64_t>(place + 1)}, nodes_[node].index};
      }
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

void AddedTokens::add(const AddedToken& token, int32_t id) {
  if (token.content.empty()) return;
  if (token.special) special_.insert(token.content);
  ids_[token.content] = id;
  tokens_[id] = token;
  order_.push_back(token);
}

void AddedTokens::finish(const std::function<std::string(const std::string&)>& normalize) {
  plain_ = SpellingMatcher();
  normalized_ = SpellingMatcher();
  for (const AddedToken& token : order_) {
    const int32_t id = ids_.at(token.content);
    if (token.normalized) {
      normalized_.add(normalize(token.content), id);
    } else {
      plain_.add(token.content, id);
    }
  }
}

void AddedTokens::cut(std::string_view text, bool normalized, const std::function<void(const Part&)>& take) const {
  const SpellingMatcher& matcher = normalized ? normalized_ : plain_;
  const auto size = static_cast<int64_t>(text.size());
  const auto part_of = [&](int64_t begin, int64_t end) {
    return text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  };
  int64_t done = 0;
  int64_t place = 0;
  while (!matcher.empty()) {
    const std::optional<SpellingMatcher::Match> match = matcher.find(text, place);
    if (!match) break;
    auto [begin, end] = match->span;
    place = end;
    const AddedToken& token = tokens_.at(match->index);
    if (token.single_word) {
      const bool word_before = begin > 0 && is_word_character(last_code_point(part_of(0, begin)));
      const bool word_behind = end < size && is_word_character(first_code_point(part_of(end, size)));
      if (word_before || word_behind) continue;
    }
    if (token.lstrip) {
      while (begin > done && is_white_space(last_code_point(part_of(0, begin)))) {
        do {
          --begin;
        } while (is_continuation(text[static_cast<size_t>(begin)]));
      }
    }
    begin = std::max(begin, done);
    if (token.rstrip) {
      while (end < size && is_white_space(first_code_point(part_of(end, size)))) {
        end += utf8_length(text[static_cast<size_t>(end)]);
      }
    }
    if (done < begin) take({{done, begin}, std::nullopt});
    take({{begin, std::max(begin, end)}, match->index});
    done = std::max(begin, end);
  }
  if (done < size) take({{done, size}, std::nullopt});
}

std::optional<int32_t> AddedTokens::id_of(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const AddedToken* AddedTokens::token_of(int64_t id) const {
  if (id < 0 || id > INT32_MAX) return nullptr;
  const auto found = tokens_.find(static_cast<int32_t>(id));
  return found == tokens_.end() ? nullptr : &found->second;
}

std::optional<int32_t> AddedTokens::largest_id() const {
  std::optional<int32_t> result;
  for (const auto& [id, token] : tokens_) result = std::max(result.value_or(id), id);
  return result;
}

bool AddedTokens::holds(const AddedToken& token) const {
  const std::optional<int32_t> id = id_of(token.content);
  return id && tokens_.at(*id) == token;
}

}  // namespace ithaca::tokenizer_internal
