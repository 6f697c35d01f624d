#ifndef TANDEM_PS_SERVER_TABLE_HOT_KEYS_H_
#define TANDEM_PS_SERVER_TABLE_HOT_KEYS_H_

// Which ids of a table are pulled most: Space-Saving (Metwally, Agrawal and El Abbadi, ICDT 2005) over a
// sample of what is pulled. Of every kStride ids one is counted, with that weight, from a random place on, so
// that the pull path pays less than a hundredth (bench/ps_statistics_bench); a table's first kEager ids are
// looked at more closely, so that a small job has an answer, too.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace tandem::ps {

// Thread-safe.
class HotKeys {
 public:
  static constexpr uint64_t kStride = 512;
  static constexpr uint64_t kEagerStride = 32;
  static constexpr uint64_t kEager = uint64_t{1} << 20;
  // Counters kept. An id that makes up more than 1 / kCounters of what is pulled is among them.
  static constexpr size_t kCounters = 1024;

  struct Hot {
    uint64_t id = 0;
    uint64_t pulls = 0;  // an estimate: at most what the smallest counter stands at too high
  };

  // Counts a sample of `ids`.
  void Add(absl::Span<const uint64_t> ids);
  // The `count` most pulled, most first; ids that are equally hot ascend.
  std::vector<Hot> Top(size_t count) const;

 private:
  // A min-heap by pulls, so that the counter to give to a newcomer is its first; `at_` says where an id
  // stands.
  void CountLocked(uint64_t id, uint64_t weight) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SinkLocked(size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RiseLocked(size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SwapLocked(size_t a, size_t b) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<uint64_t> seen_{0};  // ids, also the source of the random places
  mutable absl::Mutex mutex_;
  std::vector<Hot> heap_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, size_t> at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_HOT_KEYS_H_
