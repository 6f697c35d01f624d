// SPDX-License-Identifier: Apache-2.0
#include "worker/data/dataset.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/random.h"
#include "base/status.h"
#include "worker/data/line_parser.h"
#include "worker/data/line_source.h"
#include "worker/data/repeated_lines.h"
#include "worker/data/schema.h"
#include "worker/data/shard_reader.h"
#include "worker/data/split.h"
#include "worker/data/split_index.h"

namespace tandem::worker {
namespace {

// Memory for the positions of a source's lines: those of some 40 million.
constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;

absl::Status CheckOptions(const DatasetOptions& options) {
  if (options.train_files.empty()) return absl::InvalidArgumentError("no training files are given");
  const double valid = options.valid_files.empty() ? options.valid_fraction : 0;
  const double test = options.test_files.empty() ? options.test_fraction : 0;
  if (!(valid >= 0 && test >= 0 && valid + test < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("valid_fraction ", options.valid_fraction, " and test_fraction ", options.test_fraction,
                     " must not be negative and must leave something to train on"));
  }
  for (const SparseFeature& feature : options.schema.sparse) {
    if (feature.separator != '\0' && options.schema.format == DataFormat::kCsv &&
        feature.separator == options.schema.delimiter) {
      return absl::InvalidArgumentError(
          absl::StrCat("column '", feature.column,
                       "': its values are separated by the same character as the "
                       "columns; choose another separator"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const ReadOptions& options) {
  if (options.batch_size == 0) return absl::InvalidArgumentError("batch_size must be at least 1");
  if (options.shuffle && options.shuffle_buffer == 0) {
    return absl::InvalidArgumentError("shuffle_buffer must be at least 1");
  }
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not a rank among ", options.world_size, " workers"));
  }
  return absl::OkStatus();
}

// The state that readers need after Open. They share its ownership, so that they may outlive the Dataset.
struct Opened {
  struct Files {
    std::unique_ptr<LineSource> lines;  // null: the split is cut from `train`
    Layouts layouts;
  };
  Schema schema;
  std::vector<DenseScale> scales;
  Files train, valid, test;
  SplitRule rule;  // of train
  InputStatistics statistics;
  uint64_t max_malformed = 0;

  // Returns the files of a split that has its own; else nullptr.
  const Files* OwnFiles(Split split) const {
    const Files* const files = split == Split::kValid ? &valid : split == Split::kTest ? &test : nullptr;
    return files == nullptr || files->lines == nullptr ? nullptr : files;
  }
};

class FileDataset : public Dataset {
 public:
  explicit FileDataset(std::shared_ptr<const Opened> opened) : opened_(std::move(opened)) {}

  const Schema& schema() const override { return opened_->schema; }
  const InputStatistics& statistics() const override { return opened_->statistics; }
  bool labelled() const override { return IsLabelled(schema(), opened_->train.layouts); }

  absl::StatusOr<uint64_t> Count(Split split) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    TANDEM_RETURN_IF_ERROR(ScanOnce());
    return counts_[static_cast<size_t>(split)];
  }

  absl::StatusOr<double> RepeatedShare() override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    TANDEM_RETURN_IF_ERROR(ScanOnce());
    return repeated_share_;
  }

  absl::StatusOr<std::unique_ptr<BatchReader>> Read(const ReadOptions& options) override {
    TANDEM_RETURN_IF_ERROR(CheckOptions(options));
    const Opened& o = *opened_;
    // A split that has its own files is read whole: LineOrder treats these files as one undivided training
    // split.
    const Opened::Files* const own = o.OwnFiles(options.split);
    const Opened::Files& files = own != nullptr ? *own : o.train;
    ReadOptions order = options;
    if (own != nullptr) order.split = Split::kTrain;
    std::shared_ptr<const SplitIndex> index;
    {
      absl::MutexLock lock(&mutex_);
      index = indexes_[static_cast<size_t>(own != nullptr ? options.split : Split::kTrain)];
    }
    return std::make_unique<ShardReader>(opened_, *files.lines, own != nullptr ? SplitRule() : o.rule,
                                         std::move(index), order, o.schema,
                                         MakeParsers(o.schema, files.layouts, o.scales), o.max_malformed);
  }

 private:
  using Counts = std::array<uint64_t, 3>;  // by Split

  // The result of a scan of the lines of a source.
  struct Scanned {
    Counts counts = {};
    double repeated_share = 0;                // of lines whose text decides their split
    std::shared_ptr<const SplitIndex> index;  // nullptr if it would be too large
  };

  absl::Status ScanOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (scanned_) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(Scanned train, Scan(*opened_->train.lines, opened_->rule));
    Counts counts = train.counts;
    for (Split own : {Split::kValid, Split::kTest}) {
      const Opened::Files* const files = opened_->OwnFiles(own);
      if (files == nullptr) continue;
      TANDEM_ASSIGN_OR_RETURN(Scanned lines, Scan(*files->lines, SplitRule()));
      counts[static_cast<size_t>(own)] = lines.counts[static_cast<size_t>(Split::kTrain)];
      indexes_[static_cast<size_t>(own)] = std::move(lines.index);
    }
    indexes_[static_cast<size_t>(Split::kTrain)] = std::move(train.index);
    counts_ = counts;
    repeated_share_ = train.repeated_share;
    scanned_ = true;
    return absl::OkStatus();
  }

  static absl::StatusOr<Scanned> Scan(const LineSource& source, const SplitRule& rule) {
    const bool by_text = rule.Cuts() && rule.by == SplitBy::kText;
    Scanned scanned;
    RepeatedLines repeated;
    auto index = std::make_shared<SplitIndex>();
    LineSource::Cursor cursor(source);
    uint64_t position = 0;
    absl::string_view line;
    for (uint64_t lines = 0; cursor.Next(&position, &line); ++lines) {
      if (lines % kLinesBetweenChecks == 0) {
        TANDEM_RETURN_IF_ERROR(source.CheckUnchanged());
        if (index != nullptr && index->bytes() > kMaxIndexBytes) index = nullptr;
      }
      Split split;
      if (by_text) {
        const uint64_t hash = HashBytes(line, rule.seed);
        split = rule.OfHash(hash);
        repeated.Add(hash);
      } else {
        split = rule.Of(line, lines);
      }
      ++scanned.counts[static_cast<size_t>(split)];
      if (index != nullptr) index->Add(split, position);
    }
    scanned.repeated_share = repeated.Share();
    scanned.index = std::move(index);
    return scanned;
  }

  const std::shared_ptr<const Opened> opened_;
  absl::Mutex mutex_;
  bool scanned_ ABSL_GUARDED_BY(mutex_) = false;
  Counts counts_ ABSL_GUARDED_BY(mutex_) = {};
  double repeated_share_ ABSL_GUARDED_BY(mutex_) = 0;
  // The indexes of the training files, and of the files that a split has of its own.
  std::array<std::shared_ptr<const SplitIndex>, 3> indexes_ ABSL_GUARDED_BY(mutex_);
};

// Opens a split's own files and checks that they have the columns of the schema.
absl::Status OpenOwnFiles(const std::vector<std::string>& paths, const Opened& opened, Opened::Files* out) {
  if (paths.empty()) return absl::OkStatus();
  const Schema& schema = opened.schema;
  TANDEM_ASSIGN_OR_RETURN(out->lines, LineSource::Open(paths, LineOptions(schema)));
  TANDEM_ASSIGN_OR_RETURN(out->layouts, FindColumns(schema, *out->lines));
  const bool named = LineOptions(schema).header;
  if (!named && out->layouts != opened.train.layouts) {
    return absl::InvalidArgumentError(absl::StrCat("data file '", paths[0],
                                                   "' does not have as many columns as the "
                                                   "training files"));
  }
  return CheckColumns(schema, out->layouts, *out->lines);
}

// Returns the statistics of a standardized column; nullptr if they are not among `given`.
const InputStatistics::Dense* FindStatistics(const std::optional<InputStatistics>& given,
                                             const std::string& column) {
  if (!given.has_value()) return nullptr;
  for (const InputStatistics::Dense& dense : given->dense) {
    if (dense.measured && dense.column == column) return &dense;
  }
  return nullptr;
}

// Sets how dense features are scaled, and the statistics that say so.
absl::Status SetScales(const std::optional<InputStatistics>& given, Opened* opened) {
  const Schema& schema = opened->schema;
  bool measure = false;
  for (const DenseFeature& feature : schema.dense) {
    const bool measured = feature.transform == DenseTransform::kStandardize;
    measure = measure || (measured && FindStatistics(given, feature.column) == nullptr);
    opened->scales.push_back({.transform = feature.transform});
  }
  if (measure) {
    TANDEM_ASSIGN_OR_RETURN(opened->scales,
                            MeasureDense(schema, opened->train.layouts, *opened->train.lines, opened->rule));
  }
  for (size_t d = 0; d < schema.dense.size(); ++d) {
    const DenseFeature& feature = schema.dense[d];
    const bool measured = feature.transform == DenseTransform::kStandardize;
    DenseScale& scale = opened->scales[d];
    const InputStatistics::Dense* const known = FindStatistics(given, feature.column);
    if (measured && known != nullptr) {
      scale.mean = known->mean;
      scale.scale = known->scale;
    }
    opened->statistics.dense.push_back(
        {.column = feature.column, .measured = measured, .mean = scale.mean, .scale = scale.scale});
  }
  const bool positional = opened->train.layouts[0].empty() && schema.sparse[0].separator == '\0';
  opened->statistics.index_features = positional ? static_cast<int>(schema.sparse.size()) : 0;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const DatasetOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options));
  auto opened = std::make_shared<Opened>();
  opened->schema = options.schema;
  opened->max_malformed = options.max_malformed;
  opened->rule = {.seed = options.split_seed,
                  .valid_fraction = options.valid_files.empty() ? options.valid_fraction : 0,
                  .test_fraction = options.test_files.empty() ? options.test_fraction : 0,
                  .by = options.split_by};
  Opened::Files& train = opened->train;
  TANDEM_ASSIGN_OR_RETURN(train.lines, LineSource::Open(options.train_files, LineOptions(options.schema)));
  TANDEM_ASSIGN_OR_RETURN(train.layouts, FindColumns(opened->schema, *train.lines));
  const absl::Status resolved =
      ResolveSchema(train.layouts, *train.lines, options.statistics, &opened->schema);
  TANDEM_RETURN_IF_ERROR(Annotate(resolved, options.train_files[0]));
  TANDEM_RETURN_IF_ERROR(OpenOwnFiles(options.valid_files, *opened, &opened->valid));
  TANDEM_RETURN_IF_ERROR(OpenOwnFiles(options.test_files, *opened, &opened->test));
  TANDEM_RETURN_IF_ERROR(SetScales(options.statistics, opened.get()));
  return std::make_unique<FileDataset>(std::move(opened));
}

}  // namespace tandem::worker
