// SPDX-License-Identifier: Apache-2.0
#include "worker/synthetic/planted.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tandem::worker {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kRowsPerChunk = 1 << 16;
constexpr int kMaxThreads = 16;

char DelimiterOf(const std::string& path) { return absl::EndsWith(path, ".csv") ? ',' : '\t'; }

// A file that receives its name only when it is complete.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)), scratch_(path_ + ".partial") {
    file_ = std::fopen(scratch_.c_str(), "wb");
  }
  ~NewFile() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    std::remove(scratch_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  absl::Status Write(const std::string& bytes) {
    if (file_ == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size())
      return Failed();
    return absl::OkStatus();
  }
  absl::Status Finish() {
    if (file_ == nullptr) return Failed();
    const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
    if (!closed || std::rename(scratch_.c_str(), path_.c_str()) != 0) {
      const absl::Status status = Failed();
      std::remove(scratch_.c_str());
      return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Failed() const {
    return absl::ErrnoToStatus(errno, absl::StrCat("'", path_, "' cannot be written"));
  }

  const std::string path_;
  const std::string scratch_;
  std::FILE* file_;
};

void AppendInteger(int64_t value, std::string* out) {
  std::array<char, 24> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  out->append(digits.data(), end);
}

// Appends `value`, a multiple of 0.001, as decimal text.
void AppendThousandths(float value, std::string* out) {
  const int64_t thousandths = std::llround(static_cast<double>(value) * 1000);
  if (thousandths < 0) *out += '-';
  const int64_t magnitude = std::abs(thousandths);
  AppendInteger(magnitude / 1000, out);
  const int fraction = static_cast<int>(magnitude % 1000);
  *out += '.';
  *out += static_cast<char>('0' + fraction / 100);
  *out += static_cast<char>('0' + fraction / 10 % 10);
  *out += static_cast<char>('0' + fraction % 10);
}

// The text of consecutive rows, and the true model's scores of them by split.
struct Chunk {
  std::string text;
  std::array<std::vector<float>, 3> labels;
  std::array<std::vector<float>, 3> logits;

  void Fill(const PlantedModel& model, const PlantedOptions& options, char delimiter, uint64_t begin,
            uint64_t end) {
    text.clear();
    for (auto& part : labels) part.clear();
    for (auto& part : logits) part.clear();
    PlantedModel::Row row;
    for (uint64_t i = begin; i < end; ++i) {
      model.Generate(i, &row);
      const size_t line = text.size();
      text += row.label ? '1' : '0';
      for (float x : row.dense) {
        text += delimiter;
        AppendThousandths(x, &text);
      }
      for (uint32_t id : row.ids) {
        text += delimiter;
        AppendInteger(id, &text);
      }
      const size_t split = static_cast<size_t>(options.split.Of(absl::string_view(text).substr(line), i));
      labels[split].push_back(row.label ? 1.0f : 0.0f);
      logits[split].push_back(static_cast<float>(row.logit));
      text += '\n';
    }
  }
};

int NumColumns(const PlantedOptions& options) {
  return options.num_sparse + static_cast<int>(options.more_columns.size());
}

std::string Header(const PlantedOptions& options, char delimiter) {
  std::string header = "click";
  for (int d = 1; d <= options.num_dense; ++d) absl::StrAppend(&header, std::string(1, delimiter), "d", d);
  for (int f = 1; f <= NumColumns(options); ++f) absl::StrAppend(&header, std::string(1, delimiter), "c", f);
  return header + "\n";
}

// Returns the metrics of the true model. The AUC is 0.5 if only one label occurs, as in a log of a few rows.
absl::StatusOr<ClickMetrics> Evaluate(const ScoredExamples& scored) {
  absl::StatusOr<ClickMetrics> metrics = scored.Evaluate();
  if (!absl::IsFailedPrecondition(metrics.status())) return metrics;
  ClickMetrics one_label;
  one_label.examples = scored.size();
  for (float label : scored.labels()) one_label.positives += label > 0.5f ? 1 : 0;
  one_label.auc = 0.5;
  one_label.logloss = LogLossFromLogits(scored.labels(), scored.logits());
  return one_label;
}

Json ToJson(const ClickMetrics& metrics) {
  return {{"examples", metrics.examples},
          {"positives", metrics.positives},
          {"best_auc", metrics.auc},
          {"best_logloss", metrics.logloss},
          {"mean_logloss", LogLossOfConstant(metrics.mean_label(), metrics.positives, metrics.examples)}};
}

ClickMetrics FromJson(const Json& json) {
  ClickMetrics metrics;
  metrics.examples = json.at("examples").get<uint64_t>();
  metrics.positives = json.at("positives").get<uint64_t>();
  metrics.auc = json.at("best_auc").get<double>();
  metrics.logloss = json.at("best_logloss").get<double>();
  return metrics;
}

absl::Status WriteSummary(const PlantedOptions& options, const PlantedSummary& summary,
                          const std::string& path) {
  const Json json = {{"kind", "tandem planted click log"},
                     {"rows", summary.rows},
                     {"seed", options.seed},
                     {"num_sparse", NumColumns(options)},
                     {"num_dense", options.num_dense},
                     {"zipf_exponent", options.zipf_exponent},
                     {"split",
                      {{"seed", summary.split.seed},
                       {"by", summary.split.by == SplitBy::kText ? "text" : "position"},
                       {"valid_fraction", summary.split.valid_fraction},
                       {"test_fraction", summary.split.test_fraction}}},
                     {"train", ToJson(summary.train)},
                     {"valid", ToJson(summary.valid)},
                     {"test", ToJson(summary.test)}};
  NewFile file(PlantedSummaryPath(path));
  TANDEM_RETURN_IF_ERROR(file.Write(json.dump(2) + "\n"));
  return file.Finish();
}

}  // namespace

std::string PlantedSummaryPath(const std::string& path) { return path + ".json"; }

absl::StatusOr<PlantedSummary> WritePlanted(const PlantedOptions& options, const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const PlantedModel model, PlantedModel::Create(options));
  const char delimiter = DelimiterOf(path);
  NewFile file(path);
  TANDEM_RETURN_IF_ERROR(file.Write(Header(options, delimiter)));

  int threads = options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  threads = std::clamp(threads, 1, kMaxThreads);
  std::vector<Chunk> chunks(threads);
  std::array<ScoredExamples, 3> scored;
  for (uint64_t begin = 0; begin < options.rows; begin += threads * kRowsPerChunk) {
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t) {
      const uint64_t from = std::min(begin + t * kRowsPerChunk, options.rows);
      const uint64_t to = std::min(from + kRowsPerChunk, options.rows);
      workers.emplace_back([&, t, from, to] { chunks[t].Fill(model, options, delimiter, from, to); });
    }
    for (std::thread& worker : workers) worker.join();
    for (const Chunk& chunk : chunks) {
      TANDEM_RETURN_IF_ERROR(file.Write(chunk.text));
      for (size_t s = 0; s < scored.size(); ++s) scored[s].Add(chunk.labels[s], chunk.logits[s]);
    }
  }

  PlantedSummary summary;
  summary.rows = options.rows;
  summary.split = options.split;
  TANDEM_ASSIGN_OR_RETURN(summary.train, Evaluate(scored[static_cast<size_t>(Split::kTrain)]));
  TANDEM_ASSIGN_OR_RETURN(summary.valid, Evaluate(scored[static_cast<size_t>(Split::kValid)]));
  TANDEM_ASSIGN_OR_RETURN(summary.test, Evaluate(scored[static_cast<size_t>(Split::kTest)]));
  TANDEM_RETURN_IF_ERROR(file.Finish());
  TANDEM_RETURN_IF_ERROR(WriteSummary(options, summary, path));
  return summary;
}

absl::StatusOr<PlantedSummary> ReadPlantedSummary(const std::string& path) {
  const std::string name = PlantedSummaryPath(path);
  TANDEM_ASSIGN_OR_RETURN(const std::string written, ReadFile(name));
  const Json json = ParseJson(written);
  try {
    PlantedSummary summary;
    summary.rows = json.at("rows").get<uint64_t>();
    summary.split.seed = json.at("split").at("seed").get<uint64_t>();
    if (json.at("split").value("by", "text") == "position") summary.split.by = SplitBy::kPosition;
    summary.split.valid_fraction = json.at("split").at("valid_fraction").get<double>();
    summary.split.test_fraction = json.at("split").at("test_fraction").get<double>();
    summary.train = FromJson(json.at("train"));
    summary.valid = FromJson(json.at("valid"));
    summary.test = FromJson(json.at("test"));
    return summary;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is not the summary of a planted click log: ", error.what()));
  }
}

Schema PlantedSchema(const PlantedOptions& options, const std::string& path) {
  Schema schema;
  schema.format = DelimiterOf(path) == ',' ? DataFormat::kCsv : DataFormat::kTsv;
  schema.label = "click";
  for (int d = 1; d <= options.num_dense; ++d) schema.dense.push_back({.column = absl::StrCat("d", d)});
  for (int f = 1; f <= NumColumns(options); ++f) schema.sparse.push_back({.column = absl::StrCat("c", f)});
  return schema;
}

}  // namespace tandem::worker
