#ifndef TANDEM_WORKER_EVALUATION_LOGISTIC_BASELINE_H_
#define TANDEM_WORKER_EVALUATION_LOGISTIC_BASELINE_H_

// Logistic regression in one thread and in memory: the plain baseline that is shown beside a trained model.
// It shares nothing with the models and servers of Tandem but the reader, so that it also is a check on them.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/evaluation/metrics.h"

namespace tandem::worker {

struct LogisticBaselineOptions {
  // Of a larger training split an even sample of about this many rows is used; of the validation split a
  // quarter.
  uint64_t max_rows = 1'000'000;
  uint64_t max_values = 64'000'000;  // ids kept in memory; fewer rows are read when they have many
  std::vector<double> l2 = {2, 8};   // tried in turn while the validation logloss gets better
  int max_epochs = 30;               // for each
  double learning_rate = 0.1;        // of AdaGrad
  uint64_t seed = 1;
};

struct LogisticBaseline {
  ClickMetrics test;
  ClickMetrics valid;
  double mean_label = 0;         // of the training rows: the global mean baseline's prediction
  double mean_test_logloss = 0;  // of that baseline, whose AUC is 0.5
  uint64_t train_rows = 0;
  double l2 = 0;   // chosen
  int epochs = 0;  // likewise
};

// A bias, a weight per id and a weight per (standardized) dense feature, trained by AdaGrad on logloss + l2 /
// 2 * |w|^2 (the sum over all rows; the bias is free), with the epochs and l2 that are best on the validation
// split. An id that was not seen in training weighs nothing. Reads all of the test split. Errors: those of
// the reader, and FailedPrecondition when a split has no examples of both labels.
absl::StatusOr<LogisticBaseline> TrainLogisticBaseline(Dataset* dataset,
                                                       const LogisticBaselineOptions& options);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_EVALUATION_LOGISTIC_BASELINE_H_
