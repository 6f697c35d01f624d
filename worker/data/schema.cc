// SPDX-License-Identifier: Apache-2.0
#include "worker/data/schema.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/utf8.h"

namespace tandem::worker {
namespace {

constexpr int kCriteoDense = 13;
constexpr int kCriteoSparse = 26;
constexpr char kCriteoLabel[] = "label";

bool IsDelimited(const Schema& schema) {
  return schema.format == DataFormat::kCsv || schema.format == DataFormat::kTsv ||
         schema.format == DataFormat::kCriteo;
}

bool HasHeader(const Schema& schema) {
  return schema.header && (schema.format == DataFormat::kCsv || schema.format == DataFormat::kTsv);
}

// Lists the columns. A long list is cut: a header of the wrong file can have thousands.
std::string JoinColumns(const std::vector<std::string>& columns) {
  constexpr size_t kMaxListed = 100;
  const absl::Span<const std::string> listed = absl::MakeConstSpan(columns).subspan(0, kMaxListed);
  std::string text = Printable(absl::StrJoin(listed, ", "));
  if (listed.size() < columns.size()) absl::StrAppend(&text, ", ... (", columns.size(), " in all)");
  return text;
}

absl::Status CheckColumn(const std::vector<std::string>& columns, const std::string& name,
                         absl::string_view role) {
  if (std::find(columns.begin(), columns.end(), name) != columns.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      role, " column '", name, "' is not in the data; it has the columns ", JoinColumns(columns)));
}

// Returns the number of features that every well-formed line has, or 0 if the numbers differ.
absl::StatusOr<int> CommonFeatureCount(const Schema& schema, const LineSource& source) {
  LineSource::Cursor cursor(source);
  uint64_t position = 0;
  absl::string_view line;
  int common = -1;
  for (uint64_t lines = 0; cursor.Next(&position, &line); ++lines) {
    if (lines % kLinesBetweenChecks == 0) TANDEM_RETURN_IF_ERROR(source.CheckUnchanged());
    // Counting colons suffices to see that a line is like the others; only a line that differs is parsed.
    if (common >= 0 && std::count(line.begin(), line.end(), ':') == common &&
        line.find('#') == absl::string_view::npos) {
      continue;
    }
    const int count = CountIndexFeatures(schema, line);
    if (count < 0) continue;
    if (common < 0) common = count;
    if (count != common) return 0;
  }
  return std::max(common, 0);
}

// Returns whether the first line has all columns of Criteo except the label, as in the challenge's test file.
bool IsUnlabelledCriteo(const Schema& schema, const LineSource& source) {
  LineSource::Cursor cursor(source);
  uint64_t position = 0;
  absl::string_view line;
  return schema.label_is_optional && cursor.Next(&position, &line) &&
         std::count(line.begin(), line.end(), '\t') == kCriteoDense + kCriteoSparse - 1;
}

}  // namespace

LineSource::Options LineOptions(const Schema& schema) {
  return {.header = HasHeader(schema), .comments = !IsDelimited(schema)};
}

absl::StatusOr<std::vector<std::string>> FindColumns(const Schema& schema, const LineSource& source) {
  std::vector<std::string> columns;
  if (!IsDelimited(schema)) return columns;
  if (schema.format == DataFormat::kCriteo) {
    if (!IsUnlabelledCriteo(schema, source)) columns.push_back(kCriteoLabel);
    for (int i = 1; i <= kCriteoDense; ++i) columns.push_back(absl::StrCat("I", i));
    for (int i = 1; i <= kCriteoSparse; ++i) columns.push_back(absl::StrCat("C", i));
    return columns;
  }
  absl::string_view line = source.header();
  uint64_t position = 0;
  LineSource::Cursor cursor(source);
  if (!HasHeader(schema) && !cursor.Next(&position, &line)) {
    return absl::InvalidArgumentError("the data files hold no lines");
  }
  const bool csv = schema.format == DataFormat::kCsv;
  std::string reason;
  if (!SplitDelimited(line, csv ? schema.delimiter : '\t', csv, &columns, &reason)) {
    return absl::InvalidArgumentError(absl::StrCat("the first line of the data is malformed: ", reason));
  }
  if (!HasHeader(schema)) {
    for (size_t i = 0; i < columns.size(); ++i) columns[i] = absl::StrCat(i);
    return columns;
  }
  std::vector<std::string> sorted = columns;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    return absl::InvalidArgumentError(absl::StrCat("the header names the column '", Printable(*twice), "' twice"));
  }
  return columns;
}

absl::Status ResolveSchema(const std::vector<std::string>& columns, const LineSource& source,
                           const std::optional<InputStatistics>& statistics, Schema* schema) {
  if (!IsDelimited(*schema)) {
    if (!schema->dense.empty() || !schema->sparse.empty()) {
      return absl::InvalidArgumentError(
          "libsvm and libfm files have no named columns: leave the dense and sparse features out");
    }
    int count = 0;
    if (statistics.has_value()) {
      count = statistics->index_features;
    } else {
      TANDEM_ASSIGN_OR_RETURN(count, CommonFeatureCount(*schema, source));
    }
    // An index means the same at every position, so all positions share their ids.
    for (int i = 0; i < count; ++i)
      schema->sparse.push_back({.column = absl::StrCat(i), .shared_as = "index"});
    if (count == 0) schema->sparse.push_back({.column = "features", .separator = ' ', .shared_as = "index"});
    return absl::OkStatus();
  }
  if (schema->format == DataFormat::kCriteo && schema->dense.empty() && schema->sparse.empty()) {
    for (int i = 1; i <= kCriteoDense; ++i) {
      schema->dense.push_back({.column = absl::StrCat("I", i), .transform = DenseTransform::kLog1p});
    }
    for (int i = 1; i <= kCriteoSparse; ++i) schema->sparse.push_back({.column = absl::StrCat("C", i)});
  }
  if (schema->label.empty()) {
    schema->label = schema->format == DataFormat::kCriteo ? kCriteoLabel : columns[0];
  }
  if (!schema->label_is_optional) TANDEM_RETURN_IF_ERROR(CheckColumn(columns, schema->label, "label"));
  for (const DenseFeature& feature : schema->dense) {
    TANDEM_RETURN_IF_ERROR(CheckColumn(columns, feature.column, "dense"));
  }
  for (const SparseFeature& feature : schema->sparse) {
    TANDEM_RETURN_IF_ERROR(CheckColumn(columns, feature.column, "sparse"));
  }
  if (schema->dense.empty() && schema->sparse.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no features are chosen; the data has the columns ", JoinColumns(columns)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DenseScale>> MeasureDense(const Schema& schema,
                                                     const std::vector<std::string>& columns,
                                                     const LineSource& source, const SplitRule& rule) {
  std::vector<DenseScale> scales(schema.dense.size());
  Schema measured = schema;  // only the columns that are measured get parsed
  measured.dense.clear();
  measured.sparse.clear();
  std::vector<size_t> index;
  for (size_t d = 0; d < schema.dense.size(); ++d) {
    scales[d].transform = schema.dense[d].transform;
    if (scales[d].transform != DenseTransform::kStandardize) continue;
    measured.dense.push_back(schema.dense[d]);
    index.push_back(d);
  }
  if (index.empty()) return scales;

  const DenseScale raw = {.empty = std::numeric_limits<float>::quiet_NaN()};
  const auto parser = MakeDelimitedParser(measured, columns, std::vector<DenseScale>(index.size(), raw));
  struct Moments {  // Welford's
    uint64_t count = 0;
    double mean = 0;
    double squares = 0;
  };
  std::vector<Moments> moments(index.size());
  Batch row;
  PrepareBatch(measured, 1, &row);
  LineSource::Cursor cursor(source);
  uint64_t position = 0;
  absl::string_view line;
  std::string reason;
  for (uint64_t lines = 0; cursor.Next(&position, &line); ++lines) {
    if (lines % kLinesBetweenChecks == 0) TANDEM_RETURN_IF_ERROR(source.CheckUnchanged());
    if (rule.Of(line, lines) != Split::kTrain || !parser->Parse(line, 0, &row, &reason)) continue;
    for (size_t m = 0; m < moments.size(); ++m) {
      const double x = row.dense[m];
      if (std::isnan(x)) continue;
      const double before = x - moments[m].mean;
      moments[m].mean += before / static_cast<double>(++moments[m].count);
      moments[m].squares += before * (x - moments[m].mean);
    }
  }
  for (size_t m = 0; m < moments.size(); ++m) {
    DenseScale& scale = scales[index[m]];
    scale.mean = static_cast<float>(moments[m].mean);
    const double variance =
        moments[m].count > 0 ? moments[m].squares / static_cast<double>(moments[m].count) : 0.0;
    if (variance > 0) scale.scale = static_cast<float>(1 / std::sqrt(variance));
  }
  return scales;
}

}  // namespace tandem::worker
