// What a tokenizer.json adds around an encoded text: <s> before it, </s> behind it.
//
// Thread-safety: values; const functions may be called from several threads at once.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ithaca::tokenizer_internal {

struct Surroundings {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

// Null: nothing. Throws InputError that names `where` and the component that is not known.
Surroundings make_surroundings(const nlohmann::ordered_json& description, const std::string& where);

}  // namespace ithaca::tokenizer_internal
