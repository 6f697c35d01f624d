// SPDX-License-Identifier: Apache-2.0
// Parses CSV, TSV and Criteo: fields between delimiters, one example per line.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/random.h"
#include "base/status.h"
#include "base/utf8.h"
#include "worker/data/line_parser.h"
#include "worker/data/number.h"

namespace tandem::worker {
namespace {

// Splits lines into fields without allocating. A field is a view of the line, or of `unquoted_` if it is
// quoted.
class FieldSplitter {
 public:
  FieldSplitter(char delimiter, bool quotes) : delimiter_(delimiter), quotes_(quotes) {}

  // Returns false if a quoted field is malformed. `fields` keeps its capacity.
  bool Split(absl::string_view line, std::vector<absl::string_view>* fields, std::string* reason) {
    fields->clear();
    if (quotes_ && std::memchr(line.data(), '"', line.size()) != nullptr) {
      return SplitQuoted(line, fields, reason);
    }
    const char* const end = line.data() + line.size();
    const char* start = line.data();
    for (const char* at = start; at != end; ++at) {
      if (*at != delimiter_) continue;
      fields->emplace_back(start, at - start);
      start = at + 1;
    }
    fields->emplace_back(start, end - start);
    return true;
  }

 private:
  // Follows RFC 4180, except that a quoted field cannot contain a line break: each line is one example.
  bool SplitQuoted(absl::string_view line, std::vector<absl::string_view>* fields, std::string* reason) {
    unquoted_.clear();
    unquoted_.reserve(line.size());  // so that views of it stay valid below
    size_t at = 0;
    while (true) {
      if (at < line.size() && line[at] == '"') {
        const size_t begin = unquoted_.size();
        ++at;
        while (true) {
          const size_t quote = line.find('"', at);
          if (quote == absl::string_view::npos) {
            *reason =
                absl::StrCat("the quoted field ", fields->size() + 1,
                             " is not closed on its line (line breaks inside quotes are not supported)");
            return false;
          }
          unquoted_.append(line.data() + at, quote - at);
          at = quote + 1;
          if (at == line.size() || line[at] != '"') break;
          unquoted_ += '"';
          ++at;
        }
        if (at < line.size() && line[at] != delimiter_) {
          *reason = absl::StrCat("text follows the closing quote of field ", fields->size() + 1);
          return false;
        }
        fields->push_back(absl::string_view(unquoted_).substr(begin));
      } else {
        const size_t stop = std::min(line.find(delimiter_, at), line.size());
        fields->push_back(line.substr(at, stop - at));
        at = stop;
      }
      if (at == line.size()) return true;
      ++at;  // the delimiter; a field follows, perhaps an empty one
    }
  }

  const char delimiter_;
  const bool quotes_;
  std::string unquoted_;
};

// Table of log(1 + x) for small integers, which are most values of the integer columns of click logs.
class Log1pTable {
 public:
  Log1pTable() {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = std::log1p(static_cast<float>(i));
  }
  float operator()(float x) const {
    const float magnitude = std::abs(x);
    const size_t index = magnitude < values_.size() ? static_cast<size_t>(magnitude) : 0;
    const float log = static_cast<float>(index) == magnitude ? values_[index] : std::log1p(magnitude);
    return std::copysign(log, x);
  }

 private:
  std::array<float, 1024> values_;
};

class DelimitedParser : public LineParser {
 public:
  DelimitedParser(const Schema& schema, const std::vector<std::string>& columns,
                  const std::vector<DenseScale>& scales)
      : schema_(schema),
        columns_(columns),
        splitter_(schema.format == DataFormat::kCsv ? schema.delimiter : '\t',
                  schema.format == DataFormat::kCsv) {
    if (!schema.label_is_optional ||
        std::find(columns.begin(), columns.end(), schema.label) != columns.end()) {
      label_ = IndexOf(schema.label);
    }
    for (size_t d = 0; d < schema.dense.size(); ++d) {
      dense_.push_back({IndexOf(schema.dense[d].column), scales[d]});
    }
    for (const SparseFeature& feature : schema.sparse) {
      const uint64_t seed = HashBytes(feature.shared_as.empty() ? feature.column : feature.shared_as);
      sparse_.push_back({IndexOf(feature.column), feature.separator, feature.hash_buckets, seed});
    }
    for (const std::string& name : schema.kept) kept_.push_back(IndexOf(name));
    fields_.reserve(columns.size() + 1);
  }

  bool Parse(absl::string_view line, size_t row, Batch* batch, std::string* reason) override {
    if (!splitter_.Split(line, &fields_, reason)) return false;
    if (fields_.size() != columns_.size()) {
      *reason = absl::StrCat(fields_.size(), " fields found, ", columns_.size(), " expected");
      return false;
    }
    if (!label_.has_value()) {
      batch->labels[row] = std::numeric_limits<float>::quiet_NaN();
    } else if (!ParseLabel(schema_, fields_[*label_], &batch->labels[row], reason)) {
      return false;
    }
    float* dense = batch->dense.data() + row * dense_.size();
    for (const Dense& feature : dense_) {
      if (!ParseDense(feature, fields_[feature.column], dense++, reason)) return false;
    }
    for (size_t k = 0; k < kept_.size(); ++k) {
      const absl::string_view field = fields_[kept_[k]];
      batch->kept[row * kept_.size() + k].assign(field.data(), field.size());
    }
    SparseColumn* column = batch->sparse.data();
    for (const Sparse& feature : sparse_) {
      if (feature.separator == '\0') {
        column->ids[row] = Id(feature, fields_[feature.column]);
      } else {
        ParseMultiValued(feature, fields_[feature.column], row, column);
      }
      ++column;
    }
    return true;
  }

 private:
  struct Dense {
    size_t column;
    DenseScale scale;
  };
  struct Sparse {
    size_t column;
    char separator;
    uint64_t buckets;
    uint64_t seed;
  };

  size_t IndexOf(const std::string& name) const {
    const auto found = std::find(columns_.begin(), columns_.end(), name);
    TANDEM_CHECK_MSG(found != columns_.end(), name);
    return found - columns_.begin();
  }

  bool ParseDense(const Dense& feature, absl::string_view text, float* out, std::string* reason) const {
    float value = 0;
    switch (ParseNumber(text, &value)) {
      case NumberKind::kMissing:
        *out = feature.scale.empty;
        return true;
      case NumberKind::kNaN:
        if (schema_.nan_is_missing) {
          *out = feature.scale.empty;
          return true;
        }
        *reason = absl::StrCat("column '", Printable(columns_[feature.column]), "' holds ", Quoted(text),
                               ", not a number (with data.nan: missing it counts as an empty field)");
        return false;
      case NumberKind::kBad:
        *reason = absl::StrCat("column '", Printable(columns_[feature.column]), "' holds ", Quoted(text),
                               ", not a number");
        return false;
      case NumberKind::kNumber:
        break;
    }
    if (feature.scale.transform == DenseTransform::kLog1p) value = log1p_(value);
    *out = (value - feature.scale.mean) * feature.scale.scale;
    return true;
  }

  static uint64_t Id(const Sparse& feature, absl::string_view value) {
    const uint64_t hash = HashBytes(value, feature.seed);
    if (feature.buckets == 0) return hash;
    const uint64_t bucket =
        static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * feature.buckets) >> 64);
    return Mix64(feature.seed, bucket);
  }

  static void ParseMultiValued(const Sparse& feature, absl::string_view text, size_t row,
                               SparseColumn* column) {
    column->ids.resize(column->offsets[row]);  // drop what a malformed line left
    while (!text.empty()) {
      const size_t stop = std::min(text.find(feature.separator), text.size());
      if (stop > 0) column->ids.push_back(Id(feature, text.substr(0, stop)));
      text.remove_prefix(std::min(stop + 1, text.size()));
    }
    column->offsets[row + 1] = static_cast<uint32_t>(column->ids.size());
  }

  const Schema schema_;
  const std::vector<std::string> columns_;
  FieldSplitter splitter_;
  const Log1pTable log1p_;
  std::optional<size_t> label_;  // none: the files have no labels
  std::vector<Dense> dense_;
  std::vector<Sparse> sparse_;
  std::vector<size_t> kept_;
  std::vector<absl::string_view> fields_;
};

}  // namespace

std::unique_ptr<LineParser> MakeDelimitedParser(const Schema& schema, const std::vector<std::string>& columns,
                                                const std::vector<DenseScale>& scales) {
  return std::make_unique<DelimitedParser>(schema, columns, scales);
}

bool SplitDelimited(absl::string_view line, char delimiter, bool quotes, std::vector<std::string>* fields,
                    std::string* reason) {
  FieldSplitter splitter(delimiter, quotes);
  std::vector<absl::string_view> views;
  if (!splitter.Split(line, &views, reason)) return false;
  fields->clear();
  for (absl::string_view field : views) fields->emplace_back(field);
  return true;
}

}  // namespace tandem::worker
