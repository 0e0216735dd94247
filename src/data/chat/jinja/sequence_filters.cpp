// Filters of lists and mappings.
#include <algorithm>
#include <memory>
#include <numeric>
#include <unordered_set>

#include "data/chat/jinja/format.h"
#include "data/chat/jinja/library.h"
#include "data/chat/jinja/operators.h"
#include "data/chat/jinja/text.h"

namespace ithaca::jinja {
namespace {

Value list_value(Runtime& runtime, std::vector<Value> items) {
  runtime.charge_bytes(static_cast<int64_t>(items.size() * sizeof(Value)));
  return Value::list(std::move(items));
}

std::vector<Value> vector_of(Runtime& runtime, const Value& value) {
  std::vector<Value> items;
  const auto values = iterate(value);
  Value item;
  while (values->next(item)) {
    runtime.charge(1);
    items.push_back(item);
  }
  return items;
}

// Texts are ordered and compared without regard to case, unless that is asked for.
Value without_case(const Value& value, bool case_sensitive) {
  return !case_sensitive && value.is_string() ? Value(lower_case(value.text())) : value;
}

// Positions of `keys` in rising (or falling) order; equal ones keep their order.
std::vector<size_t> sorted_places(Runtime& runtime, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> places(keys.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) {
    runtime.charge(1);
    return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  return places;
}

// The argument `reverse` of a sort: Python's sorted() wants a number there.
bool is_reverse(const Parameters& parameters, size_t index) {
  return parameters.integer(index, 0) != 0;
}

std::vector<Value> taken(const std::vector<Value>& items, const std::vector<size_t>& places) {
  std::vector<Value> result;
  result.reserve(places.size());
  for (const size_t place : places) result.push_back(items[place]);
  return result;
}

Value filter_default(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  const Parameters parameters("default", arguments, {"default_value", "boolean"}, 0);
  const bool replaced = value.is_undefined() || (parameters.truth(1, false) && !truth(value));
  return replaced ? parameters.value(0, Value("")) : value;
}

Value filter_length(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  const Parameters parameters("length", arguments, {}, 0);
  return Value(length(value));
}

Value filter_list(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("list", arguments, {}, 0);
  return list_value(runtime, vector_of(runtime, value));
}

Value filter_first(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  const Parameters parameters("first", arguments, {}, 0);
  Value item;
  return iterate(value)->next(item) ? item : Value::undefined("No first item, sequence was empty.");
}

Value filter_last(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("last", arguments, {}, 0);
  if (value.is_object() && !value.object()->length()) {
    throw Failure("'" + type_name(value) + "' object is not reversible");
  }
  const std::vector<Value> items = vector_of(runtime, value);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value filter_join(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {"d", "attribute"}, 0);
  const std::string separator = to_text(parameters.value(0, Value("")));
  const auto values = iterate(value);
  std::string text;
  Value item;
  for (bool first = true; values->next(item); first = false) {
    if (!first) text += separator;
    text += to_text(get_path(item, parameters.value(1)));
    runtime.charge_bytes(static_cast<int64_t>(separator.size()) + 8);
  }
  runtime.charge_bytes(static_cast<int64_t>(text.size()));
  return Value(std::move(text));
}

Value filter_reverse(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("reverse", arguments, {}, 0);
  if (value.is_string()) {
    const Value step(int64_t{-1});
    return slice(runtime, value, nullptr, nullptr, &step);
  }
  auto items = std::make_shared<std::vector<Value>>(vector_of(runtime, value));
  std::reverse(items->begin(), items->end());
  // Lists, tuples, ranges and dictionaries give an iterator; what can only be walked forwards gives a list.
  if (value.is_object() && !value.object()->length()) {
    return list_value(runtime, std::move(*items));
  }
  return make_generator(
      [items, place = size_t{0}](Value& item) mutable {
        if (place >= items->size()) return false;
        item = (*items)[place++];
        return true;
      },
      value.depth());
}

Value filter_items(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  const Parameters parameters("items", arguments, {}, 0);
  return make_generator(
      [value, place = size_t{0}](Value& item) mutable {
        if (value.is_undefined()) return false;
        if (!value.is_dictionary()) throw Failure("Can only get item pairs from a mapping.");
        const auto& items = value.dictionary().items();
        if (place >= items.size()) return false;
        item = Value::tuple({items[place].first, items[place].second});
        ++place;
        return true;
      },
      value.depth() + 1);
}

Value filter_dictsort(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("dictsort", arguments, {"case_sensitive", "by", "reverse"}, 0);
  const std::string by = parameters.text(1, "key");
  if (by != "key" && by != "value") throw Failure("You can only sort by either \"key\" or \"value\"");
  require_defined(value);
  if (!value.is_dictionary()) throw Failure("dictsort needs a dict, not " + type_name(value));
  std::vector<Value> items;
  std::vector<Value> keys;
  for (const auto& [key, item] : value.dictionary().items()) {
    items.push_back(Value::tuple({key, item}));
    keys.push_back(without_case(by == "key" ? key : item, parameters.truth(0, false)));
  }
  return list_value(runtime, taken(items, sorted_places(runtime, keys, is_reverse(parameters, 2))));
}

// "a,b.c": several attributes, compared one after the other.
std::vector<Value> attribute_paths(const Value& attribute) {
  if (!attribute.is_string()) return {attribute};
  std::vector<Value> paths;
  const std::string& text = attribute.text();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    paths.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

Value filter_sort(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0);
  const std::vector<Value> items = vector_of(runtime, value);
  const std::vector<Value> paths = attribute_paths(parameters.value(2));
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> parts;
    for (const Value& path : paths) {
      parts.push_back(without_case(get_path(item, path), parameters.truth(1, false)));
    }
    keys.push_back(Value::list(std::move(parts)));
  }
  return list_value(runtime, taken(items, sorted_places(runtime, keys, is_reverse(parameters, 0))));
}

Value filter_unique(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  const Parameters parameters("unique", arguments, {"case_sensitive", "attribute"}, 0);
  struct State {
    std::unique_ptr<Iterator> values;
    std::unordered_set<std::string> seen;
  };
  auto state = std::make_shared<State>();
  return make_generator(
      [state, value, path = parameters.value(1), case_sensitive = parameters.truth(0, false)](Value& item) {
        if (!state->values) state->values = iterate(value);
        while (state->values->next(item)) {
          if (state->seen.insert(hash_key(without_case(get_path(item, path), case_sensitive))).second) return true;
        }
        return false;
      },
      std::max(value.depth(), parameters.value(1).depth()));
}

Value least_or_most(Runtime& runtime, const Value& value, const Arguments& arguments, const char* name, bool most) {
  const Parameters parameters(name, arguments, {"case_sensitive", "attribute"}, 0);
  const std::vector<Value> items = vector_of(runtime, value);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& item) {
    return without_case(get_path(item, parameters.value(1)), parameters.truth(0, false));
  };
  size_t best = 0;
  Value best_key = key_of(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    const Value key = key_of(items[i]);
    if (most ? less(best_key, key) : less(key, best_key)) {
      best = i;
      best_key = key;
    }
  }
  return items[best];
}

Value filter_min(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return least_or_most(runtime, value, arguments, "min", false);
}
Value filter_max(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return least_or_most(runtime, value, arguments, "max", true);
}

Value filter_sum(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("sum", arguments, {"attribute", "start"}, 0);
  Value sum = parameters.value(1, Value(int64_t{0}));
  if (sum.is_string()) throw Failure("sum() can't sum strings [use ''.join(seq) instead]");
  const auto values = iterate(value);
  Value item;
  while (values->next(item)) {
    runtime.charge(1);
    sum = binary_operation(runtime, Operator::kAdd, sum, get_path(item, parameters.value(0)));
  }
  return sum;
}

Value filter_groupby(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const std::vector<Value> items = vector_of(runtime, value);
  const auto exact_key = [&](const Value& item) { return get_path(item, parameters.value(0), parameters.value(1)); };
  const bool case_sensitive = parameters.truth(2, false);
  std::vector<Value> keys;
  for (const Value& item : items) keys.push_back(without_case(exact_key(item), case_sensitive));
  std::vector<Value> groups;
  std::vector<Value> members;
  Value group_key;
  const auto finish = [&] {
    if (members.empty()) return;
    Value name = case_sensitive ? group_key : exact_key(members[0]);
    groups.push_back(Value::group(std::move(name), Value::list(std::move(members))));
    members = {};
  };
  for (const size_t place : sorted_places(runtime, keys, false)) {
    if (members.empty() || !equal(group_key, keys[place])) {
      finish();
      group_key = keys[place];
    }
    members.push_back(items[place]);
  }
  finish();
  return list_value(runtime, std::move(groups));
}

// A generator of what `make` computes when the first item is asked for.
Value deferred(std::function<std::vector<Value>()> make, int depth) {
  struct State {
    std::function<std::vector<Value>()> make;
    std::vector<Value> items;
    size_t place = 0;
  };
  auto state = std::make_shared<State>(State{std::move(make), {}, 0});
  return make_generator(
      [state](Value& item) {
        if (state->make) {
          state->items = state->make();
          state->make = nullptr;
        }
        if (state->place >= state->items.size()) return false;
        item = state->items[state->place++];
        return true;
      },
      depth);
}

Value filter_batch(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("batch", arguments, {"linecount", "fill_with"}, 1);
  const int64_t size = parameters.integer(0, 0);
  const Value fill = parameters.value(1);
  const auto make = [&runtime, value, size, fill] {
    std::vector<Value> batches;
    std::vector<Value> batch;
    for (const Value& item : vector_of(runtime, value)) {
      if (static_cast<int64_t>(batch.size()) == size) {
        batches.push_back(Value::list(std::move(batch)));
        batch = {};
      }
      batch.push_back(item);
    }
    if (!batch.empty()) {
      if (!fill.is_none() && size > static_cast<int64_t>(batch.size())) {
        runtime.charge_bytes(size * static_cast<int64_t>(sizeof(Value)));
        batch.resize(static_cast<size_t>(size), fill);
      }
      batches.push_back(Value::list(std::move(batch)));
    }
    return batches;
  };
  return deferred(make, std::max(value.depth(), fill.depth()) + 1);
}

Value filter_slice(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("slice", arguments, {"slices", "fill_with"}, 1);
  const int64_t count = parameters.integer(0, 0);
  const Value fill = parameters.value(1);
  const auto make = [&runtime, value, count, fill] {
    const std::vector<Value> items = vector_of(runtime, value);
    if (count == 0) throw Failure("integer division or modulo by zero");
    std::vector<Value> slices;
    if (count < 0) return slices;
    runtime.charge_bytes(count * static_cast<int64_t>(sizeof(Value)));
    const auto size = static_cast<int64_t>(items.size());
    int64_t begin = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t end = begin + size / count + (i < size % count ? 1 : 0);
      std::vector<Value> part(items.begin() + begin, items.begin() + end);
      if (!fill.is_none() && i >= size % count) part.push_back(fill);
      slices.push_back(Value::list(std::move(part)));
      begin = end;
    }
    return slices;
  };
  return deferred(make, std::max(value.depth(), fill.depth()) + 1);
}

Value filter_attr(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  const Parameters parameters("attr", arguments, {"name"}, 1);
  require_defined(value);
  const std::string name = parameters.text(0, "");
  auto attribute = find_attribute(value, name);
  return attribute ? *attribute : Value::undefined("'" + described(value) + "' has no attribute " + repr(Value(name)));
}

// --- map, select, reject

// A generator over `value` that calls `step` for each item; an item goes on when it returns true. `arguments` are what
// the step holds.
Value stepped(Runtime& runtime, const Value& value, const Arguments& arguments, std::function<bool(Value&)> step) {
  int depth = value.depth();
  for (const Value& argument : arguments.positional) depth = std::max(depth, argument.depth());
  for (const auto& argument : arguments.named) depth = std::max(depth, argument.second.depth());
  auto values = std::make_shared<std::unique_ptr<Iterator>>();
  return make_generator(
      [&runtime, values, value, step = std::move(step)](Value& item) {
        if (!truth(value)) return false;
        if (!*values) *values = iterate(value);
        while ((*values)->next(item)) {
          runtime.charge(1);
          if (step(item)) return true;
        }
        return false;
      },
      depth);
}

Value filter_map(Runtime& runtime, const Value& value, const Arguments& arguments) {
  Arguments rest = arguments;
  if (rest.positional.empty() &&
      std::any_of(rest.named.begin(), rest.named.end(), [](const auto& given) { return given.first == "attribute"; })) {
    const Parameters parameters("map", arguments, {"attribute", "default"}, 0);
    return stepped(runtime, value, arguments,
                   [path = parameters.value(0), otherwise = parameters.value(1)](Value& item) {
                     item = get_path(item, path, otherwise);
                     return true;
                   });
  }
  return stepped(runtime, value, arguments, [&runtime, rest](Value& item) {
    if (rest.positional.empty()) throw Failure("map requires a filter argument");
    if (!rest.positional[0].is_string()) throw Failure("map requires the name of a filter");
    Arguments given = rest;
    given.positional.erase(given.positional.begin());
    item = apply_filter(runtime, rest.positional[0].text(), item, given);
    return true;
  });
}

Value select(Runtime& runtime, const Value& value, const Arguments& arguments, bool wanted, bool by_attribute) {
  return stepped(runtime, value, arguments, [&runtime, arguments, wanted, by_attribute](Value& item) {
    Arguments given = arguments;
    Value tested = item;
    if (by_attribute) {
      if (given.positional.empty()) throw Failure("Missing parameter for attribute name");
      tested = get_path(item, given.positional[0]);
      given.positional.erase(given.positional.begin());
    }
    if (given.positional.empty()) return truth(tested) == wanted;
    if (!given.positional[0].is_string()) throw Failure("the name of a test must be str");
    const std::string name = given.positional[0].text();
    given.positional.erase(given.positional.begin());
    return apply_test(runtime, name, tested, given) == wanted;
  });
}

Value filter_select(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return select(runtime, value, arguments, true, false);
}
Value filter_reject(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return select(runtime, value, arguments, false, false);
}
Value filter_selectattr(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return select(runtime, value, arguments, true, true);
}
Value filter_rejectattr(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return select(runtime, value, arguments, false, true);
}

}  // namespace

std::vector<std::pair<std::string, FilterFunction>> sequence_filters() {
  return {{"attr", filter_attr},       {"batch", filter_batch},     {"count", filter_length},
          {"d", filter_default},       {"default", filter_default}, {"dictsort", filter_dictsort},
          {"first", filter_first},     {"groupby", filter_groupby}, {"items", filter_items},
          {"join", filter_join},       {"last", filter_last},       {"length", filter_length},
          {"list", filter_list},       {"map", filter_map},         {"max", filter_max},
          {"min", filter_min},         {"reject", filter_reject},   {"rejectattr", filter_rejectattr},
          {"reverse", filter_reverse}, {"select", filter_select},   {"selectattr", filter_selectattr},
          {"slice", filter_slice},     {"sort", filter_sort},       {"sum", filter_sum},
          {"unique", filter_unique}};
}

}  // namespace ithaca::jinja
