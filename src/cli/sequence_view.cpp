#include "cli/sequence_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>

#include "base/error.h"
#include "base/text.h"

namespace ithaca {

namespace {

// More documents than this are counted instead of listed.
constexpr size_t kMostDocuments = 12;
constexpr size_t kMostShards = 16;

constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";

// Control characters of a text must not reach the terminal; line breaks stay, made visible.
std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      result += "\u23ce\n";
    } else if (c == '\t') {
      result += "\u2192\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

// Text of tokens [begin, end): what they add to the text of those before them.
class TokenTexts {
 public:
  TokenTexts(std::span<const int64_t> ids, const Tokenizer* tokenizer) : ids_(ids), tokenizer_(tokenizer) {}

  std::string text(size_t begin, size_t end) const {
    if (tokenizer_ == nullptr) return fmt::format("{} ", fmt::join(ids_.subspan(begin, end - begin), " "));
    // A few tokens before decide about spaces; decoding all of them again and again would take long.
    constexpr size_t kContext = 8;
    const size_t from = begin > kContext ? begin - kContext : 0;
    const std::string before = decode(from, begin);
    std::string all = decode(from, end);
    return all.starts_with(before) ? all.substr(before.size()) : decode(begin, end);
  }

  std::string of_id(int64_t id) const {
    return tokenizer_ == nullptr ? std::to_string(id) : tokenizer_->decode(std::span(&id, 1), {});
  }

 private:
  std::string decode(size_t begin, size_t end) const {
    return begin == end ? std::string() : tokenizer_->decode(ids_.subspan(begin, end - begin), {});
  }

  std::span<const int64_t> ids_;
  const Tokenizer* tokenizer_;
};

// What is known of each token of a sequence.
struct TokenMarks {
  std::vector<bool> trained;        // it is the label of the token before it
  std::vector<bool> begins;         // a document
  std::vector<bool> leads_on;       // its label is not in the sequence: its document goes on in another one
  std::vector<int> rank;            // of the mesh, that holds it; empty where shards are interleaved
  std::vector<std::string> shards;  // a line for each
};

std::string ranges_text(const Shard& shard) {
  std::vector<std::string> ranges;
  for (const Segment& segment : shard.segments()) {
    const int64_t last = segment.begin + (segment.count - 1) * segment.stride;
    ranges.push_back(segment.stride == 1 ? fmt::format("{}-{}", segment.begin, last)
                                         : fmt::format("{}-{} every {}", segment.begin, last, segment.stride));
  }
  return ranges.empty() ? "nothing" : fmt::format("{}", fmt::join(ranges, ", "));
}

TokenMarks marks_of(const Sequence& sequence, const SequenceViewOptions& options) {
  const size_t tokens = sequence.token_ids.size();
  TokenMarks marks;
  marks.trained.assign(tokens, false);
  marks.begins.assign(tokens, false);
  marks.leads_on.assign(tokens, false);
  size_t begin = 0;
  for (const int64_t length : sequence.document_lengths) {
    const size_t end = begin + static_cast<size_t>(length);
    if (length > 0) marks.begins[begin] = true;
    for (size_t i = begin; i < end; ++i) {
      if (sequence.shifted_labels[i] == kNoLabel) continue;
      if (i + 1 < end) {
        marks.trained[i + 1] = true;
      } else {
        marks.leads_on[i] = true;
      }
    }
    begin = end;
  }
  const int ranks = options.ring_size * options.ulysses_size;
  if (ranks == 1) return marks;
  const bool in_runs = options.layout != Layout::striped || options.ring_size == 1;
  if (in_runs) marks.rank.assign(tokens, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const Shard shard = sequence_shard(options.layout, static_cast<int64_t>(tokens), rank / options.ulysses_size,
                                       options.ring_size, rank % options.ulysses_size, options.ulysses_size);
    int64_t labels = 0;
    for (const Segment& segment : shard.segments()) {
      for (int64_t i = 0; i < segment.count; ++i) {
        const auto at = static_cast<size_t>(segment.begin + i * segment.stride);
        labels += sequence.shifted_labels[at] != kNoLabel ? 1 : 0;
        if (in_runs) marks.rank[at] = rank;
      }
    }
    marks.shards.push_back(fmt::format("  rank {}: tokens {} ({} labels)", rank, ranges_text(shard), labels));
  }
  return marks;
}

// Writes tokens in runs of the same look.
class TextWriter {
 public:
  TextWriter(const Sequence& sequence, const TokenMarks& marks, const TokenTexts& texts,
             const SequenceViewOptions& options)
      : sequence_(sequence), marks_(marks), texts_(texts), options_(options) {}

  std::string write(size_t begin, size_t end) const {
    std::string text;
    for (size_t i = begin; i < end;) {
      if (marks_.begins[i] && i > 0) text += dim("\u00b6\n");
      if (!marks_.rank.empty() && (i == begin || marks_.rank[i] != marks_.rank[i - 1])) {
        text += dim(fmt::format("\u2502{}\u2502", marks_.rank[i]));
      }
      size_t run = i + 1;
      while (run < end && !ends_run(run)) ++run;
      const std::string piece = shown(texts_.text(i, run));
      text += marks_.trained[i] ? trained(piece) : piece;
      if (marks_.leads_on[run - 1]) {
        text += dim("\u2026") + trained(shown(texts_.of_id(sequence_.shifted_labels[run - 1])));
      }
      i = run;
    }
    return text;
  }

 private:
  bool ends_run(size_t at) const {
    return marks_.trained[at] != marks_.trained[at - 1] || marks_.begins[at] || marks_.leads_on[at - 1] ||
           (!marks_.rank.empty() && marks_.rank[at] != marks_.rank[at - 1]);
  }
  std::string dim(const std::string& text) const { return options_.color ? kDim + text + kPlain : text; }
  std::string trained(const std::string& text) const {
    return options_.color ? kGreen + text + kPlain : "\u27e8" + text + "\u27e9";
  }

  const Sequence& sequence_;
  const TokenMarks& marks_;
  const TokenTexts& texts_;
  const SequenceViewOptions& options_;
};

void add_documents(const Sequence& sequence, const TokenMarks& marks, std::vector<std::string>& lines) {
  size_t begin = 0;
  for (size_t document = 0; document < sequence.document_lengths.size(); ++document) {
    const size_t end = begin + static_cast<size_t>(sequence.document_lengths[document]);
    if (document == kMostDocuments) {
      lines.push_back(fmt::format("  and {} more documents", sequence.document_lengths.size() - document));
      return;
    }
    if (end > begin) {
      const auto labels = std::count_if(sequence.shifted_labels.begin() + static_cast<std::ptrdiff_t>(begin),
                                        sequence.shifted_labels.begin() + static_cast<std::ptrdiff_t>(end),
                                        [](int64_t label) { return label != kNoLabel; });
      std::string line = fmt::format("  document {}: tokens {}-{}, positions {}-{}, {} trained", document + 1, begin,
                                     end - 1, sequence.position_ids[begin], sequence.position_ids[end - 1], labels);
      if (!sequence.label_weights.empty()) {
        double sum = 0.0;
        for (size_t i = begin; i < end; ++i) sum += static_cast<double>(sequence.label_weights[i]);
        line += fmt::format(", sum of weights {:g}", sum);
      }
      if (sequence.position_ids[begin] > 0) line += "; goes on from an earlier sequence";
      if (marks.leads_on[end - 1]) line += "; goes on in another sequence";
      lines.push_back(std::move(line));
    }
    begin = end;
  }
}

}  // namespace

std::vector<std::string> sequence_lines(const Sequence& sequence, const Tokenizer* tokenizer,
                                        const SequenceViewOptions& options) {
  const TokenMarks marks = marks_of(sequence, options);
  std::vector<std::string> lines;
  add_documents(sequence, marks, lines);
  for (size_t shard = 0; shard < marks.shards.size() && shard < kMostShards; ++shard)
    lines.push_back(marks.shards[shard]);
  if (marks.shards.size() > kMostShards) {
    lines.push_back(fmt::format("  and {} more ranks", marks.shards.size() - kMostShards));
  }
  const TokenTexts texts(sequence.token_ids, tokenizer);
  const TextWriter writer(sequence, marks, texts, options);
  const size_t tokens = sequence.token_ids.size();
  const auto most = static_cast<size_t>(std::max<int64_t>(options.tokens, 0));
  if (tokens <= most) {
    lines.push_back(writer.write(0, tokens));
    return lines;
  }
  const size_t head = (2 * most + 2) / 3;
  if (head > 0) lines.push_back(writer.write(0, head));
  lines.push_back(fmt::format("  [{} tokens are not shown]", format_count(static_cast<int64_t>(tokens - most))));
  if (most > head) lines.push_back(writer.write(tokens - (most - head), tokens));
  return lines;
}

size_t length_power(int64_t length) {
  return length < 1 ? 0 : static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length)) - 1);
}

std::vector<std::string> length_histogram(const std::vector<int64_t>& counts_by_power, const std::string& what) {
  std::vector<std::string> lines;
  const auto largest = std::max_element(counts_by_power.begin(), counts_by_power.end());
  if (largest == counts_by_power.end() || *largest == 0) return lines;
  constexpr int64_t kWidth = 40;
  size_t first = 0;
  while (counts_by_power[first] == 0) ++first;
  size_t last = counts_by_power.size() - 1;
  while (counts_by_power[last] == 0) --last;
  lines.push_back(fmt::format("tokens           {}", what));
  for (size_t power = first; power <= last; ++power) {
    const int64_t count = counts_by_power[power];
    // Something is never shown as nothing.
    const int64_t cells = count == 0 ? 0 : std::max<int64_t>(1, count * kWidth / *largest);
    std::string bar;
    for (int64_t cell = 0; cell < cells; ++cell) bar += "\u2588";
    lines.push_back(fmt::format("{:>15}  {}{}{}", format_count(int64_t{1} << power) + "+", bar, bar.empty() ? "" : " ",
                                format_count(count)));
  }
  return lines;
}

}  // namespace ithaca
