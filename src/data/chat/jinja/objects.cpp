#include <algorithm>
#include <ctime>
#include <limits>

#include "base/error.h"
#include "data/chat/jinja/format.h"
#include "data/chat/jinja/library.h"
#include "data/chat/jinja/operators.h"

namespace ithaca::jinja {
namespace {

// As Jinja's sandbox.
constexpr Integer kLongestRange = 100000;

// --- range

class Range : public Object {
 public:
  Range(Integer begin, Integer end, Integer step, int64_t count)
      : begin_(begin), end_(end), step_(step), count_(count) {}

  std::string type_name() const override { return "range"; }
  std::string repr(int /*levels*/) override {
    const std::string text = "range(" + integer_text(begin_) + ", " + integer_text(end_);
    return text + (step_ == 1 ? ")" : ", " + integer_text(step_) + ")");
  }
  bool truth() override { return count_ > 0; }
  std::optional<int64_t> length() override { return count_; }
  bool has_items() const override { return true; }
  std::optional<Value> item(Integer index) override {
    const Integer place = index < 0 ? index + count_ : index;
    if (place < 0 || place >= count_) return std::nullopt;
    return Value(begin_ + step_ * place);
  }
  std::unique_ptr<Iterator> iterate() override;
  bool equals(const Object& other) const override {
    const auto* range = dynamic_cast<const Range*>(&other);
    return range != nullptr && range->count_ == count_ &&
           (count_ == 0 || (range->begin_ == begin_ && (count_ == 1 || range->step_ == step_)));
  }
  std::shared_ptr<Range> sliced(int64_t begin, int64_t end, int64_t step, int64_t count) const {
    Integer new_step = 0;
    Integer new_end = 0;
    if (__builtin_mul_overflow(step_, static_cast<Integer>(step), &new_step) ||
        __builtin_mul_overflow(step_, static_cast<Integer>(end), &new_end) ||
        __builtin_add_overflow(begin_, new_end, &new_end)) {
      throw Failure("the steps of a range are too large");
    }
    return std::make_shared<Range>(count == 0 ? begin_ : begin_ + step_ * begin, new_end, new_step, count);
  }

 private:
  class Walk;
  Integer begin_;
  Integer end_;  // as it was asked for: only printed
  Integer step_;
  int64_t count_;
};

class Range::Walk : public Iterator {
 public:
  explicit Walk(const Range& range) : next_(range.begin_), step_(range.step_), left_(range.count_) {}
  bool next(Value& value) override {
    if (left_ == 0) return false;
    value = Value(next_);
    if (--left_ > 0) next_ += step_;
    return true;
  }

 private:
  Integer next_;
  Integer step_;
  int64_t left_;
};

std::unique_ptr<Iterator> Range::iterate() {
  return std::make_unique<Walk>(*this);
}

Value make_range(Runtime& /*runtime*/, const Arguments& arguments) {
  const auto& given = arguments.positional;
  if (!arguments.named.empty()) throw Failure("range() takes no keyword arguments");
  if (given.empty() || given.size() > 3) throw Failure("range expected from 1 to 3 arguments");
  std::vector<Integer> numbers;
  constexpr Integer kFar = std::numeric_limits<int64_t>::max();
  for (const Value& value : given) {
    require_defined(value);
    const auto integer = value.integer();
    if (!integer) throw Failure("'" + type_name(value) + "' object cannot be interpreted as an integer");
    if (*integer > kFar || *integer < -kFar) throw Failure("a bound of range() is too large");
    numbers.push_back(*integer);
  }
  const Integer begin = numbers.size() > 1 ? numbers[0] : 0;
  const Integer end = numbers.size() > 1 ? numbers[1] : numbers[0];
  const Integer step = numbers.size() > 2 ? numbers[2] : 1;
  if (step == 0) throw Failure("range() arg 3 must not be zero");
  const Integer distance = step > 0 ? end - begin : begin - end;
  const Integer count = distance <= 0 ? 0 : (distance - 1) / (step > 0 ? step : -step) + 1;
  if (count > kLongestRange) {
    throw Failure("Range too big. The sandbox blocks ranges larger than " + integer_text(kLongestRange) + " items.");
  }
  return Value(std::make_shared<Range>(begin, end, step, static_cast<int64_t>(count)));
}

// --- Generators and views

using Next = std::function<bool(Value&)>;

class Generator : public Object {
 public:
  Generator(Next next, int depth) : Object(depth), next_(std::make_shared<Next>(std::move(next))) {}
  std::string type_name() const override { return "generator"; }
  std::string repr(int /*levels*/) override { return "<generator object>"; }
  std::unique_ptr<Iterator> iterate() override { return std::make_unique<Walk>(next_); }

 private:
  // All iterators of one generator share its state: what one has taken is gone for the others.
  class Walk : public Iterator {
   public:
    explicit Walk(std::shared_ptr<Next> next) : next_(std::move(next)) {}
    bool next(Value& value) override {
      if (!*next_) return false;
      if ((*next_)(value)) return true;
      *next_ = nullptr;
      return false;
    }

   private:
    std::shared_ptr<Next> next_;
  };
  std::shared_ptr<Next> next_;
};

class View : public Object {
 public:
  View(Value dictionary, ViewKind kind)
      : Object(dictionary.depth() + 1), dictionary_(std::move(dictionary)), kind_(kind) {}
  std::string type_name() const override {
    return kind_ == ViewKind::kKeys ? "dict_keys" : kind_ == ViewKind::kValues ? "dict_values" : "dict_items";
  }
  std::string repr(int levels) override {
    std::vector<Value> items;
    for (size_t i = 0; i < entries().size(); ++i) items.push_back(at(i));
    return type_name() + "(" + jinja::repr(Value::list(std::move(items)), levels) + ")";
  }
  bool truth() override { return !entries().empty(); }
  std::optional<int64_t> length() override { return static_cast<int64_t>(entries().size()); }
  std::unique_ptr<Iterator> iterate() override { return std::make_unique<Walk>(dictionary_, kind_); }
  bool equals(const Object& other) const override {
    const auto* view = dynamic_cast<const View*>(&other);
    if (view == this) return true;
    if (view == nullptr || view->kind_ != kind_ || kind_ == ViewKind::kValues) return false;
    if (kind_ == ViewKind::kItems) return equal(dictionary_, view->dictionary_);
    return entries().size() == view->entries().size() &&
           std::all_of(entries().begin(), entries().end(), [&](const std::pair<Value, Value>& entry) {
             return view->dictionary_.dictionary().find(entry.first) != nullptr;
           });
  }

 private:
  const std::vector<std::pair<Value, Value>>& entries() const { return dictionary_.dictionary().items(); }
  Value at(size_t index) const { return entry_value(entries()[index], kind_); }
  static Value entry_value(const std::pair<Value, Value>& entry, ViewKind kind) {
    if (kind == ViewKind::kKeys) return entry.first;
    if (kind == ViewKind::kValues) return entry.second;
    return Value::tuple({entry.first, entry.second});
  }
  class Walk : public Iterator {
   public:
    Walk(Value dictionary, ViewKind kind) : dictionary_(std::move(dictionary)), kind_(kind) {}
    bool next(Value& value) override {
      const auto& entries = dictionary_.dictionary().items();
      if (position_ >= entries.size()) return false;
      value = entry_value(entries[position_++], kind_);
      return true;
    }

   private:
    Value dictionary_;
    ViewKind kind_;
    size_t position_ = 0;
  };

  Value dictionary_;
  ViewKind kind_;
};

// --- Functions

using Function = Value (*)(Runtime&, const Arguments&);

class NativeFunction : public Object {
 public:
  NativeFunction(std::string name, Function function) : name_(std::move(name)), function_(function) {}
  std::string type_name() const override { return "function"; }
  std::string repr(int /*levels*/) override { return "<function " + name_ + ">"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, Arguments arguments) override { return function_(runtime, arguments); }

 private:
  std::string name_;
  Function function_;
};

class BoundMethod : public Object {
 public:
  BoundMethod(Value self, std::string name, Method method)
      : Object(self.depth() + 1), self_(std::move(self)), name_(std::move(name)), method_(method) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string repr(int /*levels*/) override {
    return "<built-in method " + name_ + " of " + jinja::type_name(self_) + " object>";
  }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, Arguments arguments) override { return method_(runtime, self_, arguments); }

 private:
  Value self_;
  std::string name_;
  Method method_;
};

// What dict(...) and namespace(...) take: a mapping or pairs, and keywords.
DictionaryData dictionary_from(const Arguments& arguments, const std::string& function) {
  if (arguments.positional.size() > 1) {
    throw Failure(function + " expected at most 1 argument, got " + std::to_string(arguments.positional.size()));
  }
  DictionaryData data;
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    require_defined(given);
    if (given.is_dictionary()) {
      data = given.dictionary();
    } else {
      const auto pairs = iterate(given);
      Value pair;
      while (pairs->next(pair)) {
        const std::vector<Value> parts = to_vector(pair);
        if (parts.size() != 2) {
          throw Failure(function + ": an element has " + std::to_string(parts.size()) + " parts; 2 are needed");
        }
        data.set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) data.set(Value(name), value);
  return data;
}

Value make_dictionary(Runtime& /*runtime*/, const Arguments& arguments) {
  return Value::dictionary(dictionary_from(arguments, "dict"));
}

Value make_namespace(Runtime& runtime, const Arguments& arguments) {
  const DictionaryData data = dictionary_from(arguments, "namespace");
  auto result = std::make_shared<Namespace>();
  for (const auto& [name, value] : data.items()) {
    if (name.is_string()) result->set(name.text(), value);
  }
  runtime.own(result);
  return Value(std::shared_ptr<Object>(result));
}

int deepest(const std::vector<Value>& values) {
  int depth = 0;
  for (const Value& value : values) depth = std::max(depth, value.depth());
  return depth;
}

class Cycler : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(std::vector<Value> items) : Object(deepest(items) + 1), items_(std::move(items)) {}
  std::string type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(const std::string& name) override {
    if (name == "current") return items_[position_];
    const Value self{std::shared_ptr<Object>(shared_from_this())};
    if (name == "next") return make_method(self, name, &Cycler::next);
    if (name == "reset") return make_method(self, name, &Cycler::reset);
    return std::nullopt;
  }

 private:
  static Value next(Runtime& /*runtime*/, const Value& self, const Arguments& /*arguments*/) {
    auto& cycler = *self.object_as<Cycler>();
    Value value = cycler.items_[cycler.position_];
    cycler.position_ = (cycler.position_ + 1) % cycler.items_.size();
    return value;
  }
  static Value reset(Runtime& /*runtime*/, const Value& self, const Arguments& /*arguments*/) {
    self.object_as<Cycler>()->position_ = 0;
    return Value();
  }
  std::vector<Value> items_;
  size_t position_ = 0;
};

Value make_cycler(Runtime& /*runtime*/, const Arguments& arguments) {
  if (arguments.positional.empty()) throw Failure("at least one item has to be provided");
  return Value(std::shared_ptr<Object>(std::make_shared<Cycler>(arguments.positional)));
}

class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : Object(separator.depth() + 1), separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Runtime& /*runtime*/, Arguments /*arguments*/) override {
    if (used_) return separator_;
    used_ = true;
    return Value("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value make_joiner(Runtime& /*runtime*/, const Arguments& arguments) {
  const Parameters parameters("joiner", arguments, {"sep"}, 0);
  return Value(std::shared_ptr<Object>(std::make_shared<Joiner>(parameters.value(0, Value(", ")))));
}

Value raise_exception(Runtime& /*runtime*/, const Arguments& arguments) {
  const Parameters parameters("raise_exception", arguments, {"message"}, 1);
  throw Failure(to_text(parameters.value(0)));
}

Value strftime_now(Runtime& runtime, const Arguments& arguments) {
  const Parameters parameters("strftime_now", arguments, {"format"}, 1);
  const std::string format = parameters.text(0, "");
  if (format.empty()) return Value("");
  if (format.size() > 1000) throw Failure("the format of strftime_now() is longer than 1000 bytes");
  const auto seconds = static_cast<std::time_t>(runtime.now());
  std::tm parts = {};
  if (localtime_r(&seconds, &parts) == nullptr) throw Failure("the time cannot be told");
  // A mark at the end tells an empty text from one that does not fit.
  const std::string marked = format + "|";
  std::string text(marked.size() * 16 + 256, '\0');
  text.resize(std::strftime(text.data(), text.size(), marked.c_str(), &parts));
  if (text.empty()) throw Failure("the format of strftime_now() gives too long a text");
  text.pop_back();
  return Value(std::move(text));
}

}  // namespace

std::vector<std::pair<std::string, Value>> global_functions() {
  static const std::vector<std::pair<std::string, Function>> kFunctions = {
      {"range", make_range},         {"dict", make_dictionary}, {"namespace", make_namespace},
      {"cycler", make_cycler},       {"joiner", make_joiner},   {"raise_exception", raise_exception},
      {"strftime_now", strftime_now}};
  std::vector<std::pair<std::string, Value>> result;
  for (const auto& [name, function] : kFunctions) {
    result.emplace_back(name, Value(std::shared_ptr<Object>(std::make_shared<NativeFunction>(name, function))));
  }
  return result;
}

Value make_generator(std::function<bool(Value&)> next, int depth) {
  return Value(std::shared_ptr<Object>(std::make_shared<Generator>(std::move(next), depth + 1)));
}

Value sliced_range(const Value& range, int64_t begin, int64_t end, int64_t step, int64_t count) {
  return Value(std::shared_ptr<Object>(range.object_as<Range>()->sliced(begin, end, step, count)));
}

Value make_view(const Value& dictionary, ViewKind kind) {
  return Value(std::shared_ptr<Object>(std::make_shared<View>(dictionary, kind)));
}

Value make_method(const Value& self, std::string name, Method method) {
  return Value(std::shared_ptr<Object>(std::make_shared<BoundMethod>(self, std::move(name), method)));
}

std::string Namespace::repr(int levels) {
  // A namespace may hold itself.
  if (printing_) return "<Namespace {...}>";
  printing_ = true;
  std::string text;
  for (const auto& [name, value] : attributes_) {
    if (!text.empty()) text += ", ";
    text += jinja::repr(Value(name)) + ": " + jinja::repr(value, levels);
  }
  printing_ = false;
  return "<Namespace {" + text + "}>";
}

std::optional<Value> Namespace::attribute(const std::string& name) {
  for (const auto& [key, value] : attributes_) {
    if (key == name) return value;
  }
  return std::nullopt;
}

void Namespace::set(const std::string& name, Value value) {
  for (auto& [key, held] : attributes_) {
    if (key == name) {
      held = std::move(value);
      return;
    }
  }
  attributes_.emplace_back(name, std::move(value));
}

}  // namespace ithaca::jinja
