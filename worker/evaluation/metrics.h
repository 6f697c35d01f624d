// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_EVALUATION_METRICS_H_
#define TANDEM_WORKER_EVALUATION_METRICS_H_

// Metrics of click predictions: exact AUC and logloss, of one worker or of all together.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::worker {

// Probabilities are clipped to this distance from 0 and 1 before their logarithm is taken.
inline constexpr double kProbabilityFloor = 1e-7;

// Returns 1 / (1 + exp(-logit)), without overflow.
double Sigmoid(double logit);

// Returns the probability that a random positive example has a higher score than a random negative one; a tie
// counts one half. Exact, O(n log n). labels[i] > 0.5 is positive. Any monotonic score gives the same result
// (logit or probability). The spans have the same size. Errors: FailedPrecondition if one of the labels does
// not occur (gives both counts), InvalidArgument if a score is NaN.
absl::StatusOr<double> Auc(absl::Span<const float> labels, absl::Span<const float> scores);

// Returns the mean negative log likelihood in nats, 0 for no examples. The spans have the same size.
double LogLoss(absl::Span<const float> labels, absl::Span<const float> probabilities);
// Returns the same from logits. It is exact where a float probability would be rounded to 0 or 1, and clips
// in the same way.
double LogLossFromLogits(absl::Span<const float> labels, absl::Span<const float> logits);
// Returns the logloss of predicting `probability` for every example, the baseline that every model has to
// beat.
double LogLossOfConstant(double probability, uint64_t positives, uint64_t examples);

struct ClickMetrics {
  uint64_t examples = 0;
  uint64_t positives = 0;
  double auc = 0;
  double logloss = 0;
  // If it is far from mean_label(), the model is not calibrated.
  double mean_prediction = 0;

  double mean_label() const {
    return examples == 0 ? 0 : static_cast<double>(positives) / static_cast<double>(examples);
  }
};

// Labels and logits collected during an evaluation. Workers exchange Serialize() (5 bytes per example, plus
// 16) and Merge the others'; all then compute the same metrics of all examples. Thread-compatible.
class ScoredExamples {
 public:
  // Appends examples. The spans have the same size.
  void Add(absl::Span<const float> labels, absl::Span<const float> logits);
  void Merge(const ScoredExamples& other);
  void Clear();

  size_t size() const { return labels_.size(); }
  absl::Span<const float> labels() const { return labels_; }
  absl::Span<const float> logits() const { return logits_; }

  std::string Serialize() const;
  // Returns InvalidArgument if `bytes` did not come from Serialize.
  static absl::StatusOr<ScoredExamples> Parse(absl::string_view bytes);

  // Computes the metrics. They do not depend on the order of the examples, except for the last bits of the
  // two means. Errors: those of Auc.
  absl::StatusOr<ClickMetrics> Evaluate() const;

 private:
  std::vector<float> labels_;
  std::vector<float> logits_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_EVALUATION_METRICS_H_
