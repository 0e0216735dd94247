#include "data/tokenizer/post_processor.h"

#include <limits>

#include "data/tokenizer/component.h"

namespace ithaca::tokenizer_internal {

namespace {

int32_t id_of(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
      value.get<int64_t>() > std::numeric_limits<int32_t>::max()) {
    throw InputError(where + " is not a token id");
  }
  return value.get<int32_t>();
}

Surroundings from_template(const Component& component) {
  const Json& special_tokens = component.member("special_tokens");
  Surroundings result;
  bool text_seen = false;
  component.each("single", [&](const Json& description, const std::string& place) {
    const Component piece(description, place);
    if (piece.has("Sequence")) {
      const Component sequence(piece.member("Sequence"), place + ".Sequence");
      if (sequence.text("id") != "A" || text_seen) {
        throw InputError(place + ": a template for one text has to hold the sequence A once");
      }
      text_seen = true;
      return;
    }
    const std::string name = Component(piece.member("SpecialToken"), place + ".SpecialToken").text("id");
    if (!special_tokens.is_object() || !special_tokens.contains(name)) {
      throw InputError(place + ": \"" + name + "\" is not among " + component.where() + ".special_tokens");
    }
    const Component token(special_tokens.at(name), component.where() + ".special_tokens[\"" + name + "\"]");
    token.each("ids", [&](const Json& id, const std::string& id_place) {
      (text_seen ? result.after : result.before).push_back(id_of(id, id_place));
    });
  });
  if (!text_seen) throw InputError(component.where() + ".single does not hold the sequence A");
  return result;
}

// [token, id]: the id.
int32_t id_of_pair(const Component& component, const char* key) {
  const Json& pair = component.member(key);
  if (!pair.is_array() || pair.size() != 2) throw InputError(component.where() + "." + key + " is not [token, id]");
  return id_of(pair[1], component.where() + "." + key + "[1]");
}

}  // namespace

Surroundings make_surroundings(const Json& description, const std::string& where) {
  if (description.is_null()) return {};
  const Component component(description, where);
  const std::string type = component.type();
  if (type == "ByteLevel") return {};  // moves offsets only
  if (type == "TemplateProcessing") return from_template(component);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    return {{id_of_pair(component, "cls")}, {id_of_pair(component, "sep")}};
  }
  if (type == "Sequence") {
    Surroundings result;
    bool any = false;
    component.each("processors", [&](const Json& step, const std::string& place) {
      const Surroundings made = make_surroundings(step, place);
      if (made.before.empty() && made.after.empty()) return;
      if (any && Component(step, place).type() == "TemplateProcessing") {
        throw InputError(place + ": a template after another processor that adds tokens");
      }
      any = true;
      result.before.insert(result.before.begin(), made.before.begin(), made.before.end());
      result.after.insert(result.after.end(), made.after.begin(), made.after.end());
    });
    return result;
  }
  component.refuse_type("post-processor", "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence");
}

}  // namespace ithaca::tokenizer_internal
