// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_LIMITER_RATE_LIMITER_H_
#define TANDEM_REPLAY_LIMITER_RATE_LIMITER_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"

namespace tandem::replay {

// Couples the inserts of a table to its samples. With
//
//   diff = inserts * samples_per_insert - samples - credited
//
// the table takes an insert only if afterwards diff <= max_diff, or if it then holds at most min_size items.
// It gives a sample only if it holds min_size items and afterwards diff >= min_diff. "credited" are samples
// that no item can give any more, because items were removed before (only with
// TableOptions::max_times_sampled). A plain value.
struct RateLimit {
  double samples_per_insert = 1;
  double min_diff = -std::numeric_limits<double>::infinity();  // -infinity: none
  double max_diff = std::numeric_limits<double>::infinity();   // infinity: none
  uint64_t min_size = 1;

  // Samples as soon as there are `min_size` items, without further limit.
  static RateLimit MinSize(uint64_t min_size);
  // Lets at most `size` items wait to be sampled, each `times` times.
  static RateLimit Queue(uint64_t size, uint32_t times = 1);
  // `samples_per_insert` samples for each insert, beginning with `min_size` items, within `slack` samples in
  // either direction.
  static RateLimit Ratio(double samples_per_insert, uint64_t min_size, double slack);

  friend bool operator==(const RateLimit&, const RateLimit&) = default;
};

// Returns InvalidArgument for a number out of range: samples_per_insert must be above 0, min_size at least 1,
// and nothing NaN. Also for a window [min_diff, max_diff] so narrow that the table could take no insert and
// give no sample; the error says how wide it must be.
absl::Status CheckLimit(const RateLimit& limit);

// Returns the largest batch that a sampler may wait for: a larger one might never be given, because inserts
// stop before. The largest uint64_t if there is no limit.
uint64_t LargestBatch(const RateLimit& limit);

// Counts the inserts and samples of a table and decides which ones may proceed. Not thread-safe.
class RateLimiter {
 public:
  // `limit` must pass CheckLimit.
  explicit RateLimiter(const RateLimit& limit) : limit_(limit) {}

  // Returns whether an insert may proceed now, in a table that holds `resident` items.
  bool MayInsert(uint64_t resident) const;
  // Returns how many samples may be taken now.
  uint64_t SamplesAllowed(uint64_t resident) const;

  void Inserted(uint64_t n) {
    inserts_ += n;
    highest_diff_ = std::max(highest_diff_, diff());
  }
  void Sampled(uint64_t n) {
    samples_ += n;
    lowest_diff_ = std::min(lowest_diff_, diff());
  }
  void Credited(uint64_t n) { credited_ += n; }
  // Credits samples until diff is less than 1 above `samples`, which are all that the items can still give.
  void LimitTo(uint64_t samples);
  // Replaces the counts, for a restored table or, with zeros, for one that was emptied.
  void Restore(uint64_t inserts, uint64_t samples, uint64_t credited, double offset = 0);
  // Replaces the limit. `limit` must pass CheckLimit. Another samples_per_insert holds for later inserts:
  // diff stays as it is, rounded down to an integer.
  void SetLimit(const RateLimit& limit);

  const RateLimit& limit() const { return limit_; }
  uint64_t inserts() const { return inserts_; }
  uint64_t samples() const { return samples_; }
  uint64_t credited() const { return credited_; }
  // Returns what SetLimit has added to diff.
  double offset() const { return offset_; }
  double diff() const {
    return static_cast<double>(inserts_) * limit_.samples_per_insert - static_cast<double>(samples_) -
           static_cast<double>(credited_) + offset_;
  }
  // Returns the lowest diff after a call of Sampled since the limit or the counts were set; at first
  // infinity.
  double lowest_diff() const { return lowest_diff_; }
  // Returns the highest diff after a call of Inserted, likewise; at first -infinity.
  double highest_diff() const { return highest_diff_; }
  // Return why no insert, or no batch of `batch` samples, may proceed now, as they follow the table's name:
  // "takes no inserts: 512 inserts x 1 - 0 samples reaches max_diff 512". Empty if it may proceed.
  std::string WhyNoInsert(uint64_t resident) const;
  std::string WhyNoSample(uint64_t resident, uint64_t batch) const;

 private:
  std::string Formula() const;

  RateLimit limit_;
  uint64_t inserts_ = 0, samples_ = 0, credited_ = 0;
  double offset_ = 0;
  double lowest_diff_ = std::numeric_limits<double>::infinity();
  double highest_diff_ = -std::numeric_limits<double>::infinity();
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_LIMITER_RATE_LIMITER_H_
