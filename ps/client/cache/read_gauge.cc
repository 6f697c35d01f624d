// SPDX-License-Identifier: Apache-2.0
#include "ps/client/cache/read_gauge.h"

#include <algorithm>

namespace tandem::ps {
namespace {

double Median(std::vector<double>* values) {
  const auto middle = values->begin() + static_cast<std::ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

}  // namespace

ReadGauge::Decision ReadGauge::Begin(size_t ids) {
  if (ids < kLargePull) return {};
  absl::MutexLock lock(&mutex_);
  const uint64_t cycle = pulls_ / kCycle;
  const uint64_t at = pulls_ % kCycle;
  ++pulls_;
  if (at == 0) {
    with_cache_.clear();
    without_cache_.clear();
  }
  Decision decision{.cycle = cycle};
  if (at >= kWarmUp && at < kWarmUp + 2 * kTrial) {
    decision.timed = true;
    decision.uses_cache = (at - kWarmUp) % 2 == 0;
  } else if (at >= kWarmUp) {
    if (at == kWarmUp + 2 * kTrial) {
      // Some timed pulls may have failed, or may still be under way.
      const bool enough = std::min(with_cache_.size(), without_cache_.size()) >= kTrial / 2;
      bypasses_ = enough && Median(&without_cache_) < kMuchFaster * Median(&with_cache_);
    }
    decision.uses_cache = !bypasses_;
  }
  if (!decision.uses_cache) bypassed_ += ids;
  return decision;
}

void ReadGauge::End(const Decision& decision, size_t ids, int64_t ns) {
  if (!decision.timed) return;
  absl::MutexLock lock(&mutex_);
  if (decision.cycle != pulls_ / kCycle) return;
  (decision.uses_cache ? with_cache_ : without_cache_)
      .push_back(static_cast<double>(ns) / static_cast<double>(ids));
}

uint64_t ReadGauge::bypassed() const {
  absl::MutexLock lock(&mutex_);
  return bypassed_;
}

}  // namespace tandem::ps
