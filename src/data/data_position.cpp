#include "data/data_position.h"

#include <fmt/format.h>

#include <charconv>

#include "base/json.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

int64_t count_of(const Json& json, const char* key) {
  const int64_t value = json.at(key).get<int64_t>();
  if (value < 0) throw InputError(fmt::format("\"{}\" is {}; it must not be below 0", key, value));
  return value;
}

}  // namespace

Json data_position_to_json(const DataPosition& position) {
  // The hash as text: JSON readers keep 53 bits of a number.
  return {{"stage", position.stage},
          {"epoch", position.epoch},
          {"next", position.next},
          {"seed", position.seed},
          {"shuffle", position.shuffle},
          {"sequences", position.sequences},
          {"data", fmt::format("{:016x}", position.data)}};
}

DataPosition data_position_from_json(const Json& json, const std::string& where) {
  try {
    DataPosition position;
    position.stage = count_of(json, "stage");
    position.epoch = count_of(json, "epoch");
    position.next = count_of(json, "next");
    position.seed = json.at("seed").get<int64_t>();
    position.shuffle = json.at("shuffle").get<bool>();
    position.sequences = count_of(json, "sequences");
    const auto text = json.at("data").get<std::string>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), position.data, 16);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw InputError("\"data\" is not a hexadecimal number");
    }
    return position;
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: the position in the data: {}", where, json_complaint(error.what())));
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: the position in the data: {}", where, error.what()));
  }
}

}  // namespace ithaca
