// DataPosition: where a run is in its data. A few numbers; a checkpoint keeps them, and a run on any mesh, with any
// micro-batch size and accumulation, reads on from there with exactly the sequences that are due.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ithaca {

struct DataPosition {
  int64_t stage = 0;  // of the context curriculum
  int64_t epoch = 0;  // within the stage
  int64_t next = 0;   // place in the epoch's order of the sequence that is due
  // What the order is a function of, and what it orders: these must be the same when reading goes on.
  int64_t seed = 0;
  bool shuffle = true;
  int64_t sequences = 0;  // of the stage
  uint64_t data = 0;      // hash of the stage's sequences
  bool operator==(const DataPosition&) const = default;
};

nlohmann::ordered_json data_position_to_json(const DataPosition& position);
// `where` names the file in errors. Throws InputError.
DataPosition data_position_from_json(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace ithaca
