// AddedTokens: tokens that are looked for in a text before the model sees it (<|im_start|>, <tool_call>, ...).
//
// Thread-safety: const functions may be called from several threads at once; add() from one thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "data/tokenizer/bpe_tables.h"
#include "data/tokenizer/tokenizer.h"

namespace ithaca::tokenizer_internal {

struct AddedToken {
  std::string content;
  bool single_word = false;  // not as a part of a word
  bool lstrip = false;       // takes the blanks before it
  bool rstrip = false;       // takes the blanks behind it
  bool normalized = true;    // looked for in the normalized text, in normalized form
  bool special = false;      // left out by decode() on demand

  bool operator==(const AddedToken&) const = default;
};

// The longest of several spellings at the leftmost place.
class SpellingMatcher {
 public:
  // `index` is what a match gives. An empty spelling is never found.
  void add(std::string_view spelling, int32_t index);
  struct Match {
    TextSpan span;
    int32_t index = 0;
  };
  std::optional<Match> find(std::string_view text, int64_t begin) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    std::unordered_map<unsigned char, int32_t> next;
    int32_t index = -1;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<bool> begins_ = std::vector<bool>(256, false);
  std::vector<char> lone_beginning_;  // where there is only one first byte
  int32_t longest_ = 0;
};

class AddedTokens {
 public:
  // A part of a text: a token or, without one, what lies between tokens.
  struct Part {
    TextSpan span;
    std::optional<int32_t> token;
  };

  // Adds a token with an id; one of the same id or the same content is replaced.
  void add(const AddedToken& token, int32_t id);
  // To be called after the last add(). `normalize` gives the normalized form of a content.
  void finish(const std::function<std::string(const std::string&)>& normalize);

  // Cuts a text at the tokens that are looked for before (false) or after (true) normalization; calls take(Part) for
  // each part, in order. Parts cover the text.
  void cut(std::string_view text, bool normalized, const std::function<void(const Part&)>& take) const;
  bool any(bool normalized) const { return !(normalized ? normalized_ : plain_).empty(); }

  std::optional<int32_t> id_of(std::string_view content) const;
  // Null where there is none of that id.
  const AddedToken* token_of(int64_t id) const;
  bool is_special(std::string_view content) const { return special_.count(std::string(content)) > 0; }
  std::optional<int32_t> largest_id() const;
  bool holds(const AddedToken& token) const;

 private:
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, AddedToken> tokens_;
  std::unordered_set<std::string> special_;
  std::vector<AddedToken> order_;
  SpellingMatcher plain_;
  SpellingMatcher normalized_;
};

}  // namespace ithaca::tokenizer_internal
