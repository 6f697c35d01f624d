#ifndef TANDEM_WORKER_EVALUATION_METRICS_H_
#define TANDEM_WORKER_EVALUATION_METRICS_H_

// How good predictions of clicks are: exact AUC and logloss, of one worker or of all together.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::worker {

// Probabilities are kept this far from 0 and 1 before their logarithm is taken.
inline constexpr double kProbabilityFloor = 1e-7;

// 1 / (1 + exp(-logit)), without overflow.
double Sigmoid(double logit);

// The probability that a random positive example has a higher score than a random negative one; a tie counts
// one half. Exact, O(n log n). labels[i] > 0.5 is positive; any monotonous score does (logit or probability).
// The spans have the same size. Errors: FailedPrecondition when one of the labels is missing (says how many
// there are of each), InvalidArgument when a score is NaN.
absl::StatusOr<double> Auc(absl::Span<const float> labels, absl::Span<const float> scores);

// Mean negative log likelihood in nats; 0 of no examples. The spans have the same size.
double LogLoss(absl::Span<const float> labels, absl::Span<const float> probabilities);
// The same from logits, exact where a probability in float would be rounded to 0 or 1, and clipped likewise.
double LogLossFromLogits(absl::Span<const float> labels, absl::Span<const float> logits);
// Of predicting `probability` for every example: the baseline that every model has to beat.
double LogLossOfConstant(double probability, uint64_t positives, uint64_t examples);

struct ClickMetrics {
  uint64_t examples = 0;
  uint64_t positives = 0;
  double auc = 0;
  double logloss = 0;
  double mean_prediction = 0;  // far from positives / examples: the model is not calibrated

  double mean_label() const {
    return examples == 0 ? 0 : static_cast<double>(positives) / static_cast<double>(examples);
  }
};

// Labels and logits collected over an evaluation. Workers exchange Serialize() (5 bytes an example, plus 16)
// and Merge what they got; all then compute the same metrics of all examples. Thread-compatible.
class ScoredExamples {
 public:
  // Spans of the same size.
  void Add(absl::Span<const float> labels, absl::Span<const float> logits);
  void Merge(const ScoredExamples& other);
  void Clear();

  size_t size() const { return labels_.size(); }
  absl::Span<const float> labels() const { return labels_; }
  absl::Span<const float> logits() const { return logits_; }

  std::string Serialize() const;
  // InvalidArgument when `bytes` did not come from Serialize.
  static absl::StatusOr<ScoredExamples> Parse(absl::string_view bytes);

  // Does not depend on the order of the examples, but for the last bits of the two means. Errors: as Auc.
  absl::StatusOr<ClickMetrics> Evaluate() const;

 private:
  std::vector<float> labels_;
  std::vector<float> logits_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_EVALUATION_METRICS_H_
