// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_HOT_KEYS_H_
#define TANDEM_PS_SERVER_TABLE_HOT_KEYS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace tandem::ps {

// Estimates which ids of a table are pulled most often. Runs the Space-Saving algorithm (Metwally, Agrawal
// and El Abbadi, ICDT 2005) on a sample of the pulled ids: one of every kStride ids is counted, with that
// weight, starting at a random position. A pull then costs less than 1% more
// (bench/micro/ps_statistics_bench). The first kEager ids of a table are sampled more densely, so that small
// jobs get an estimate, too. Thread-safe.
class HotKeys {
 public:
  static constexpr uint64_t kStride = 512;
  static constexpr uint64_t kEagerStride = 32;  // for the first kEager ids
  static constexpr uint64_t kEager = uint64_t{1} << 20;
  // Number of counters. An id that makes up more than 1 / kCounters of the sample has one.
  static constexpr size_t kCounters = 1024;

  struct Hot {
    uint64_t id = 0;
    uint64_t pulls = 0;  // an estimate, too high by at most the smallest counter's value
  };

  // Counts a sample of `ids`.
  void Add(absl::Span<const uint64_t> ids);
  // Returns the `count` most frequently pulled ids, most frequent first. Ties are in ascending order of id.
  std::vector<Hot> Top(size_t count) const;

 private:
  // heap_ is a min-heap by pulls, so that its first counter is the one to reassign to a new id. at_ maps an
  // id to its index in heap_.
  void CountLocked(uint64_t id, uint64_t weight) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SinkLocked(size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RiseLocked(size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SwapLocked(size_t a, size_t b) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<uint64_t> seen_{0};  // number of ids; also the source of random start positions
  mutable absl::Mutex mutex_;
  std::vector<Hot> heap_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, size_t> at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_HOT_KEYS_H_
