#include "data/tokenizer/tokenizer_file.h"

#include <limits>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/tokenizer_settings.h"

namespace ithaca::tokenizer_internal {

namespace {

using Json = nlohmann::ordered_json;

// Builds the JSON value by value, except for the two members of "model" that have hundreds of thousands of entries.
class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(std::string_view text, const std::string& where, TokenizerFile& file)
      : text_(text), where_(where), file_(file) {}

  bool null() override { return value(nullptr); }
  bool boolean(bool flag) override { return value(flag); }
  bool number_integer(number_integer_t number) override { return number_value(number); }
  bool number_unsigned(number_unsigned_t number) override {
    if (table_ != Table::none && number > static_cast<number_unsigned_t>(std::numeric_limits<int32_t>::max())) {
      fail_table("a number that is not a token id");
    }
    return table_ == Table::none ? value(number) : number_value(static_cast<number_integer_t>(number));
  }
  bool number_float(number_float_t number, const string_t&) override {
    if (table_ != Table::none) fail_table("a number that is not a token id");
    return value(number);
  }
  bool string(string_t& text) override {
    if (table_ == Table::none) return value(std::move(text));
    if (table_ == Table::vocabulary) fail_table("a text where an id belongs");
    if (depth_ == 2) {
      if (pair_.size() == 2) fail_table("more than two texts in a merge");
      pair_.push_back(std::move(text));
      return true;
    }
    // "left right"; a first line "#version" as in merges.txt says nothing.
    if (text.starts_with("#version")) return true;
    const size_t space = text.find(' ');
    if (space == string_t::npos || text.find(' ', space + 1) != string_t::npos) {
      fail_table("\"" + text + "\", which is not two texts with a space between");
    }
    file_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override {
    if (table_ == Table::none && in_model() && key_ == "vocab") return start_table(Table::vocabulary);
    if (table_ != Table::none) fail_table("an object");
    return start(Json::object());
  }
  bool start_array(std::size_t) override {
    if (table_ == Table::none && in_model() && key_ == "merges") return start_table(Table::merges);
    if (table_ == Table::vocabulary || depth_ == 2) fail_table("an array");
    if (table_ == Table::merges) {
      depth_ = 2;
      pair_.clear();
      return true;
    }
    return start(Json::array());
  }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool end_object() override { return end(); }
  bool end_array() override {
    if (depth_ == 2) {
      if (pair_.size() != 2) fail_table("a merge that is not two texts");
      file_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      depth_ = 1;
      return true;
    }
    return end();
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    throw InputError(text_place(text_, position > 0 ? position - 1 : 0, where_) +
                     ": not valid JSON: " + json_complaint(error.what()));
  }

 private:
  enum class Table { none, vocabulary, merges };

  [[noreturn]] void fail_table(const std::string& what) const {
    if (table_ == Table::vocabulary) {
      throw InputError(where_ + ": model.vocab has " + what + " at \"" + key_ + "\"");
    }
    throw InputError(where_ + ": model.merges[" + std::to_string(file_.merges.size()) + "] is " + what);
  }
  bool in_model() const { return open_.size() == 2 && model_open_; }
  bool number_value(number_integer_t number) {
    if (table_ == Table::none) return value(number);
    if (table_ == Table::merges) fail_table("a number");
    if (number < 0 || number > std::numeric_limits<int32_t>::max()) {
      fail_table("a number that is not a token id");
    }
    file_.vocabulary.emplace_back(std::move(key_), static_cast<int32_t>(number));
    key_.clear();
    return true;
  }
  bool start_table(Table table) {
    table_ = table;
    depth_ = 1;
    // The rest still shows that the member is there.
    (*open_.back())[key_] = table == Table::vocabulary ? Json::object() : Json::array();
    if (table == Table::vocabulary) file_.vocabulary.clear();
    if (table == Table::merges) file_.merges.clear();
    return true;
  }
  Json* put(Json&& made) {
    if (open_.empty()) {
      file_.rest = std::move(made);
      return &file_.rest;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(made));
      return &parent.back();
    }
    Json& member = parent[key_];
    member = std::move(made);
    return &member;
  }
  template <class Value>
  bool value(Value&& made) {
    if (table_ != Table::none) fail_table("not what belongs there");
    put(Json(std::forward<Value>(made)));
    return true;
  }
  bool start(Json&& made) {
    if (open_.size() > 200) throw InputError(where_ + ": values nested too deeply");
    if (open_.size() == 1) model_open_ = key_ == "model";
    open_.push_back(put(std::move(made)));
    return true;
  }
  bool end() {
    if (table_ != Table::none) {
      table_ = Table::none;
      depth_ = 0;
    } else {
      open_.pop_back();
    }
    return true;
  }

  std::string_view text_;
  const std::string& where_;
  TokenizerFile& file_;
  std::vector<Json*> open_;
  bool model_open_ = false;
  std::string key_;
  Table table_ = Table::none;
  int depth_ = 0;  // within a table
  std::vector<std::string> pair_;
};

}  // namespace

TokenizerFile read_tokenizer_file(std::string_view text, const std::string& where) {
  TokenizerFile file;
  Reader reader(text, where, file);
  try {
    Json::sax_parse(text.begin(), text.end(), &reader);
  } catch (const Json::exception& error) {
    throw InputError(where + ": not valid JSON: " + json_complaint(error.what()));
  }
  if (!file.rest.is_object()) throw InputError(where + ": not a JSON object");
  for (const auto& [spelling, id] : file.vocabulary) {
    check_token_id(id, file.vocabulary.size(), where + ": model.vocab[\"" + spelling + "\"]");
  }
  return file;
}

}  // namespace ithaca::tokenizer_internal
