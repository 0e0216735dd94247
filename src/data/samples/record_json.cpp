#include "data/samples/record_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

// Objects of more keys look for repeated ones in a set.
constexpr size_t kFewKeys = 16;
// Errors show as much of a value.
constexpr size_t kShownBytes = 60;

// Takes a parser's events and builds the value.
class Builder : public nlohmann::json_sax<Json> {  // NOLINT(bugprone-exception-escape): of a set that moves
 public:
  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(Json::number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(Json::number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(Json::number_float_t value, const std::string&) override { return add(Json(value)); }
  bool string(std::string& value) override { return add(Json(std::move(value))); }
  bool binary(Json::binary_t& value) override { return add(Json(std::move(value))); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& value) override {
    Level& level = levels_.back();
    const auto& object = level.value->get_ref<const Json::object_t&>();
    if (object.size() == kFewKeys) {
      for (const auto& [name, ignored] : object) level.names.insert(name);
    }
    const auto has_name = [&value](const auto& member) { return member.first == value; };
    const bool is_repeated = object.size() < kFewKeys ? std::any_of(object.begin(), object.end(), has_name)
                                                      : !level.names.insert(value).second;
    if (is_repeated) repeated_key_ = value;
    key_ = std::move(value);
    return !is_repeated;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    offset_ = position > 0 ? position - 1 : 0;
    complaint_ = json_complaint(error.what());
    return false;
  }

  Json& value() { return value_; }
  const std::optional<std::string>& repeated_key() const { return repeated_key_; }
  bool is_too_deep() const { return is_too_deep_; }
  size_t offset() const { return offset_; }
  const std::string& complaint() const { return complaint_; }

 private:
  struct Level {
    Json* value = nullptr;
    std::unordered_set<std::string> names;
  };

  Json* place(Json&& value) {
    if (levels_.empty()) {
      value_ = std::move(value);
      return &value_;
    }
    Json& parent = *levels_.back().value;
    if (parent.is_array()) {
      auto& array = parent.get_ref<Json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    // The container below the ordered map: repeated keys have been looked for already.
    Json::object_t::Container& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }
  bool add(Json&& value) {
    place(std::move(value));
    return true;
  }
  bool open(Json&& value) {
    is_too_deep_ = levels_.size() == kDeepestJson;
    if (is_too_deep_) return false;
    Json* placed = place(std::move(value));
    levels_.emplace_back();
    levels_.back().value = placed;
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  Json value_;
  // The values that are still open. They stay where they are: only the innermost one grows.
  std::vector<Level> levels_;
  std::string key_;
  std::optional<std::string> repeated_key_;
  bool is_too_deep_ = false;
  size_t offset_ = 0;
  std::string complaint_;
};

}  // namespace

Json parse_embedded_json(const std::string& text) {
  Builder builder;
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return std::move(builder.value());
  return Json(Json::value_t::discarded);
}

std::string brief_json(const Json& value) {
  if (value.is_structured()) return fmt::format("an {}", value.type_name());
  const std::string text = value.dump(-1, ' ', true);  // in ASCII, so that it can be cut anywhere
  return text.size() <= kShownBytes ? text : text.substr(0, kShownBytes) + "...";
}

std::string read_weight(const Json& value, float& weight) {
  const double number = value.is_number() ? value.get<double>() : -1.0;
  const std::string shown = "is " + brief_json(value);
  if (!std::isfinite(number) || number < 0.0) return shown + "; a finite number of at least 0 is needed";
  constexpr float kLargest = std::numeric_limits<float>::max();
  if (number > static_cast<double>(kLargest)) {
    return fmt::format("{}; weights are float32 numbers, and the largest one is {}", shown, kLargest);
  }
  weight = static_cast<float>(number);
  if (number > 0.0 && weight == 0.0f) {
    return fmt::format("{}, which is 0 as a float32 number; give 0, or at least {}", shown,
                       std::numeric_limits<float>::min());
  }
  return "";
}

std::string place_in(const Record& record, int64_t offset) {
  if (record.file.empty()) return fmt::format("{}: byte {}", record.place, offset);
  const std::string_view before = std::string_view(record.bytes).substr(0, static_cast<size_t>(offset));
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const size_t last = before.rfind('\n');
  const int64_t column = last == std::string_view::npos ? record.column + offset : offset - static_cast<int64_t>(last);
  return fmt::format("{}:{}:{}", record.file, record.line + lines, column);
}

void require_utf8(const Record& record) {
  const int64_t offset = valid_utf8_prefix(record.bytes);
  if (offset == static_cast<int64_t>(record.bytes.size())) return;
  const auto byte = static_cast<unsigned char>(record.bytes[static_cast<size_t>(offset)]);
  throw RecordError(
      place_in(record, offset),
      fmt::format("not UTF-8: byte {} of the record is 0x{:02X}; convert the file to UTF-8", offset, byte),
      "not UTF-8");
}

Json parse_record(const Record& record) {
  Builder builder;
  if (Json::sax_parse(record.bytes.begin(), record.bytes.end(), &builder)) return std::move(builder.value());
  if (builder.repeated_key()) {
    throw RecordError(record.place, fmt::format("the key \"{}\" appears twice in one object", *builder.repeated_key()),
                      "a key appears twice in one object");
  }
  if (builder.is_too_deep()) {
    throw RecordError(record.place, fmt::format("values are nested more than {} deep", kDeepestJson),
                      "nested too deeply");
  }
  require_utf8(record);
  throw RecordError(place_in(record, static_cast<int64_t>(std::min(builder.offset(), record.bytes.size()))),
                    "not valid JSON: " + builder.complaint(), "not valid JSON");
}

}  // namespace ithaca
