#ifndef TANDEM_WORKER_REPORT_REPORT_H_
#define TANDEM_WORKER_REPORT_REPORT_H_

// What a run has to say for itself: the final table on the screen and the same figures as JSON.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ps/client/cache/cache_options.h"
#include "ps/client/error_feedback.h"
#include "tandem/v1/parameter_server.pb.h"
#include "worker/step/hybrid_trainer.h"

namespace tandem::worker {

struct Quality {
  double auc = 0;
  double logloss = 0;
  uint64_t examples = 0;
};

struct EpochReport {
  int epoch = 0;          // from 1
  uint64_t step = 0;      // at its end
  uint64_t steps = 0;     // of this epoch
  uint64_t examples = 0;  // over all workers
  double seconds = 0;     // of training; evaluation and checkpoints are not in it
  double samples_per_s = 0;
  double train_loss = 0;
  double learning_rate = 0;  // of the dense optimizer, at the end
  Quality valid;
  bool best = false;  // so far
  // Of this epoch's pushes, over all tables: updates that a table had taken between a pull and the push that
  // came of it. Rank 0's report alone has it.
  double staleness_mean = 0;
  StageTimes times;  // rank 0's
};

struct BaselineReport {
  std::string name;
  Quality test;
};

struct TableReport {
  std::string name;
  uint32_t dim = 0;
  uint64_t rows = 0;
  uint64_t bytes = 0;
  std::vector<uint64_t> rows_per_shard;
  std::string mode;  // at the end; it may have been changed while the job ran
  double staleness_mean = 0;
  uint64_t staleness_max = 0;
  std::vector<uint64_t> staleness_histogram;
  uint64_t stale_pushes = 0;  // GBA: left out
  uint64_t missing_rows = 0;
  uint64_t refused_pushes = 0;
  std::optional<ps::CacheStatistics> cache;     // of all workers, when the table has one
  uint64_t pulled_bytes = 0, pushed_bytes = 0;  // on the wire, without ids of pulls and without headers
  ps::ErrorFeedbackStatistics feedback;         // rank 0's; zeros where pushes lose nothing
};

struct RunReport {
  std::string job, model, mode;
  int workers = 0, servers = 0;
  uint64_t seed = 0;
  uint64_t train_examples = 0, malformed_lines = 0;
  std::vector<EpochReport> epochs;
  bool stopped_early = false;
  int best_epoch = 0;        // 0: none was evaluated
  Quality test;              // of the best epoch's model
  double samples_per_s = 0;  // over all epochs
  double seconds = 0;        // of the whole run
  std::vector<BaselineReport> baselines;
  std::vector<TableReport> tables;
  std::string checkpoint;  // of the best epoch; empty: none was written
  std::string job_file;
};

// Fills in a table's part from its per-server statistics, in server order.
TableReport SummarizeTable(const std::string& name,
                           const std::vector<std::vector<tandem::v1::TableInfo>>& servers);

std::string FormatReport(const RunReport& report);
std::string ReportToJson(const RunReport& report);
// Replaced atomically. Errors name the path.
absl::Status WriteReport(const RunReport& report, const std::string& path);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPORT_REPORT_H_
