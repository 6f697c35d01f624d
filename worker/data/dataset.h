// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_DATASET_H_
#define TANDEM_WORKER_DATA_DATASET_H_

// A data set of text files: examples are split, shuffled, sharded over the workers and parsed into batches.
// Files are memory-mapped, not loaded: shuffling moves only the positions of lines, and a worker parses only
// the lines of its own shard.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/batch.h"

namespace tandem::worker {

// File formats. Criteo is tab-separated without a header: label, I1..I13, C1..C26. In libsvm a line may have
// a "qid:N" behind its label, the group that rankings are made of. No model uses it: it is kept if
// Schema::kept says so, and otherwise ignored.
enum class DataFormat { kCsv, kTsv, kCriteo, kLibsvm, kLibfm };

// Transform of a dense (numeric) column. A missing field (empty, NA, null, NULL, None, \N or ?) is 0 after
// the transform.
enum class DenseTransform {
  kNone,
  kLog1p,  // sign(x) * log(1 + |x|)
  // (x - mean) / stddev, both measured over the training split by Dataset::Open
  kStandardize,
};

struct DenseFeature {
  std::string column;
  DenseTransform transform = DenseTransform::kNone;
};
struct SparseFeature {
  std::string column;
  char separator = '\0';  // separates the values of a multi-valued field; '\0': the field has a single value
  uint64_t hash_buckets = 0;  // 0: ids are full 64-bit hashes; else values are hashed to this many ids
  std::string shared_as;  // features with the same non-empty name share their ids (e.g. item and last items)
};

// Describes the columns of the files.
struct Schema {
  DataFormat format = DataFormat::kCsv;
  char delimiter = ',';  // CSV; TSV and Criteo use tab
  // CSV/TSV: the first line of each file names its columns, which may have another order in each; otherwise
  // columns are "0", "1", ...
  bool header = true;
  std::string label;  // column name (CSV/TSV); the first field otherwise
  // True: a label >= threshold is 1, any other is 0. False: the label must be 0, 1 or -1, and -1 means 0.
  bool has_threshold = false;
  double threshold = 0;
  // True: a dense field with the text NaN or nan is missing. False: it is malformed, like any text that is no
  // number.
  bool nan_is_missing = false;
  // True: an example may lack its label, which is then NaN. Either the field is empty, or (CSV and TSV with a
  // header, Criteo) the files have no such column. For scoring.
  bool label_is_optional = false;
  // Criteo: I1..I13 by default. libsvm, libfm: none.
  std::vector<DenseFeature> dense;
  // Criteo: C1..C26 by default. libsvm, libfm: Dataset::Open derives them from the data.
  std::vector<SparseFeature> sparse;
  // Columns whose texts are copied into Batch::kept, unquoted. CSV, TSV, Criteo: any of the files' columns.
  // libsvm: only "qid". libfm: none.
  std::vector<std::string> kept;
  // libsvm, libfm. True: a negative index stands for the unsigned number of 64 bits with the same bits, as
  // Java and Spark write hashes of 2^63 and more. False: it is malformed.
  bool negative_index_is_bits = false;
};

enum class Split { kTrain, kValid, kTest };

// The property of an example that decides its split.
enum class SplitBy {
  // The text of its line. The split does not depend on the order of lines, and no line is both learnt from
  // and tested on: all lines of the same text are in the same split.
  kText,
  // The position of its line, from 0, among the examples of all training files in the given order. Lines of
  // the same text are divided like any others.
  kPosition,
};

// The values that Open measures over the training files. A model needs the values with which it was trained,
// wherever it is used later.
struct InputStatistics {
  struct Dense {
    std::string column;
    bool measured = false;  // the column is standardized
    float mean = 0;         // 0 and 1 unless it is
    float scale = 1;
  };
  std::vector<Dense> dense;  // one per dense feature
  // libsvm, libfm: the number of features that every row has; 0: the rows differ, and are one multi-valued
  // feature.
  int index_features = 0;
};

struct DatasetOptions {
  Schema schema;
  // Paths. One with *, ? or [...] stands for the files that match it (glob(7)), in the order of their names,
  // unless it is the name of a file itself. Names that begin with '_' or '.' and empty files are left out
  // then. Files that gzip has compressed are read like any others.
  std::vector<std::string> train_files;
  std::vector<std::string> valid_files;  // empty: the split is cut from train_files by valid_fraction
  std::vector<std::string> test_files;   // empty: the split is cut from train_files by test_fraction
  double valid_fraction = 0.1;           // of train_files; used only for a split without files of its own
  double test_fraction = 0.1;
  // An example's split is a function of split_seed and of what `split_by` says. It does not depend on the
  // host.
  uint64_t split_seed = 1;
  SplitBy split_by = SplitBy::kText;
  // Malformed lines that one reader skips (one worker, one epoch). One more makes BatchReader::Next fail.
  uint64_t max_malformed = 100;
  // Used instead of measuring the training files, if given. Standardized columns that it lacks are measured
  // all the same.
  std::optional<InputStatistics> statistics;
};

struct ReadOptions {
  Split split = Split::kTrain;
  size_t batch_size = 1024;  // per worker
  bool shuffle = false;
  uint64_t seed = 1;
  // The order is a function of (seed, epoch); it does not depend on the number of workers.
  uint64_t epoch = 0;
  // Number of examples. A buffer as large as the split shuffles it uniformly.
  size_t shuffle_buffer = size_t{1} << 20;
  int rank = 0;  // of this worker
  int world_size = 1;
  // Treatment of an uneven last round, in which not every worker would get an example. kPad and kDrop are
  // those of torch's DistributedSampler: kPad repeats examples from the start, kDrop drops the round. kExact
  // is for evaluation: it gives every example to exactly one worker, and the workers' counts may differ by
  // one.
  enum class Tail { kPad, kDrop, kExact } tail = Tail::kPad;
};

// Reads one worker's shard of one epoch, batch by batch. Not thread-safe.
//
// With kPad and kDrop all workers see the same number of batches, of the same sizes, even if some lines are
// malformed: a worker repeats its first good examples at its end, one for each line that it skipped. With
// kExact skipped lines are not replaced.
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  // Fills `batch`, whose memory is reused. Returns false and an empty batch at the end of the epoch. The last
  // batch may be smaller than the others. Errors are DataLoss:
  //
  // - More lines are malformed than allowed. The error names file, line number and defect of the first ones.
  // - None of this worker's lines is well-formed.
  // - A file has become shorter since Open.
  //
  // The content of `batch` is unspecified after an error. Every call after the end or after an error returns
  // the same result again.
  virtual absl::StatusOr<bool> Next(Batch* batch) = 0;
  // Number of malformed lines skipped so far.
  virtual uint64_t malformed_lines() const = 0;
};

// A data set. Immutable after Open; thread-safe.
class Dataset {
 public:
  // Finds and maps the files, unpacks compressed ones, reads headers, determines the columns, and measures
  // what kStandardize needs. libsvm and libfm data has one feature per position if every row has the same
  // number of features, else one multi-valued feature.
  //
  // Blocks while it reads the training files, if libsvm, libfm or kStandardize requires that. Errors:
  // NotFound or PermissionDenied (names the file), InvalidArgument (bad options, no file of text, an empty
  // file, or a column that a file does not have: names the file and lists its columns),
  // DataLoss (a file became shorter meanwhile, or a compressed one is damaged).
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const DatasetOptions& options);
  virtual ~Dataset() = default;

  virtual const Schema& schema() const = 0;  // with defaults and derived features filled in
  virtual const InputStatistics& statistics() const = 0;
  // False: the files have no label column, and label_is_optional allowed that.
  virtual bool labelled() const = 0;
  int num_dense() const { return static_cast<int>(schema().dense.size()); }
  int num_sparse() const { return static_cast<int>(schema().sparse.size()); }

  // Returns the number of lines of a split, over all workers, malformed lines included. The first call scans
  // all files. Returns DataLoss if a file has become shorter since Open.
  virtual absl::StatusOr<uint64_t> Count(Split split) = 0;
  // Returns the share of the training files' lines that repeat the text of another one, estimated from a
  // sample of texts; 0 if no split is cut by the text of lines. Scans all files unless Count has done so.
  virtual absl::StatusOr<double> RepeatedShare() = 0;
  // Starts a pass over one worker's shard. The reader may outlive the dataset. InvalidArgument: bad options.
  virtual absl::StatusOr<std::unique_ptr<BatchReader>> Read(const ReadOptions& options) = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_DATASET_H_
