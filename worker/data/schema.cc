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

bool Has(const std::vector<std::string>& columns, const std::string& name) {
  return std::find(columns.begin(), columns.end(), name) != columns.end();
}

absl::Status CheckColumn(const std::vector<std::string>& columns, const std::string& name,
                         absl::string_view role) {
  if (Has(columns, name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      role, " column '", name, "' is not in the data; it has the columns ", JoinColumns(columns)));
}

// Checks the columns of the files of one layout.
absl::Status CheckLayout(const Schema& schema, const std::vector<std::string>& columns) {
  if (!schema.label_is_optional) TANDEM_RETURN_IF_ERROR(CheckColumn(columns, schema.label, "label"));
  for (const DenseFeature& feature : schema.dense) {
    TANDEM_RETURN_IF_ERROR(CheckColumn(columns, feature.column, "dense"));
  }
  for (const SparseFeature& feature : schema.sparse) {
    TANDEM_RETURN_IF_ERROR(CheckColumn(columns, feature.column, "sparse"));
  }
  for (const std::string& column : schema.kept) {
    TANDEM_RETURN_IF_ERROR(CheckColumn(columns, column, "kept"));
  }
  return absl::OkStatus();
}

// Returns the number of features that every well-formed line has, or 0 if the numbers differ.
absl::StatusOr<int> CommonFeatureCount(const Schema& schema, const LineSource& source) {
  LineSource::Cursor cursor(source);
  uint64_t position = 0;
  absl::string_view line;
  int common = -1;
  int colons = 0;
  bool has_query = false;
  const auto names_query = [](absl::string_view text) {
    return text.find("qid:") != absl::string_view::npos;
  };
  for (uint64_t lines = 0; cursor.Next(&position, &line); ++lines) {
    if (lines % kLinesBetweenChecks == 0) TANDEM_RETURN_IF_ERROR(source.CheckUnchanged());
    // Counting colons suffices to see that a line is like the others; only a line that differs is parsed.
    if (common >= 0 && std::count(line.begin(), line.end(), ':') == colons &&
        line.find('#') == absl::string_view::npos && names_query(line) == has_query) {
      continue;
    }
    const int count = CountIndexFeatures(schema, line);
    if (count < 0) continue;
    if (common < 0) {
      common = count;
      has_query = names_query(line);
      colons = count + (has_query ? 1 : 0);
    }
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

absl::StatusOr<std::vector<std::string>> SplitLine(const Schema& schema, absl::string_view line) {
  const bool csv = schema.format == DataFormat::kCsv;
  std::vector<std::string> fields;
  std::string reason;
  if (SplitDelimited(line, csv ? schema.delimiter : '\t', csv, &fields, &reason)) return fields;
  return absl::InvalidArgumentError(absl::StrCat("the first line of the data is malformed: ", reason));
}

absl::StatusOr<std::vector<std::string>> SplitHeader(const Schema& schema, absl::string_view line) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> columns, SplitLine(schema, line));
  std::vector<std::string> sorted = columns;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return columns;
  return absl::InvalidArgumentError(
      absl::StrCat("the header names the column '", Printable(*twice), "' twice"));
}

}  // namespace

LineSource::Options LineOptions(const Schema& schema) {
  return {.header = HasHeader(schema), .comments = !IsDelimited(schema)};
}

absl::StatusOr<Layouts> FindColumns(const Schema& schema, const LineSource& source) {
  if (!IsDelimited(schema)) return Layouts(1);
  if (schema.format == DataFormat::kCriteo) {
    std::vector<std::string> columns;
    if (!IsUnlabelledCriteo(schema, source)) columns.push_back(kCriteoLabel);
    for (int i = 1; i <= kCriteoDense; ++i) columns.push_back(absl::StrCat("I", i));
    for (int i = 1; i <= kCriteoSparse; ++i) columns.push_back(absl::StrCat("C", i));
    return Layouts{std::move(columns)};
  }
  if (HasHeader(schema)) {
    Layouts layouts;
    for (const LineSource::Header& header : source.headers()) {
      absl::StatusOr<std::vector<std::string>> columns = SplitHeader(schema, header.line);
      if (!columns.ok()) return Annotate(columns.status(), absl::StrCat("data file '", header.path, "'"));
      layouts.push_back(*std::move(columns));
    }
    return layouts;
  }
  absl::string_view line;
  uint64_t position = 0;
  LineSource::Cursor cursor(source);
  if (!cursor.Next(&position, &line)) return absl::InvalidArgumentError("the data files hold no lines");
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> columns, SplitLine(schema, line));
  for (size_t i = 0; i < columns.size(); ++i) columns[i] = absl::StrCat(i);
  return Layouts{std::move(columns)};
}

absl::Status CheckColumns(const Schema& schema, const Layouts& layouts, const LineSource& source) {
  if (!IsDelimited(schema)) {
    const bool libsvm = schema.format == DataFormat::kLibsvm;
    for (const std::string& column : schema.kept) {
      if (libsvm && column == "qid" && schema.kept.size() == 1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("kept column '", column, "': ", libsvm ? "libsvm" : "libfm",
                       " files have no named columns", libsvm ? " except 'qid'" : ""));
    }
    return absl::OkStatus();
  }
  for (size_t h = 0; h < layouts.size(); ++h) {
    const std::string& path = source.headers()[h].path;
    const absl::Status checked = CheckLayout(schema, layouts[h]);
    if (!checked.ok())
      return path.empty() ? checked : Annotate(checked, absl::StrCat("data file '", path, "'"));
    if (Has(layouts[h], schema.label) != Has(layouts[0], schema.label)) {
      const bool first = Has(layouts[0], schema.label);
      return absl::InvalidArgumentError(absl::StrCat(
          "data file '", path, "' has ", first ? "no" : "a", " label column '", schema.label, "', and '",
          source.headers()[0].path, "' has ", first ? "one" : "none", ": score them one after the other"));
    }
  }
  return absl::OkStatus();
}

bool IsLabelled(const Schema& schema, const Layouts& layouts) {
  return !IsDelimited(schema) || Has(layouts[0], schema.label);
}

std::vector<std::unique_ptr<LineParser>> MakeParsers(const Schema& schema, const Layouts& layouts,
                                                     const std::vector<DenseScale>& scales) {
  std::vector<std::unique_ptr<LineParser>> parsers;
  for (const std::vector<std::string>& columns : layouts) {
    parsers.push_back(IsDelimited(schema) ? MakeDelimitedParser(schema, columns, scales)
                                          : MakeIndexParser(schema));
  }
  return parsers;
}

absl::Status ResolveSchema(const Layouts& layouts, const LineSource& source,
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
    return CheckColumns(*schema, layouts, source);
  }
  const std::vector<std::string>& columns = layouts[0];
  if (schema->format == DataFormat::kCriteo && schema->dense.empty() && schema->sparse.empty()) {
    for (int i = 1; i <= kCriteoDense; ++i) {
      schema->dense.push_back({.column = absl::StrCat("I", i), .transform = DenseTransform::kLog1p});
    }
    for (int i = 1; i <= kCriteoSparse; ++i) schema->sparse.push_back({.column = absl::StrCat("C", i)});
  }
  if (schema->label.empty()) {
    schema->label = schema->format == DataFormat::kCriteo ? kCriteoLabel : columns[0];
  }
  if (schema->dense.empty() && schema->sparse.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no features are chosen; the data has the columns ", JoinColumns(columns)));
  }
  return CheckColumns(*schema, layouts, source);
}

absl::StatusOr<std::vector<DenseScale>> MeasureDense(const Schema& schema, const Layouts& layouts,
                                                     const LineSource& source, const SplitRule& rule) {
  std::vector<DenseScale> scales(schema.dense.size());
  Schema measured = schema;  // only the columns that are measured get parsed
  measured.dense.clear();
  measured.sparse.clear();
  measured.kept.clear();
  std::vector<size_t> index;
  for (size_t d = 0; d < schema.dense.size(); ++d) {
    scales[d].transform = schema.dense[d].transform;
    if (scales[d].transform != DenseTransform::kStandardize) continue;
    measured.dense.push_back(schema.dense[d]);
    index.push_back(d);
  }
  if (index.empty()) return scales;

  const DenseScale raw = {.empty = std::numeric_limits<float>::quiet_NaN()};
  const auto parsers = MakeParsers(measured, layouts, std::vector<DenseScale>(index.size(), raw));
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
    if (rule.Of(line, lines) != Split::kTrain || !parsers[cursor.header()]->Parse(line, 0, &row, &reason)) {
      continue;
    }
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
