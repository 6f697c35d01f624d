// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_SYNTHETIC_PLANTED_H_
#define TANDEM_WORKER_SYNTHETIC_PLANTED_H_

// Generates a click log whose true model is known, and hence the best AUC and logloss that any model can
// reach.
//
// Columns (a header line, then one row per line): click, d1..dD, c1..cF. The ids of a categorical column
// are ranks 0, 1, ... with Zipf's distribution. Dense columns are standard normal, rounded to 3 digits. The
// label is Bernoulli(sigmoid(logit)) with
//
//   logit = bias + sum_f w[f, id_f]
//               + sum_{pairs (f, g)} <v[f, id_f], v[g, id_g]>
//               + sum_d (a_d x_d + b_d (x_d^2 - 1))
//
// where the pairs are those of the `interacting` fields with the smallest vocabularies. Weights and vectors
// are functions of (seed, field, id). Those of a field are shifted to mean 0 under its distribution, so that
// each of the three sums has exactly the requested standard deviation and interactions contain no linear
// signal. Row i is a function of (seed, i).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/dataset.h"
#include "worker/data/split.h"
#include "worker/evaluation/metrics.h"

namespace tandem::worker {

// A categorical column of its own size and distribution.
struct PlantedColumn {
  uint64_t vocabulary = 0;
  double zipf_exponent = 0;  // 0: uniform
};

// The defaults make the best AUC about .80; a model without interactions reaches about .01 less.
struct PlantedOptions {
  uint64_t rows = 3'000'000;
  int num_sparse = 20;
  uint64_t min_vocabulary = 20;    // of c1; sizes grow geometrically ...
  uint64_t max_vocabulary = 2000;  // ... to that of the last column
  double zipf_exponent = 1.05;
  // Columns after the last of these, c(F+1), c(F+2), ..., which interact with none.
  std::vector<PlantedColumn> more_columns;
  int num_dense = 4;
  int interacting = 4;         // number of fields that interact, all pairs; <= num_sparse
  int dim = 2;                 // rank of an interaction
  double linear_stddev = 1.3;  // of the logit's first sum; the second and third follow
  double interaction_stddev = 0.35;
  double dense_stddev = 0.4;
  double positive_rate = 0.3;  // approximately
  uint64_t seed = 1;
  // The split with which the data set will be read.
  SplitRule split = {.seed = 1, .valid_fraction = 0.1, .test_fraction = 0.1};
  // Threads that generate rows; 0: as many as there are cores. Does not influence the result.
  int threads = 0;
};

// The content of the sidecar file: the metrics of the true model on the generated labels, for each split.
struct PlantedSummary {
  uint64_t rows = 0;
  SplitRule split;
  ClickMetrics train;
  ClickMetrics valid;
  ClickMetrics test;
};

// The true model. Immutable after Create; thread-safe.
class PlantedModel {
 public:
  struct Row {
    std::vector<uint32_t> ids;  // [num_sparse + more_columns]
    std::vector<float> dense;   // [num_dense], as printed
    double logit = 0;
    bool label = false;
  };

  // Returns InvalidArgument, naming the option, if `options` are invalid.
  static absl::StatusOr<PlantedModel> Create(const PlantedOptions& options);

  // Returns the logit of a row with these ids and dense values.
  double Logit(absl::Span<const uint32_t> ids, absl::Span<const float> dense) const;
  // Writes row `index` of the log to `*row`, whose memory is reused.
  void Generate(uint64_t index, Row* row) const;
  const std::vector<uint64_t>& vocabulary() const { return vocabulary_; }  // of each field
  double bias() const { return bias_; }

 private:
  struct Field {
    // Alias table (Vose 1991): id i is drawn as i with probability keep[i], else as other[i].
    std::vector<float> keep;
    std::vector<uint32_t> other;
    std::vector<float> weight;
    std::vector<float> vectors;  // [vocabulary x dim], interacting fields only
  };
  PlantedModel() = default;
  Field MakeField(int index, double zipf_exponent) const;

  PlantedOptions options_;
  std::vector<uint64_t> vocabulary_;
  std::vector<Field> fields_;
  std::vector<double> linear_;     // a_d
  std::vector<double> quadratic_;  // b_d
  double bias_ = 0;
};

// Writes the log to `path` (comma-separated if the name ends in .csv, else tab-separated) and the summary to
// PlantedSummaryPath(path). Neither file appears before it is complete. Errors: InvalidArgument (options),
// and I/O errors.
absl::StatusOr<PlantedSummary> WritePlanted(const PlantedOptions& options, const std::string& path);

// Returns "<path>.json".
std::string PlantedSummaryPath(const std::string& path);
// Reads the sidecar file of `path`. Errors: NotFound, InvalidArgument (not a sidecar).
absl::StatusOr<PlantedSummary> ReadPlantedSummary(const std::string& path);

// Returns the schema with which a Dataset reads such a log: format, label, and all features.
Schema PlantedSchema(const PlantedOptions& options, const std::string& path);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_SYNTHETIC_PLANTED_H_
