#include "data/samples/chat_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/samples/quoted_text.h"
#include "data/samples/sample.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kShownBytes = 40;
// What strftime_now() takes for the present, so that data gives the same tokens on every day: noon of 26 July 2024, the
// date that Llama's templates write where there is no clock.
constexpr int64_t kNow = 1721995200;
constexpr const char* kPiecesReason = "the chat template's pieces do not make up the whole conversation";
constexpr const char* kWhatWorks = "use a chat template that marks what the assistant says with {% generation %}";
constexpr const char* kSkipAdvice = ", or leave such conversations out (data.on_error: skip)";

// Where the first difference of two texts is.
int64_t common_bytes(std::string_view a, std::string_view b) {
  const size_t size = std::min(a.size(), b.size());
  const auto difference = std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(size), b.begin());
  return difference.first - a.begin();
}

class Weigher {
 public:
  Weigher(const Conversation& conversation, TrainOn train_on, const ChatTemplate& chat_template,
          const std::string& place)
      : conversation_(conversation), train_on_(train_on), template_(chat_template), place_(place) {}

  WeightedText weigh() {
    choose_turns();
    whole_ = conversation_.variables;
    whole_["messages"] = conversation_.messages;
    rendered_ = render(whole_, false, "the conversation");
    require_tool_calls();
    result_.text = rendered_.text;
    if (train_on_ == TrainOn::kAll) {
      weigh_everything();
    } else if (template_.marks_generation()) {
      weigh_marked();
    } else {
      weigh_by_beginnings();
    }
    const bool is_wanted = std::any_of(weights_.begin(), weights_.end(), [](float weight) { return weight > 0.0f; });
    if (is_wanted && result_.spans.empty()) {
      complain("nothing of it is trained: the chat template renders no text for what the assistant says",
               "nothing of the record is trained");
    }
    return std::move(result_);
  }

 private:
  size_t turns() const { return conversation_.turns.size(); }

  // Gives each turn the weight of what is trained of it.
  void choose_turns() {
    weights_.assign(turns(), 0.0f);
    bool has_trained = false;
    const auto take = [&](size_t i) {
      weights_[i] = conversation_.turns[i].weight;
      has_trained = true;
    };
    const bool has_completion = conversation_.completion_begin >= 0;
    for (size_t i = turns(); i-- > 0;) {
      const Turn& turn = conversation_.turns[i];
      if (train_on_ == TrainOn::kAll) {  // NOLINT(bugprone-branch-clone): each reason to train stands for itself
        take(i);
      } else if (!turn.is_assistant) {
        if (turn.has_weight && turn.weight > 0.0f) {
          complain(
              fmt::format("message {} has the weight {}, but it is not the assistant's, and only those are trained; "
                          "give it 0, or train all messages (data.train_on: all)",
                          i, turn.weight),
              "a weight stands at a message that is not trained");
        }
      } else if (train_on_ == TrainOn::kAssistant ||
                 (has_completion ? static_cast<int64_t>(i) >= conversation_.completion_begin : !has_trained)) {
        take(i);
      }
    }
    if (!has_trained) {
      complain(fmt::format("nothing of it is trained: {} has no message of the assistant",
                           has_completion && train_on_ == TrainOn::kCompletion ? "the completion" : "the conversation"),
               "nothing of the record is trained");
    }
  }

  // Of a call {"function": {"name": ...}} or {"name": ...}; nothing where there is none.
  static Json* name_of_call(Json& call) {
    if (!call.is_object()) return nullptr;
    if (call.contains("function") && call["function"].is_object()) return name_of_call(call["function"]);
    return call.contains("name") && call["name"].is_string() ? &call["name"] : nullptr;
  }

  // Templates that know no tool calls render such turns without them, and an answer would be trained that is none. The
  // names may stand elsewhere too, so each turn's are marked and looked for in the rendering of that.
  void require_tool_calls() const {
    std::vector<size_t> calling;
    for (size_t i = 0; i < turns(); ++i) {
      const bool is_trained_answer = weights_[i] != 0.0f && conversation_.turns[i].is_assistant;
      if (is_trained_answer && conversation_.messages[i].contains("tool_calls")) calling.push_back(i);
    }
    if (calling.empty()) return;
    Json probe = whole_;
    std::vector<std::string> names(turns());
    for (const size_t i : calling) {
      for (Json& call : probe["messages"][i]["tool_calls"]) {
        Json* name = name_of_call(call);
        if (name == nullptr) continue;
        names[i] += (names[i].empty() ? "" : ", ") + name->get<std::string>();
        *name = name->get<std::string>() + mark_of_turn(i);
      }
    }
    if (std::all_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); })) return;
    std::string said;
    bool is_marked = true;
    try {
      const RenderedChat rendered = template_.render(probe, options_of(false));
      if (train_on_ == TrainOn::kAll || !template_.marks_generation()) {
        said = rendered.text;
      } else {
        for (const TextSpan& span : rendered.generated) {
          said += rendered.text.substr(static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin));
        }
      }
    } catch (const InputError&) {
      // It refuses names that it does not know: what it made of the real ones has to do.
      said = rendered_.text;
      is_marked = false;
    }
    for (size_t i = 0; i < turns(); ++i) {
      const std::string wanted = is_marked ? mark_of_turn(i) : names[i].substr(0, names[i].find(", "));
      if (names[i].empty() || said.find(wanted) != std::string::npos) continue;
      complain(
          fmt::format("message {} has tool_calls ({}), but the model's chat template does not render tool calls as "
                      "what the assistant says, so an answer without them would be trained; use a chat template "
                      "that does, or write the calls as the message's content",
                      i, names[i]),
          "the chat template does not render tool calls");
    }
  }

  static std::string mark_of_turn(size_t turn) { return fmt::format("_called_by_message_{}_", turn); }

  // Whether all turns in question have the same weight.
  bool has_one_weight(bool of_assistant_alone) const {
    bool is_first = true;
    float first = 0.0f;
    for (size_t i = 0; i < turns(); ++i) {
      if (of_assistant_alone && !conversation_.turns[i].is_assistant) continue;
      if (!is_first && weights_[i] != first) return false;
      first = weights_[i];
      is_first = false;
    }
    return true;
  }

  void weigh_everything() {
    const auto size = static_cast<int64_t>(rendered_.text.size());
    if (has_one_weight(false)) {
      result_.add({0, size}, weights_.front());
      return;
    }
    Json beginning = start_beginning();
    int64_t begin = 0;
    for (size_t i = 0; i < turns(); ++i) {
      beginning["messages"].push_back(conversation_.messages[i]);
      int64_t end = size;
      if (i + 1 < turns()) {
        const std::string text = render(beginning, false, beginning_text(i + 1)).text;
        require_beginning(text, rendered_.text, i);
        end = static_cast<int64_t>(text.size());
        if (end < begin) pieces_overlap(i);
      }
      result_.add({begin, end}, weights_[i]);
      begin = end;
    }
  }

  void weigh_marked() {
    const std::vector<TextSpan>& marked = rendered_.generated;
    if (has_one_weight(true)) {
      const auto assistant = std::find_if(conversation_.turns.begin(), conversation_.turns.end(),
                                          [](const Turn& turn) { return turn.is_assistant; });
      const auto index = static_cast<size_t>(assistant - conversation_.turns.begin());
      for (const TextSpan& span : marked) result_.add(span, weights_[index]);
      return;
    }
    // Which marks are whose: each beginning of the conversation has those of its messages. Only beginnings that end
    // with the assistant, or right before it, are rendered: there are templates that refuse others.
    Json beginning = start_beginning();
    size_t before = 0;
    for (size_t i = 0; i < turns(); ++i) {
      const bool is_assistant = conversation_.turns[i].is_assistant;
      if (is_assistant && i > 0 && !conversation_.turns[i - 1].is_assistant) {
        const size_t others = render(beginning, false, beginning_text(i)).generated.size();
        if (others != before) marks_of_others(i);
      }
      beginning["messages"].push_back(conversation_.messages[i]);
      if (!is_assistant) continue;
      const bool is_last = i + 1 == turns();
      const size_t after = is_last ? marked.size() : render(beginning, false, beginning_text(i + 1)).generated.size();
      if (after < before || after > marked.size()) {
        complain(
            fmt::format("the chat template marks {} pieces in the first {} messages and {} in all of them, so it "
                        "cannot be told which message a piece belongs to; give all messages the same weight, or {}",
                        after, i + 1, marked.size(), kWhatWorks),
            kPiecesReason, kSkipAdvice);
      }
      for (size_t k = before; k < after; ++k) result_.add(marked[k], weights_[i]);
      before = after;
    }
    if (before != marked.size()) {
      complain(fmt::format("the chat template marks {} pieces in the whole conversation, but {} up to the assistant's "
                           "last message",
                           marked.size(), before),
               kPiecesReason);
    }
  }

  [[noreturn]] void marks_of_others(size_t i) const {
    complain(
        fmt::format("the chat template marks text of messages before message {} that are not the assistant's, so it "
                    "cannot be told how much that counts; give all messages the same weight",
                    i),
        kPiecesReason);
  }

  void weigh_by_beginnings() {
    Json beginning = start_beginning();
    int64_t trained_until = 0;
    for (size_t i = 0; i < turns(); ++i) {
      if (weights_[i] == 0.0f) {
        beginning["messages"].push_back(conversation_.messages[i]);
        continue;
      }
      const std::string prompt = render(beginning, true, beginning_text(i) + " and the generation prompt").text;
      beginning["messages"].push_back(conversation_.messages[i]);
      const bool is_last = i + 1 == turns();
      const std::string full = is_last ? rendered_.text : render(beginning, false, beginning_text(i + 1)).text;
      if (!std::string_view(full).starts_with(prompt)) {
        const int64_t same = common_bytes(prompt, full);
        complain(fmt::format("message {} does not begin as the generation prompt does: after {} bytes the prompt is {} "
                             "and the message {}, so it cannot be told what the model has to write; {}",
                             i, same, quoted_text_around(prompt, same, kShownBytes),
                             quoted_text_around(full, same, kShownBytes), kWhatWorks),
                 kPiecesReason, kSkipAdvice);
      }
      if (!is_last) require_beginning(full, rendered_.text, i);
      const auto begin = static_cast<int64_t>(prompt.size());
      if (begin < trained_until) pieces_overlap(i);
      trained_until = static_cast<int64_t>(full.size());
      result_.add({begin, trained_until}, weights_[i]);
    }
  }

  // `text` renders the messages up to number i.
  void require_beginning(const std::string& text, const std::string& whole, size_t i) const {
    if (std::string_view(whole).starts_with(text)) return;
    const int64_t same = common_bytes(text, whole);
    complain(
        fmt::format("the chat template changes message {} or one before it when later messages follow: after {} "
                    "bytes {} becomes {}, so what is trained would not be what the model has to write; {}{}",
                    i, same, quoted_text_around(text, same, kShownBytes), quoted_text_around(whole, same, kShownBytes),
                    train_on_ == TrainOn::kAssistant ? "train the last turn alone (data.train_on: completion), " : "",
                    kWhatWorks),
        kPiecesReason, kSkipAdvice);
  }

  [[noreturn]] void pieces_overlap(size_t i) const {
    complain(
        fmt::format("the chat template renders message {} into the text of the messages before it; {}", i, kWhatWorks),
        kPiecesReason, kSkipAdvice);
  }

  Json start_beginning() const {
    Json beginning = conversation_.variables;
    beginning["messages"] = Json::array();
    return beginning;
  }

  static std::string beginning_text(size_t count) {
    return count == 0 ? "no message"
                      : fmt::format("the first {}, from which it tells what is trained",
                                    count == 1 ? "message alone" : fmt::format("{} messages alone", count));
  }

  static ChatOptions options_of(bool add_generation_prompt) {
    ChatOptions options;
    options.add_generation_prompt = add_generation_prompt;
    options.now = kNow;
    return options;
  }

  RenderedChat render(const Json& conversation, bool add_generation_prompt, const std::string& what) const {
    try {
      return template_.render(conversation, options_of(add_generation_prompt));
    } catch (const InputError& error) {
      complain(fmt::format("the chat template cannot render {}: {}", what, error.what()),
               "the chat template cannot render the conversation");
    }
  }

  [[noreturn]] void complain(const std::string& problem, const std::string& reason,
                             const std::string& skip_advice = {}) const {
    throw RecordError(place_, problem, reason, skip_advice);
  }

  const Conversation& conversation_;
  TrainOn train_on_;
  const ChatTemplate& template_;
  const std::string& place_;
  std::vector<float> weights_;  // of each turn; 0: not trained
  Json whole_;
  RenderedChat rendered_;
  WeightedText result_;
};

}  // namespace

WeightedText weigh_conversation(const Conversation& conversation, TrainOn train_on, const ChatTemplate& chat_template,
                                const std::string& place) {
  return Weigher(conversation, train_on, chat_template, place).weigh();
}

}  // namespace ithaca
