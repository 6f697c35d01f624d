// SPDX-License-Identifier: Apache-2.0
#include "replay/limiter/rate_limiter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/counted.h"

namespace tandem::replay {
namespace {

// Counts stay exact as doubles below this.
constexpr double kMaxNumber = 0x1p52;

bool IsInteger(double x) { return std::isinf(x) || x == std::floor(x); }

// Returns the smallest width of the window in which, whatever diff is, a batch of `batch` samples or an
// insert may proceed. Neither may proceed if max_diff - samples_per_insert < diff < min_diff + batch. Between
// integers diff cannot lie.
double SmallestWindow(const RateLimit& limit, double batch) {
  const bool integers =
      IsInteger(limit.samples_per_insert) && IsInteger(limit.min_diff) && IsInteger(limit.max_diff);
  return limit.samples_per_insert + batch - (integers ? 1 : 0);
}

bool IsNumber(double x) { return !std::isnan(x) && (std::isinf(x) || std::abs(x) <= kMaxNumber); }

}  // namespace

RateLimit RateLimit::MinSize(uint64_t min_size) { return {.min_size = min_size}; }

RateLimit RateLimit::Queue(uint64_t size, uint32_t times) {
  return {.samples_per_insert = static_cast<double>(times),
          .min_diff = 0,
          .max_diff = static_cast<double>(size) * times,
          .min_size = 1};
}

RateLimit RateLimit::Ratio(double samples_per_insert, uint64_t min_size, double slack) {
  const double start = samples_per_insert * static_cast<double>(min_size);
  return {.samples_per_insert = samples_per_insert,
          .min_diff = start - slack,
          .max_diff = start + slack,
          .min_size = min_size};
}

absl::Status CheckLimit(const RateLimit& limit) {
  if (!(limit.samples_per_insert > 0 && limit.samples_per_insert <= kMaxNumber)) {
    return absl::InvalidArgumentError(absl::StrCat("samples_per_insert is ", limit.samples_per_insert,
                                                   "; it must be above 0 and at most 2^52"));
  }
  if (!IsNumber(limit.min_diff) || !IsNumber(limit.max_diff)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the window [min_diff, max_diff] is [", limit.min_diff, ", ", limit.max_diff,
                     "]; both must be within 2^52 of 0, or infinite for no limit"));
  }
  if (limit.min_size < 1 || static_cast<double>(limit.min_size) > kMaxNumber) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_size is ", limit.min_size, "; it must be at least 1 and at most 2^52"));
  }
  const double window = limit.max_diff - limit.min_diff;
  if (const double least = SmallestWindow(limit, 1); std::isnan(window) || window < least) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the window [min_diff, max_diff] is [", limit.min_diff, ", ", limit.max_diff,
        "], and with samples_per_insert ", limit.samples_per_insert, " it must be at least ", least,
        " wide: in a narrower one the table may come to take no insert and give no sample for ever"));
  }
  return absl::OkStatus();
}

uint64_t LargestBatch(const RateLimit& limit) {
  const double batch = limit.max_diff - limit.min_diff - SmallestWindow(limit, 0);
  if (batch >= kMaxNumber) return std::numeric_limits<uint64_t>::max();
  return static_cast<uint64_t>(std::max(1.0, std::floor(batch)));
}

void RateLimiter::LimitTo(uint64_t samples) {
  const double excess = std::floor(diff() - static_cast<double>(samples));
  if (excess > 0) credited_ += static_cast<uint64_t>(excess);
}

void RateLimiter::SetLimit(const RateLimit& limit) {
  const double before = diff();
  const bool other = limit.samples_per_insert != limit_.samples_per_insert;
  limit_ = limit;
  if (other) offset_ += std::floor(before) - diff();
  lowest_diff_ = std::numeric_limits<double>::infinity();
  highest_diff_ = -lowest_diff_;
}

bool RateLimiter::MayInsert(uint64_t resident) const {
  return resident < limit_.min_size || diff() + limit_.samples_per_insert <= limit_.max_diff;
}

uint64_t RateLimiter::SamplesAllowed(uint64_t resident) const {
  if (resident < limit_.min_size) return 0;
  const double allowed = std::floor(diff() - limit_.min_diff);
  if (allowed >= kMaxNumber) return std::numeric_limits<uint64_t>::max();
  return allowed <= 0 ? 0 : static_cast<uint64_t>(allowed);
}

void RateLimiter::Restore(uint64_t inserts, uint64_t samples, uint64_t credited, double offset) {
  offset_ = offset;
  inserts_ = inserts;
  samples_ = samples;
  credited_ = credited;
  lowest_diff_ = std::numeric_limits<double>::infinity();
  highest_diff_ = -lowest_diff_;
}

std::string RateLimiter::Formula() const {
  return absl::StrCat(Counted(static_cast<int64_t>(inserts_), "insert"), " x ", limit_.samples_per_insert,
                      " - ", Counted(static_cast<int64_t>(samples_), "sample"),
                      credited_ == 0 ? "" : absl::StrCat(" - ", credited_, " removed unsampled"),
                      offset_ == 0  ? ""
                      : offset_ > 0 ? absl::StrCat(" + ", offset_, " by an earlier samples_per_insert")
                                    : absl::StrCat(" - ", -offset_, " by an earlier samples_per_insert"));
}

std::string RateLimiter::WhyNoInsert(uint64_t resident) const {
  if (MayInsert(resident)) return "";
  return absl::StrCat("takes no inserts: ", Formula(),
                      diff() >= limit_.max_diff ? " reaches" : " comes too close to", " max_diff ",
                      limit_.max_diff);
}

std::string RateLimiter::WhyNoSample(uint64_t resident, uint64_t batch) const {
  if (resident < limit_.min_size) {
    return absl::StrCat("gives no samples: it holds ", Counted(static_cast<int64_t>(resident), "item"),
                        ", and min_size is ", limit_.min_size);
  }
  const uint64_t allowed = SamplesAllowed(resident);
  if (allowed >= batch) return "";
  if (allowed == 0) {
    return absl::StrCat("gives no samples: ", Formula(),
                        diff() <= limit_.min_diff ? " reaches" : " comes too close to", " min_diff ",
                        limit_.min_diff);
  }
  return absl::StrCat("gives no batch of ", batch, ": ", Formula(), " allows ",
                      Counted(static_cast<int64_t>(allowed), "sample"), " until min_diff ", limit_.min_diff);
}

}  // namespace tandem::replay
