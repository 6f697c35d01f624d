// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_MONITORED_BARRIER_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_MONITORED_BARRIER_H_

// A barrier through the store that names every absent rank. torch.distributed's monitored_barrier does so
// only if asked, and only on rank 0.

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cluster/store/store.h"

namespace tandem::collectives {

// One rank's side of the barriers of a group. Thread-safe; the calls of one rank are serialised.
//
// The ranks' n-th calls belong together and form a round. A round is decided once, by a key of the store:
// passed, by the rank that comes last, or expired, by the rank whose time-out is over first. All ranks act
// upon that decision, so that no rank passes a barrier that failed for another.
class MonitoredBarrier {
 public:
  // `store` holds keys of this group alone and must outlive the barrier.
  MonitoredBarrier(cluster::Store* store, absl::string_view group, int rank, int world_size)
      : store_(store), group_(group), rank_(rank), world_size_(world_size) {}

  // Blocks until all ranks have called it, or until the round has expired. DeadlineExceeded names every rank
  // that had not come, on all ranks that did; a rank that comes to an expired round gets it at once. After
  // that, and after an error of the store, the next round can be tried.
  absl::Status Wait(absl::Duration timeout);

 private:
  absl::Status WaitRound(uint64_t round, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Judge(const std::string& verdict) const;
  // Returns the ranks that have not come as "1,3"; "" if all have.
  absl::StatusOr<std::string> Absent(const std::string& prefix) const;
  void ForgetRoundsBefore(uint64_t round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  cluster::Store* const store_;
  const std::string group_;
  const int rank_, world_size_;
  absl::Mutex mutex_;  // held during a round
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t oldest_ ABSL_GUARDED_BY(mutex_) = 0;  // the oldest round whose keys may still be in the store
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_MONITORED_BARRIER_H_
