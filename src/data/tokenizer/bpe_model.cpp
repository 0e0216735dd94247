#include "data/tokenizer/bpe_model.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/byte_level.h"

namespace ithaca::tokenizer_internal {

namespace {

constexpr char32_t kTableEnd = 0x10000;
constexpr char32_t kAsciiEnd = 0x80;
// Up to here looking at every pair each time is faster than a queue.
constexpr size_t kShortWord = 32;
constexpr size_t kLongestPiece = INT32_MAX;

std::string byte_spelling(unsigned byte) {
  std::array<char, 8> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "<0x%02X>", byte);
  return buffer.data();
}

// Another symbol behind the others; the last one's `next` is put right when all are there.
void push_symbol(std::vector<BpeScratch::Symbol>& symbols, int32_t token, int32_t begin, int32_t end) {
  const auto index = static_cast<int32_t>(symbols.size());
  symbols.push_back({token, index - 1, index + 1, begin, end});
}

}  // namespace

BpeModel::BpeModel(const std::vector<std::pair<std::string, int32_t>>& vocabulary,
                   const std::vector<std::pair<std::string, std::string>>& merges, BpeSettings settings,
                   std::string where)
    : where_(std::move(where)), settings_(std::move(settings)) {
  for (const auto& [spelling, id] : vocabulary) {
    vocabulary_.add(spelling, id);
    longest_spelling_ = std::max(longest_spelling_, static_cast<int64_t>(spelling.size()));
  }
  if (settings_.unknown_token) unknown_ = token_id(*settings_.unknown_token);

  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_tokens_.push_back(token_id(byte_spelling(byte)).value_or(-1));
    alphabet_tokens_.push_back(token_id(byte_characters()[byte]).value_or(-1));
  }
  character_tokens_.assign(kTableEnd, -1);
  for (const auto& [spelling, id] : vocabulary) {
    if (spelling.empty() || utf8_length(spelling[0]) != static_cast<int64_t>(spelling.size())) continue;
    const char32_t code_point = first_code_point(spelling);
    if (code_point < kTableEnd) character_tokens_[code_point] = id;
  }

  const auto special = [&](int32_t token) {
    return token == unknown_.value_or(-1) ||
           (settings_.byte_fallback &&
            std::find(byte_tokens_.begin(), byte_tokens_.end(), token) != byte_tokens_.end());
  };
  merges_.reserve(static_cast<int64_t>(merges.size()));
  joints_.reserve(static_cast<int64_t>(merges.size()));
  ascii_joints_.assign(size_t{kAsciiEnd} * kAsciiEnd, false);
  result_of_rank_.reserve(merges.size());
  cuts_ =
      settings_.continuing_subword_prefix.empty() && settings_.end_of_word_suffix.empty() && !settings_.ignore_merges;
  std::string merged;
  for (const auto& [left, right] : merges) {
    const auto place = [&] { return where_ + ".merges[" + std::to_string(result_of_rank_.size()) + "]"; };
    const auto known = [&](std::string_view spelling) {
      const std::optional<int32_t> id = token_id(spelling);
      if (!id) throw InputError(place() + ": \"" + std::string(spelling) + "\" is not in the vocabulary");
      return *id;
    };
    const int32_t left_id = known(left);
    const int32_t right_id = known(right);
    const size_t prefix = settings_.continuing_subword_prefix.size();
    if (right.size() < prefix) throw InputError(place() + ": \"" + right + "\" is shorter than the subword prefix");
    merged = left;
    merged.append(right, prefix);
    const int32_t merged_id = known(merged);
    merges_.set(left_id, right_id, {static_cast<int32_t>(result_of_rank_.size()), merged_id});
    result_of_rank_.push_back(merged_id);
    if (!cuts_) continue;
    if (left.empty() || right.empty() ||
        ((left.size() == 6 || right.size() == 6) && (special(left_id) || special(right_id))) || left_id == unknown_ ||
        right_id == unknown_) {
      cuts_ = false;
      continue;
    }
    const char32_t last = last_code_point(left);
    const char32_t first = first_code_point(right);
    joints_.insert(last, first);
    if (last < kAsciiEnd && first < kAsciiEnd) ascii_joints_[last * kAsciiEnd + first] = true;
  }
  cuts_at_unknown_ = unknown_.has_value() ||
                     (settings_.byte_fallback && std::count(byte_tokens_.begin(), byte_tokens_.end(), -1) == 0);
}

int32_t BpeModel::token_of_character(char32_t code_point) const {
  if (code_point < kTableEnd) return character_tokens_[code_point];
  std::string character;
  append_utf8(character, code_point);
  return token_id(character).value_or(-1);
}

bool BpeModel::may_cut(char32_t left, char32_t right) const {
  if (left < kAsciiEnd && right < kAsciiEnd) {
    if (ascii_joints_[left * kAsciiEnd + right]) return false;
  } else if (joints_.contains(left, right)) {
    return false;
  }
  const bool left_known = token_of_character(left) >= 0;
  const bool right_known = token_of_character(right) >= 0;
  // Unknown characters may be fused with each other; where they vanish, their neighbours meet.
  return (left_known && right_known) || (cuts_at_unknown_ && (left_known || right_known));
}

void BpeModel::make_symbol(std::string_view unit, int32_t begin, int32_t end, BpeScratch& scratch,
                           TokenOfWord& unknown) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  const auto push_unknown = [&] {
    if (unknown.token >= 0) push_symbol(symbols, unknown.token, unknown.begin, unknown.end);
    unknown.token = -1;
  };
  if (const std::optional<int32_t> token = token_id(unit)) {
    push_unknown();
    push_symbol(symbols, *token, begin, end);
    return;
  }
  if (settings_.byte_fallback) {
    const bool all = std::all_of(unit.begin(), unit.end(),
                                 [&](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)] >= 0; });
    if (all) {
      // An unknown token before these comes after them, as in Hugging Face's library.
      for (const char byte : unit) push_symbol(symbols, byte_tokens_[static_cast<unsigned char>(byte)], begin, end);
      return;
    }
  }
  if (!settings_.unknown_token) return;
  if (!unknown_) {
    throw InputError(where_ + ": unk_token \"" + *settings_.unknown_token +
                     "\" is not in the vocabulary, and a text has a character that is not either");
  }
  if (unknown.token >= 0 && settings_.fuse_unknown) {
    unknown.end = end;
    return;
  }
  push_unknown();
  unknown = {*unknown_, begin, end};
}

void BpeModel::make_symbols(std::string_view word, bool bytes, BpeScratch& scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  symbols.clear();
  TokenOfWord unknown{-1, 0, 0};
  const std::string& prefix = settings_.continuing_subword_prefix;
  const std::string& suffix = settings_.end_of_word_suffix;
  const bool plain = prefix.empty() && suffix.empty();
  std::string unit;
  for (size_t begin = 0; begin < word.size();) {
    const auto lead = static_cast<unsigned char>(word[begin]);
    const size_t length = bytes ? 1 : static_cast<size_t>(utf8_length(word[begin]));
    const size_t end = begin + length;
    if (plain && unknown.token < 0) {
      const char32_t code_point = bytes ? 0 : first_code_point(word.substr(begin));
      const int32_t token = bytes ? alphabet_tokens_[lead] : token_of_character(code_point);
      if (token >= 0) {
        push_symbol(symbols, token, static_cast<int32_t>(begin), static_cast<int32_t>(end));
        begin = end;
        continue;
      }
    }
    unit.clear();
    if (begin > 0) unit += prefix;
    if (bytes) {
      unit += byte_characters()[lead];
    } else {
      unit += word.substr(begin, length);
    }
    if (end == word.size()) unit += suffix;
    make_symbol(unit, static_cast<int32_t>(begin), static_cast<int32_t>(end), scratch, unknown);
    begin = end;
  }
  if (unknown.token >= 0) push_symbol(symbols, unknown.token, unknown.begin, unknown.end);
  if (!symbols.empty()) symbols.back().next = -1;
}

void BpeModel::merge_short(BpeScratch& scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  size_t count = symbols.size();
  std::array<MergeTable::Merge, kShortWord> merges;
  for (size_t index = 0; index + 1 < count; ++index) {
    merges[index] = merges_.find(symbols[index].token, symbols[index + 1].token);
  }
  while (count > 1) {
    size_t best = count;
    uint32_t best_rank = UINT32_MAX;  // above every rank, and what -1 becomes
    for (size_t index = 0; index + 1 < count; ++index) {
      const auto rank = static_cast<uint32_t>(merges[index].rank);
      if (rank < best_rank) {
        best_rank = rank;
        best = index;
      }
    }
    if (best == count) break;
    symbols[best].token = merges[best].token;
    symbols[best].end = symbols[best + 1].end;
    for (size_t index = best + 1; index + 1 < count; ++index) {
      symbols[index] = symbols[index + 1];
      merges[index] = merges[std::min(index + 1, merges.size() - 1)];
    }
    --count;
    if (best > 0) merges[best - 1] = merges_.find(symbols[best - 1].token, symbols[best].token);
    if (best + 1 < count) merges[best] = merges_.find(symbols[best].token, symbols[best + 1].token);
  }
  symbols.resize(count);
}

void BpeModel::merge_long(BpeScratch& scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  std::vector<uint64_t>& queue = scratch.queue;  // rank and index of the left one: smallest first
  queue.clear();
  const auto entry_of = [&](int32_t left, int32_t right) -> std::optional<uint64_t> {
    const auto& a = symbols[static_cast<size_t>(left)];
    const auto& b = symbols[static_cast<size_t>(right)];
    const MergeTable::Merge merge = merges_.find(a.token, b.token);
    if (merge.rank < 0) return std::nullopt;
    return static_cast<uint64_t>(static_cast<uint32_t>(merge.rank)) << 32U | static_cast<uint32_t>(left);
  };
  const auto push = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    if (const std::optional<uint64_t> entry = entry_of(left, right)) {
      queue.push_back(*entry);
      std::push_heap(queue.begin(), queue.end(), std::greater<>());
    }
  };
  for (int32_t index = 0; index + 1 < static_cast<int32_t>(symbols.size()); ++index) {
    if (const std::optional<uint64_t> entry = entry_of(index, index + 1)) queue.push_back(*entry);
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const uint64_t entry = queue.back();
    queue.pop_back();
    const auto left_index = static_cast<int32_t>(entry & UINT32_MAX);
    BpeScratch::Symbol& left = symbols[static_cast<size_t>(left_index)];
    if (left.token < 0 || left.next < 0) continue;
    BpeScratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    // What stands there may have changed since.
    const MergeTable::Merge merge = merges_.find(left.token, right.token);
    const int32_t wanted = result_of_rank_[static_cast<size_t>(entry >> 32U)];
    if (merge.rank < 0 || merge.token != wanted) continue;
    left.token = merge.token;
    left.end = right.end;
    left.next = right.next;
    right.token = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = left_index;
    push(left.previous, left_index);
    push(left_index, left.next);
  }
  symbols.erase(
      std::remove_if(symbols.begin(), symbols.end(), [](const BpeScratch::Symbol& symbol) { return symbol.token < 0; }),
      symbols.end());
}

// Leaves the tokens in scratch.tokens.
void BpeModel::encode_word(std::string_view word, bool bytes, BpeScratch& scratch) const {
  scratch.tokens.clear();
  if (settings_.ignore_merges && static_cast<int64_t>(word.size()) <= longest_spelling_) {
    std::string_view spelling = word;
    if (bytes) {
      scratch.text.clear();
      for (const char byte : word) scratch.text += byte_characters()[static_cast<unsigned char>(byte)];
      spelling = scratch.text;
    }
    if (const std::optional<int32_t> token = token_id(spelling)) {
      scratch.tokens.push_back({*token, 0, static_cast<int32_t>(word.size())});
      return;
    }
  }
  make_symbols(word, bytes, scratch);
  if (scratch.symbols.size() <= kShortWord) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  for (const BpeScratch::Symbol& symbol : scratch.symbols) {
    scratch.tokens.push_back({symbol.token, symbol.begin, symbol.end});
  }
}

void BpeModel::encode(std::string_view piece, bool bytes, BpeScratch& scratch, TokenSink& sink) const {
  if (piece.size() > kLongestPiece) {
    throw InputError(where_ + ": a piece of " + std::to_string(piece.size()) +
                     " bytes without a place to cut it; Ithaca encodes up to 2 GiB at once");
  }
  const auto encode_part = [&](size_t begin, size_t end) {
    const std::string_view word = piece.substr(begin, end - begin);
    if (word.size() > WordCache::kLongestWord) {
      encode_word(word, bytes, scratch);
      sink.take(scratch.tokens, static_cast<int64_t>(begin));
      return;
    }
    const uint64_t hash = hash_bytes(word);
    std::span<const TokenOfWord> tokens = scratch.words.find(word, hash);
    if (tokens.empty()) {
      encode_word(word, bytes, scratch);
      tokens = scratch.tokens;
      if (!tokens.empty()) scratch.words.insert(word, hash, tokens);
    }
    sink.take(tokens, static_cast<int64_t>(begin));
  };
  if (bytes || !cuts_ || piece.size() <= WordCache::kLongestWord) {
    encode_part(0, piece.size());
    return;
  }
  size_t begin = 0;
  char32_t previous = first_code_point(piece);
  for (auto place = static_cast<size_t>(utf8_length(piece[0])); place < piece.size();) {
    const char32_t code_point = first_code_point(piece.substr(place));
    if (may_cut(previous, code_point)) {
      encode_part(begin, place);
      begin = place;
    }
    previous = code_point;
    place += static_cast<size_t>(utf8_length(piece[place]));
  }
  encode_part(begin, piece.size());
}

}  // namespace ithaca::tokenizer_internal
