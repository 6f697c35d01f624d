// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_EVALUATION_LOGISTIC_BASELINE_H_
#define TANDEM_WORKER_EVALUATION_LOGISTIC_BASELINE_H_

// Trains logistic regression in memory on one thread: the simple baseline that is reported next to a trained
// model. It shares only the reader with Tandem's models and servers, so it also serves as a check on them.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/evaluation/metrics.h"

namespace tandem::worker {

struct LogisticBaselineOptions {
  // Largest number of training rows. A larger split is sampled evenly. The limit for the validation split is
  // a quarter of it.
  uint64_t max_rows = 1'000'000;
  // Largest number of ids kept in memory; if rows have many ids, fewer rows are read.
  uint64_t max_values = 64'000'000;
  std::vector<double> l2 = {2, 8};  // tried in turn while the validation logloss improves
  int max_epochs = 30;              // for each l2
  double learning_rate = 0.1;       // of AdaGrad
  uint64_t seed = 1;
};

struct LogisticBaseline {
  ClickMetrics test;
  ClickMetrics valid;
  double mean_label = 0;         // of the training rows: the prediction of the "global mean" baseline
  double mean_test_logloss = 0;  // test logloss of that baseline, whose AUC is 0.5
  uint64_t train_rows = 0;
  // l2 and epochs of the chosen model.
  double l2 = 0;
  int epochs = 0;
};

// Trains a bias, a weight per id and a weight per (standardized) dense feature by AdaGrad. The loss is the
// logloss, summed over all rows, + l2 / 2 * |w|^2, where w are the weights of the ids only. Epochs and l2 are
// those with the best validation logloss. An id that does not occur in training has weight 0. Reads the whole
// test split. Errors: those of the reader, and FailedPrecondition if the training split is empty or if the
// validation or test split lacks one of the labels.
absl::StatusOr<LogisticBaseline> TrainLogisticBaseline(Dataset* dataset,
                                                       const LogisticBaselineOptions& options);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_EVALUATION_LOGISTIC_BASELINE_H_
