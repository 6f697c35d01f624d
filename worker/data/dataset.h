#ifndef TANDEM_WORKER_DATA_DATASET_H_
#define TANDEM_WORKER_DATA_DATASET_H_

// Files of examples, split, shuffled, sharded over workers and parsed into batches. Files are mapped, not
// loaded: the shuffle moves references to lines, and a worker parses only the lines of its own shard.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/batch.h"

namespace tandem::worker {

enum class DataFormat { kCsv, kTsv, kCriteo, kLibsvm, kLibfm };

// What a dense (numeric) column becomes. Empty fields (and NA, NaN, null, NULL, None, \N, ?) are 0 after the
// transform.
enum class DenseTransform {
  kNone,
  kLog1p,        // sign(x) * log(1 + |x|)
  kStandardize,  // (x - mean) / stddev over the training split, measured once before training
};

struct DenseFeature {
  std::string column;
  DenseTransform transform = DenseTransform::kNone;
};
struct SparseFeature {
  std::string column;
  char separator = '\0';      // values of a multi-valued field are split by it; '\0': single-valued
  uint64_t hash_buckets = 0;  // 0: the full 64-bit hash; else values share this many ids (feature hashing)
  std::string shared_as;      // features with the same non-empty name share ids (e.g. item and last items)
};

struct Schema {
  DataFormat format = DataFormat::kCsv;
  char delimiter = ',';  // CSV; TSV and Criteo use tab
  bool header = true;    // CSV/TSV: the first line names the columns; otherwise columns are "0", "1", ...
  std::string label;     // column name (CSV/TSV); the first field otherwise
  bool has_threshold = false;  // label >= threshold is 1, else 0; without it the label must be 0 or 1 (or -1)
  double threshold = 0;
  std::vector<DenseFeature> dense;  // Criteo: I1..I13 by default; libsvm/libfm: none
  std::vector<SparseFeature>
      sparse;  // Criteo: C1..C26 by default; libsvm/libfm: found by looking at the data
};

enum class Split { kTrain, kValid, kTest };

struct DatasetOptions {
  Schema schema;
  std::vector<std::string> train_files;
  std::vector<std::string> valid_files;  // empty: cut from train_files by split_*
  std::vector<std::string> test_files;   // empty: likewise
  double valid_fraction = 0.1;           // used only for a split without files of its own
  double test_fraction = 0.1;
  uint64_t split_seed = 1;       // an example's split is a function of (seed, its line): any order, any host
  uint64_t max_malformed = 100;  // that one worker meets in its lines of a pass; more is fatal
};

struct ReadOptions {
  Split split = Split::kTrain;
  size_t batch_size = 1024;  // per worker
  bool shuffle = false;
  uint64_t seed = 1;
  uint64_t epoch = 0;  // the order is a function of (seed, epoch), not of the number of workers
  size_t shuffle_buffer = size_t{1} << 20;  // examples; a buffer as large as the split shuffles it uniformly
  int rank = 0;                             // of worker
  int world_size = 1;
  // DistributedSampler: an uneven tail is dropped, or padded by examples from the start. For evaluation
  // `exact` gives every example to exactly one worker instead, and workers' counts may differ by one.
  enum class Tail { kPad, kDrop, kExact } tail = Tail::kPad;
};

// Reads one worker's shard of one epoch, batch by batch. Not thread-safe. With kPad and kDrop all workers see
// equally many batches of the same sizes, malformed lines or not: a worker puts its first good examples again
// at its end for the lines it had to leave out. With kExact they are only left out.
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  // Fills `batch` (reusing its memory); false at the end of the epoch. The last batch may be smaller. Errors:
  // DataLoss when more lines are malformed than allowed, naming file, line number and what was wrong with the
  // first ones, or when none of this worker's lines is good, or when a file was cut short. After an error, or
  // the end, `batch` is empty and further calls return the same.
  virtual absl::StatusOr<bool> Next(Batch* batch) = 0;
  virtual uint64_t malformed_lines() const = 0;
};

// Immutable after Open; thread-safe.
class Dataset {
 public:
  // Maps the files, reads headers, finds out columns (libsvm/libfm: one feature per position when every row
  // has the same number of features, else one multi-valued feature), and measures what kStandardize needs.
  // Errors: NotFound (file), InvalidArgument (column not in the header: says which there are).
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const DatasetOptions& options);
  virtual ~Dataset() = default;

  virtual const Schema& schema() const = 0;  // with defaults and found features filled in
  int num_dense() const { return static_cast<int>(schema().dense.size()); }
  int num_sparse() const { return static_cast<int>(schema().sparse.size()); }

  // Examples of a split (all workers). The first call scans the files.
  virtual absl::StatusOr<uint64_t> Count(Split split) = 0;
  virtual absl::StatusOr<std::unique_ptr<BatchReader>> Read(const ReadOptions& options) = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_DATASET_H_
