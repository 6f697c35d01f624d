// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CACHE_READ_GAUGE_H_
#define TANDEM_PS_CLIENT_CACHE_READ_GAUGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::ps {

// Decides by measurements whether large pulls use a read cache. Thread-safe.
//
// A pull that finds all its rows in the cache saves a request. A large pull rarely does: it sends its request
// anyway, and a server on the same host sends the other rows about as fast as the cache copies them. Whether
// the cache then saves time depends on the hosts, the rows and the hit rate, so it is measured. Large pulls
// go through cycles:
//
//   kWarmUp    pulls use the cache, so that its copies are as if it had always been used;
//   2 kTrial   pulls use the cache and go around it in turns, and are timed;
//   kPeriod    pulls go the way whose median time per id was shorter.
class ReadGauge {
 public:
  // Pulls of fewer ids always use the cache.
  static constexpr size_t kLargePull = 1024;
  static constexpr uint64_t kWarmUp = 32;
  static constexpr uint64_t kTrial = 32;
  static constexpr uint64_t kPeriod = 1024;
  static constexpr uint64_t kCycle = kWarmUp + 2 * kTrial + kPeriod;
  // Pulls go around the cache if that takes less than this part of the time with it. The rest is what the
  // cache is worth to servers, which answer fewer requests.
  static constexpr double kMuchFaster = 0.9;

  // One pull.
  struct Decision {
    bool uses_cache = true;
    bool timed = false;
    uint64_t cycle = 0;
  };

  // Decides about a pull that begins now.
  Decision Begin(size_t ids);
  // Takes the duration of a pull. A pull that failed has none.
  void End(const Decision& decision, size_t ids, int64_t ns);

  // Returns the number of ids of pulls that went around the cache.
  uint64_t bypassed() const;

 private:
  mutable absl::Mutex mutex_;
  uint64_t pulls_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bypassed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool bypasses_ ABSL_GUARDED_BY(mutex_) = false;  // in the current period
  // Nanoseconds per id of the timed pulls of this cycle.
  std::vector<double> with_cache_ ABSL_GUARDED_BY(mutex_);
  std::vector<double> without_cache_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CACHE_READ_GAUGE_H_
