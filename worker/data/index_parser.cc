// SPDX-License-Identifier: Apache-2.0
// Parses libsvm and libfm: "label index:value index:value ... # comment". In libsvm "qid:N" may follow the
// label.

#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/random.h"
#include "base/utf8.h"
#include "worker/data/line_parser.h"
#include "worker/data/number.h"

namespace tandem::worker {
namespace {

constexpr absl::string_view kQueryId = "qid:";

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

// Removes the next word from the front of `text` and returns it; empty at the end.
absl::string_view TakeWord(absl::string_view* text) {
  size_t begin = 0;
  while (begin < text->size() && IsBlank((*text)[begin])) ++begin;
  size_t end = begin;
  while (end < text->size() && !IsBlank((*text)[end])) ++end;
  const absl::string_view word = text->substr(begin, end - begin);
  text->remove_prefix(end);
  return word;
}

// Parses an index, which may be negative if Schema::negative_index_is_bits. Returns where it ends; nullptr if
// there is none.
const char* ParseIndex(const Schema& schema, const char* begin, const char* end, uint64_t* index) {
  if (begin != end && *begin == '-' && schema.negative_index_is_bits) {
    int64_t negative = 0;
    const auto [after, error] = std::from_chars(begin, end, negative);
    *index = static_cast<uint64_t>(negative);
    return error == std::errc() ? after : nullptr;
  }
  const auto [after, error] = std::from_chars(begin, end, *index);
  return error == std::errc() ? after : nullptr;
}

bool ParsePair(const Schema& schema, absl::string_view word, uint64_t* index, float* value,
               std::string* reason) {
  const char* const end = word.data() + word.size();
  const char* const colon = ParseIndex(schema, word.data(), end, index);
  if (colon != nullptr && colon != end && *colon == ':' &&
      ParseNumber(absl::string_view(colon + 1, end - colon - 1), value) == NumberKind::kNumber) {
    return true;
  }
  const bool negative = !word.empty() && word[0] == '-' && !schema.negative_index_is_bits;
  *reason =
      absl::StrCat(Quoted(word), " is not of the form index:value",
                   negative ? " (with data.negative_index: bits a negative index is read as the unsigned "
                              "number of the same 64 bits)"
                            : "");
  return false;
}

// Removes "qid:N" from the front of a libsvm line, whose label was taken. Stores N in `qid`, which is empty
// if there is none.
void TakeQueryId(const Schema& schema, absl::string_view* line, absl::string_view* qid) {
  *qid = absl::string_view();
  if (schema.format != DataFormat::kLibsvm) return;
  absl::string_view rest = *line;
  absl::string_view word = TakeWord(&rest);
  if (!absl::ConsumePrefix(&word, kQueryId)) return;
  *qid = word;
  *line = rest;
}

class IndexParser : public LineParser {
 public:
  explicit IndexParser(const Schema& schema)
      : schema_(schema), positional_(schema.sparse.empty() || schema.sparse[0].separator == '\0') {
    if (!schema.sparse.empty()) {
      const SparseFeature& feature = schema.sparse[0];
      seed_ = HashBytes(feature.shared_as.empty() ? feature.column : feature.shared_as);
    }
  }

  bool Parse(absl::string_view line, size_t row, Batch* batch, std::string* reason) override {
    line = line.substr(0, line.find('#'));
    if (!ParseLabel(schema_, TakeWord(&line), &batch->labels[row], reason)) return false;
    absl::string_view qid;
    TakeQueryId(schema_, &line, &qid);
    if (!schema_.kept.empty()) batch->kept[row].assign(qid.data(), qid.size());
    return positional_ ? ParsePositional(line, row, batch, reason) : ParseBag(line, row, batch, reason);
  }

 private:
  bool ParsePositional(absl::string_view line, size_t row, Batch* batch, std::string* reason) const {
    const size_t expected = schema_.sparse.size();
    size_t found = 0;
    for (absl::string_view word = TakeWord(&line); !word.empty(); word = TakeWord(&line), ++found) {
      uint64_t index = 0;
      float value = 0;
      if (!ParsePair(schema_, word, &index, &value, reason)) return false;
      if (found >= expected) continue;  // counted for the message below
      SparseColumn& column = batch->sparse[found];
      column.ids[row] = Mix64(seed_, index);
      if (column.weights.empty()) {
        if (value == 1) continue;
        column.weights.assign(column.ids.size(), 1.0f);
      }
      column.weights[row] = value;
    }
    if (found == expected) return true;
    *reason = absl::StrCat(found, " features found, ", expected, " expected as in the training data");
    return false;
  }

  bool ParseBag(absl::string_view line, size_t row, Batch* batch, std::string* reason) const {
    SparseColumn& column = batch->sparse[0];
    column.ids.resize(column.offsets[row]);  // drop what a malformed line left
    if (!column.weights.empty()) column.weights.resize(column.ids.size());
    for (absl::string_view word = TakeWord(&line); !word.empty(); word = TakeWord(&line)) {
      uint64_t index = 0;
      float value = 0;
      if (!ParsePair(schema_, word, &index, &value, reason)) return false;
      if (value != 1 || !column.weights.empty()) {
        column.weights.resize(column.ids.size(), 1.0f);
        column.weights.push_back(value);
      }
      column.ids.push_back(Mix64(seed_, index));
    }
    column.offsets[row + 1] = static_cast<uint32_t>(column.ids.size());
    return true;
  }

  const Schema schema_;
  const bool positional_;
  uint64_t seed_ = 0;
};

}  // namespace

std::unique_ptr<LineParser> MakeIndexParser(const Schema& schema) {
  return std::make_unique<IndexParser>(schema);
}

int CountIndexFeatures(const Schema& schema, absl::string_view line) {
  line = line.substr(0, line.find('#'));
  float label = 0;
  std::string reason;
  if (!ParseLabel(schema, TakeWord(&line), &label, &reason)) return -1;
  absl::string_view qid;
  TakeQueryId(schema, &line, &qid);
  int count = 0;
  for (absl::string_view word = TakeWord(&line); !word.empty(); word = TakeWord(&line), ++count) {
    uint64_t index = 0;
    float value = 0;
    if (!ParsePair(schema, word, &index, &value, &reason)) return -1;
  }
  return count;
}

}  // namespace tandem::worker
