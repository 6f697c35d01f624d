// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_REPORT_REPORT_H_
#define TANDEM_WORKER_REPORT_REPORT_H_

// The report of a training run: the final table on the screen, and the same values as JSON.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ps/client/cache/cache_options.h"
#include "ps/client/error_feedback.h"
#include "tandem/v1/parameter_server.pb.h"
#include "worker/report/feature_report.h"
#include "worker/step/hybrid_trainer.h"

namespace tandem::worker {

// Quality of a model on one split, over all workers. A metric that is not defined is NaN: AUC if the split
// does not have examples of both classes, logloss if it has none.
struct Quality {
  double auc = 0;
  double logloss = 0;
  uint64_t examples = 0;
};

struct EpochReport {
  int epoch = 0;       // starting at 1
  uint64_t step = 0;   // step at the end of this epoch
  uint64_t steps = 0;  // in this epoch
  // Over all workers. Up to one for each worker more than RunReport::train_examples, because the last step
  // repeats examples so that all workers have as many.
  uint64_t examples = 0;
  double seconds = 0;  // training only, without evaluation and checkpoints; that of the slowest worker
  double samples_per_s = 0;
  double train_loss = 0;
  double learning_rate = 0;  // of the dense optimizer, at the end of the epoch
  Quality valid;
  bool best = false;  // best epoch so far
  // Mean staleness of this epoch's pushes, over all tables: the number of updates that a table took between a
  // pull and the push that resulted from it. Set in rank 0's report only.
  double staleness_mean = 0;
  StageTimes times;  // of this rank
};

struct BaselineReport {
  std::string name;
  Quality test;
};

// The rows of a table that workers replicate.
struct ReplicationReport {
  uint64_t rows = 0;   // at the end
  uint64_t bytes = 0;  // memory of one worker
  uint64_t joined = 0;
  uint64_t left = 0;
  // Over the whole run and all workers.
  SegmentCounts served;
  uint64_t saved_pull_bytes = 0,
           saved_push_bytes = 0;  // ids and values that did not travel to or from servers
};

struct TableReport {
  std::string name;
  uint32_t dim = 0;
  uint64_t rows = 0;
  uint64_t bytes = 0;
  std::vector<uint64_t> rows_per_shard;
  std::string mode;  // at the end; a user may have changed it while the job ran
  double staleness_mean = 0;
  uint64_t staleness_max = 0;
  std::vector<uint64_t> staleness_histogram;
  uint64_t stale_pushes = 0;  // GBA: pushes left out as too stale
  uint64_t missing_rows = 0;
  uint64_t refused_pushes = 0;
  std::optional<ps::CacheStatistics> cache;  // of all workers; set if the table has a cache
  // Bytes of rows and gradients on the wire, without the ids of pulls and without headers.
  uint64_t pulled_bytes = 0, pushed_bytes = 0;
  std::optional<ReplicationReport> replication;  // set if the table may have replicated rows
  ps::ErrorFeedbackStatistics feedback;          // of rank 0; zeros if pushes are lossless
};

// The start of an asynchronous run: its first steps, up to the first choice of replicated rows.
struct StartReport {
  // True: the tables were in mode sync. False: all have a cache, which that mode does not allow.
  bool synchronous = true;
  uint64_t steps = 0;
  // The feature with the highest row staleness in these steps, measured by rank 0's pushes. Empty if the
  // start was synchronous: then no row is stale.
  FeatureReport stalest;
};

struct RunReport {
  std::string job, model, mode;
  int workers = 0, servers = 0;
  uint64_t seed = 0;
  uint64_t train_examples = 0, malformed_lines = 0;
  std::vector<EpochReport> epochs;
  bool stopped_early = false;
  int best_epoch = 0;  // 0: no epoch was evaluated
  // The epoch whose model `test` is of: the best one, unless its checkpoint could not be saved and later
  // epochs were worse.
  int tested_epoch = 0;
  Quality test;
  double samples_per_s = 0;  // over all epochs
  double seconds = 0;        // of the whole run
  std::vector<BaselineReport> baselines;
  std::vector<TableReport> tables;
  std::optional<StartReport> start;  // not set in sync mode
  // Since the start, or since the set of replicated rows last changed by much; empty in sync mode.
  std::vector<FeatureReport> features;
  std::vector<std::string> warnings;  // of features whose rows are too stale
  // Gradients of replicated rows that rank 0 has sent to the other workers.
  uint64_t replica_bytes = 0;
  // How long this worker did not train because of checkpoints within epochs: from the end of a step to the
  // beginning of the next. In seconds, in the order of the checkpoints.
  std::vector<double> checkpoint_holds;
  int skipped_checkpoints = 0;  // left out because the one before was still being written
  std::string checkpoint;       // path of the best epoch's checkpoint; empty: none was written
  // The run was asked to stop and has saved `checkpoint`; it was not tested.
  bool interrupted = false;
  std::string save_error;  // of rank 0: why the last checkpoint could not be saved; empty if it was
  std::string job_file;
};

// Builds the report of table `name` from the statistics of each server, in server order.
TableReport SummarizeTable(const std::string& name,
                           const std::vector<std::vector<tandem::v1::TableInfo>>& servers);

// Returns a metric with four digits, or "n/a" if it is NaN.
std::string FormatMetric(double value);
// Returns the final table, for the screen.
std::string FormatReport(const RunReport& report);
std::string ReportToJson(const RunReport& report);
// Writes the report as JSON; replaces the file atomically. Errors name the path.
absl::Status WriteReport(const RunReport& report, const std::string& path);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPORT_REPORT_H_
