#ifndef TANDEM_WORKER_JOB_JOB_SPEC_H_
#define TANDEM_WORKER_JOB_JOB_SPEC_H_

// A training job as the rest of the worker sees it: what a job file (worker/job/job_parser.h) says, defaults
// filled in and checked. Plain values: copy freely.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "ps/client/cache/cache_options.h"
#include "ps/client/wire_options.h"
#include "ps/table.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/lr_schedule.h"

namespace tandem::worker {

namespace v1 = ::tandem::v1;

// An embedding table on the parameter servers. Its dimension is the model's (`embedding` and `tables`) or 1
// (`wide`).
struct TableSpec {
  std::string name;
  std::vector<std::string>
      features;  // sparse columns whose rows live in it; empty for `embedding` and `wide`: all others
  v1::OptimizerConfig optimizer = ps::DefaultOptimizer("adagrad");  // with l2 in it
  v1::InitializerConfig initializer = ps::DefaultInitializer("normal");
  v1::TableConfig::RowType row_type = v1::TableConfig::F32;
  bool stochastic_rounding = false;
  v1::AdmissionConfig admission = ps::AdmitAlways();
  v1::EvictionConfig eviction;  // kind "none"
  uint64_t byte_budget = 0;     // of the whole table, over all servers; 0: none
  bool spill = false;           // rows beyond it go to the servers' disks
  ps::WireOptions wire;         // how this job's workers pull and push it
  ps::CacheOptions cache;       // of hot rows at each worker; bytes 0: none
};

// Where the rows of a multi-valued feature are added up.
enum class PoolingPlace {
  kWorker,  // rows travel once per distinct id of a batch, the worker pools
  kServer,  // one pooled row per example travels
};

// What the rows of a multi-valued feature become.
enum class Combiner { kSum, kMean };

enum class Metric { kAuc, kLogloss };

struct EarlyStoppingSpec {
  Metric metric = Metric::kAuc;  // also decides which checkpoint is the best
  int patience = 0;              // epochs without improvement that are borne; 0: never stop early
  double min_delta = 0.0;        // a smaller improvement is none
};

struct TrainSpec {
  v1::UpdateMode mode = ps::Sync();
  size_t batch_size = 512;  // examples per worker and step
  int epochs = 10;
  uint64_t seed = 1;      // of model, tables and shuffling
  int lookahead = 4;      // batches whose rows are pulled ahead of the one being computed
  int max_in_flight = 8;  // staleness budget: batches pulled whose gradients are not yet acknowledged
  size_t bucket_bytes = size_t{1} << 20;  // dense gradients are all-reduced in buckets of at least this many
  EarlyStoppingSpec early_stopping;
  absl::Duration log_every = absl::Seconds(1);
  absl::Duration timeout = absl::Seconds(60);  // of every wait for another process
};

struct CheckpointSpec {
  std::string dir;                             // "runs/<job name>" unless given
  int every_epochs = 1;                        // 0: none
  int keep = 3;                                // the newest ones, beside the best
  absl::Duration timeout = absl::Minutes(10);  // of saving one, and of loading one
};

struct JobSpec {
  std::string name = "job";
  DatasetOptions data;
  size_t shuffle_buffer = 1000000;  // examples
  ModelOptions model;               // num_dense and num_sparse are the data's to tell; seed is train.seed
  TableSpec embedding{.name = "embedding"};
  PoolingPlace pooling = PoolingPlace::kWorker;
  Combiner combiner = Combiner::kSum;
  TableSpec wide{.name = "wide", .initializer = ps::Zeros()};
  std::vector<TableSpec> tables;    // take their features out of `embedding`
  DenseOptimizerOptions optimizer;  // of the dense parameters
  // Of every optimizer. `base` is the lr of the dense one; cosine with total_steps = 0 ends with the last
  // epoch. Written under `optimizer` in the file.
  LearningRateOptions schedule;
  TrainSpec train;
  CheckpointSpec checkpoint;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_JOB_SPEC_H_
