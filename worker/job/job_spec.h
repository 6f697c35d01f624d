// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_JOB_JOB_SPEC_H_
#define TANDEM_WORKER_JOB_JOB_SPEC_H_

// A training job: the contents of a job file (worker/job/job_parser.h), checked and with defaults filled in.
// These are plain values, which may be copied freely. docs/jobs.md describes the fields.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "ps/client/cache/cache_options.h"
#include "ps/client/wire_options.h"
#include "ps/replicated/replicated_tables.h"
#include "ps/table.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/lr_schedule.h"

namespace tandem::worker {

namespace v1 = ::tandem::v1;

// An embedding table on the parameter servers. Its dimension is that of the model for `embedding` and
// `tables`, and 1 for `wide`.
struct TableSpec {
  std::string name;
  // Sparse columns whose rows live in the table. Empty for `embedding` and `wide`, which have all other
  // columns.
  std::vector<std::string> features;
  v1::OptimizerConfig optimizer = ps::DefaultOptimizer("adagrad");  // includes the table's l2
  v1::InitializerConfig initializer = ps::DefaultInitializer("normal");
  v1::TableConfig::RowType row_type = v1::TableConfig::F32;
  bool stochastic_rounding = false;
  v1::AdmissionConfig admission = ps::AdmitAlways();
  v1::EvictionConfig eviction;  // an empty kind means "none"
  uint64_t byte_budget = 0;     // of the whole table, over all servers; 0: no budget
  bool spill = false;           // true: rows beyond the budget go to the servers' disks
  ps::WireOptions wire;         // number formats in which this job's workers pull and push rows
  ps::CacheOptions cache;       // hot rows in each worker's memory; bytes 0: no cache
  // Where the table's rows live. Without effect in SYNC mode, in which every row is on the servers.
  ps::Placement placement = ps::Placement::kAuto;
  // Sparse columns that are placed otherwise than the table.
  std::vector<std::string> replicated_features, sharded_features;
  ps::L2Scope l2_scope = ps::L2Scope::kTouched;  // of replicated rows
};

// The side that adds up the rows of a multi-valued feature.
enum class PoolingPlace {
  kWorker,  // each distinct row of a batch is sent once, and the worker adds them up
  kServer,  // one pooled row is sent for each example
};

// How the rows of a multi-valued feature are combined.
enum class Combiner { kSum, kMean };

enum class Metric { kAuc, kLogloss };

struct EarlyStoppingSpec {
  Metric metric = Metric::kAuc;  // also decides which checkpoint is the best
  int patience = 0;              // training stops after this many epochs without an improvement; 0: never
  double min_delta = 0.0;        // a smaller improvement does not count as one
};

// The rows that the workers replicate (ps/replicated).
struct HotRowsSpec {
  size_t budget = size_t{64} << 20;  // bytes of each worker, over all tables
  double min_row_staleness = 1.0;    // rows above this are replicated
  uint64_t first_steps = 20;         // steps until the first choice; the interval doubles after each ...
  uint64_t every_steps = 384;        // ... up to this one
  uint64_t write_back_steps = 384;   // steps after which the servers get the rows' values; 0: never
};

struct TrainSpec {
  v1::UpdateMode mode = ps::Sync();
  size_t batch_size = 512;  // examples per worker and step, unless global_batch_size is set
  // Examples of all workers per step, a multiple of the number of workers; 0: batch_size counts.
  size_t global_batch_size = 0;
  int epochs = 10;
  uint64_t seed = 1;      // of the model, the tables and shuffling
  int lookahead = 4;      // batches whose rows are pulled ahead of the one that is computed
  int max_in_flight = 8;  // staleness budget: batches pulled whose gradients are not yet acknowledged
  size_t bucket_bytes = size_t{1} << 20;  // dense gradients are all-reduced in buckets of at least this size
  EarlyStoppingSpec early_stopping;
  HotRowsSpec hot_rows;
  absl::Duration log_every = absl::Seconds(1);
  absl::Duration timeout = absl::Seconds(60);  // limit of every wait for another process
};

// Says what a run does when a checkpoint could not be saved.
enum class SaveFailure {
  kContinue,  // logs an error and trains on
  kStop,      // ends with the error
};

struct CheckpointSpec {
  std::string dir;                                   // "runs/<job name>" unless the file gives one
  int every_epochs = 1;                              // 0: only the best epoch's checkpoint
  uint64_t every_steps = 0;                          // 0: none
  absl::Duration every_time = absl::ZeroDuration();  // zero: none
  int keep = 3;  // number of newest checkpoints that are kept, in addition to the best one
  absl::Duration timeout = absl::Minutes(10);  // limit of saving a checkpoint, and of loading one
  SaveFailure on_failure = SaveFailure::kContinue;
  int deltas = 0;  // checkpoints in a row that hold only what has changed since the one before

  // True: checkpoints within an epoch are written while training goes on.
  bool async_save = false;

  // Returns whether checkpoints other than that of the best epoch are saved.
  bool periodic() const { return every_epochs > 0 || every_steps > 0 || every_time > absl::ZeroDuration(); }
};

// The events that the parameter servers must survive (docs/durability.md).
enum class ServerDurability {
  kOff,       // a server that dies takes its tables along
  kLog,       // every server logs pushes before it acknowledges them, and comes back with them
  kFollower,  // every server has followers, one of which takes over when it dies
};

struct ServersSpec {
  ServerDurability durability = ServerDurability::kOff;
};

struct JobSpec {
  std::string name = "job";
  DatasetOptions data;
  bool shuffle = true;              // false: every epoch reads the examples in the order of the files
  size_t shuffle_buffer = 1000000;  // examples
  ModelOptions model;               // num_dense and num_sparse are set from the data, seed from train.seed
  TableSpec embedding{.name = "embedding"};
  PoolingPlace pooling = PoolingPlace::kWorker;
  Combiner combiner = Combiner::kSum;
  TableSpec wide{.name = "wide", .initializer = ps::Zeros()};
  std::vector<TableSpec> tables;    // tables for features that are not in `embedding`
  DenseOptimizerOptions optimizer;  // of the dense parameters
  // The schedule of all learning rates; the file has it under `optimizer`. `base` is the lr of the dense
  // optimizer. A cosine schedule with total_steps = 0 ends with the last epoch.
  LearningRateOptions schedule;
  TrainSpec train;
  CheckpointSpec checkpoint;
  ServersSpec ps;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_JOB_SPEC_H_
