// SPDX-License-Identifier: Apache-2.0
#include "worker/evaluation/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::worker {
namespace {

// Serialized form, little-endian: magic (8 bytes), count n (8), n logits (4 each), n labels (1 each).
constexpr char kMagic[8] = {'T', 'D', 'M', 'S', 'C', 'O', 'R', '1'};
constexpr size_t kHeaderBytes = 16;
static_assert(std::endian::native == std::endian::little, "scores travel in little-endian order");

// Maps a float to an integer with the same order; -0 and 0 map to the same integer.
uint32_t SortableBits(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

double LossOfLogit(bool positive, double logit) {
  static const double kMax = -std::log(kProbabilityFloor);
  static const double kMin = -std::log1p(-kProbabilityFloor);
  const double against = positive ? -logit : logit;  // the loss is log(1 + exp(against))
  const double loss = std::max(against, 0.0) + std::log1p(std::exp(-std::abs(against)));
  return std::clamp(loss, kMin, kMax);
}

}  // namespace

double Sigmoid(double logit) {
  if (logit >= 0) return 1 / (1 + std::exp(-logit));
  const double e = std::exp(logit);
  return e / (1 + e);
}

absl::StatusOr<double> Auc(absl::Span<const float> labels, absl::Span<const float> scores) {
  TANDEM_CHECK(labels.size() == scores.size());
  // Score, then label. Sorting integers is much faster than sorting pairs.
  std::vector<uint64_t> keys(labels.size());
  for (size_t i = 0; i < labels.size(); ++i) {
    if (std::isnan(scores[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("the score of example ", i, " is NaN: training has diverged"));
    }
    keys[i] = static_cast<uint64_t>(SortableBits(scores[i])) << 1 | (labels[i] > 0.5f ? 1 : 0);
  }
  std::sort(keys.begin(), keys.end());
  // Twice the number of (negative, positive) pairs in the right order, ties counted once. An integer, hence
  // exact.
  unsigned __int128 twice = 0;
  uint64_t negatives = 0;
  uint64_t positives = 0;
  for (size_t i = 0; i < keys.size();) {
    const uint64_t score = keys[i] >> 1;
    uint64_t tied_negatives = 0;
    uint64_t tied_positives = 0;
    for (; i < keys.size() && keys[i] >> 1 == score; ++i) {
      if ((keys[i] & 1) != 0) {
        ++tied_positives;
      } else {
        ++tied_negatives;
      }
    }
    twice += static_cast<unsigned __int128>(tied_positives) * (2 * negatives + tied_negatives);
    negatives += tied_negatives;
    positives += tied_positives;
  }
  if (negatives == 0 || positives == 0) {
    return absl::FailedPreconditionError(absl::StrCat("AUC needs both labels: there are ", positives,
                                                      " positive and ", negatives, " negative examples"));
  }
  return static_cast<double>(twice) / (2.0 * static_cast<double>(negatives) * static_cast<double>(positives));
}

double LogLoss(absl::Span<const float> labels, absl::Span<const float> probabilities) {
  TANDEM_CHECK(labels.size() == probabilities.size());
  if (labels.empty()) return 0;
  double sum = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const double p = std::clamp<double>(probabilities[i], kProbabilityFloor, 1 - kProbabilityFloor);
    sum -= labels[i] > 0.5f ? std::log(p) : std::log1p(-p);
  }
  return sum / static_cast<double>(labels.size());
}

double LogLossFromLogits(absl::Span<const float> labels, absl::Span<const float> logits) {
  TANDEM_CHECK(labels.size() == logits.size());
  if (labels.empty()) return 0;
  double sum = 0;
  for (size_t i = 0; i < labels.size(); ++i) sum += LossOfLogit(labels[i] > 0.5f, logits[i]);
  return sum / static_cast<double>(labels.size());
}

double LogLossOfConstant(double probability, uint64_t positives, uint64_t examples) {
  if (examples == 0) return 0;
  const double p = std::clamp(probability, kProbabilityFloor, 1 - kProbabilityFloor);
  const double share = static_cast<double>(positives) / static_cast<double>(examples);
  return -share * std::log(p) - (1 - share) * std::log1p(-p);
}

void ScoredExamples::Add(absl::Span<const float> labels, absl::Span<const float> logits) {
  TANDEM_CHECK(labels.size() == logits.size());
  labels_.insert(labels_.end(), labels.begin(), labels.end());
  logits_.insert(logits_.end(), logits.begin(), logits.end());
}

void ScoredExamples::Merge(const ScoredExamples& other) { Add(other.labels_, other.logits_); }

void ScoredExamples::Clear() {
  labels_.clear();
  logits_.clear();
}

std::string ScoredExamples::Serialize() const {
  const uint64_t count = labels_.size();
  std::string bytes(kHeaderBytes + count * 5, '\0');
  std::memcpy(bytes.data(), kMagic, sizeof(kMagic));
  std::memcpy(bytes.data() + 8, &count, sizeof(count));
  if (count > 0) std::memcpy(bytes.data() + kHeaderBytes, logits_.data(), count * sizeof(float));
  char* labels = bytes.data() + kHeaderBytes + count * sizeof(float);
  for (size_t i = 0; i < count; ++i) labels[i] = labels_[i] > 0.5f ? 1 : 0;
  return bytes;
}

absl::StatusOr<ScoredExamples> ScoredExamples::Parse(absl::string_view bytes) {
  uint64_t count = 0;
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("these ", bytes.size(), " bytes are not scored examples of this version"));
  }
  std::memcpy(&count, bytes.data() + 8, sizeof(count));
  if ((bytes.size() - kHeaderBytes) % 5 != 0 || (bytes.size() - kHeaderBytes) / 5 != count) {
    return absl::InvalidArgumentError(absl::StrCat("scored examples: ", bytes.size(), " bytes came for ",
                                                   count, " examples of 5 bytes and a header of ",
                                                   kHeaderBytes));
  }
  ScoredExamples scored;
  scored.logits_.resize(count);
  scored.labels_.resize(count);
  if (count > 0) std::memcpy(scored.logits_.data(), bytes.data() + kHeaderBytes, count * sizeof(float));
  const char* labels = bytes.data() + kHeaderBytes + count * sizeof(float);
  for (size_t i = 0; i < count; ++i) scored.labels_[i] = labels[i] != 0 ? 1.0f : 0.0f;
  return scored;
}

absl::StatusOr<ClickMetrics> ScoredExamples::Evaluate() const {
  ClickMetrics metrics;
  TANDEM_ASSIGN_OR_RETURN(metrics.auc, Auc(labels_, logits_));
  metrics.examples = labels_.size();
  metrics.logloss = LogLossFromLogits(labels_, logits_);
  double predictions = 0;
  for (size_t i = 0; i < labels_.size(); ++i) {
    metrics.positives += labels_[i] > 0.5f ? 1 : 0;
    predictions += Sigmoid(logits_[i]);
  }
  metrics.mean_prediction = predictions / static_cast<double>(metrics.examples);
  return metrics;
}

}  // namespace tandem::worker
