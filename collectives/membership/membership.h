#ifndef TANDEM_COLLECTIVES_MEMBERSHIP_MEMBERSHIP_H_
#define TANDEM_COLLECTIVES_MEMBERSHIP_MEMBERSHIP_H_

// Who takes part in a job, who has gone silent, and whether the job is over. It lives beside the job's store;
// members talk to it through JobMonitor (job_monitor.h).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace tandem::collectives {

struct JobState {
  bool ended = false;
  bool failed = false;  // only when ended
  std::string reason;   // who and why: "worker/1 has been silent for 10s (lease 10s): killed or hung?"
};

// Thread-safe. A member is known from its first heartbeat on: one that never came is not dead. When a
// member's silence outlasts its lease the job has failed; that is noticed by whoever looks next (a heartbeat,
// State, WaitUntilEnded), so no thread is needed here. The job ends once: the first reason stays.
class Membership {
 public:
  explicit Membership(Clock* clock) : clock_(clock) {}

  // `member` ("worker/0") lives, and may stay silent for `lease`; with `leaving` it has finished its work,
  // and its silence is no death (a later heartbeat makes it a member again). InvalidArgument for an empty or
  // long name or a lease outside (0, 1 day]; ResourceExhausted past 65,536 members.
  absl::StatusOr<JobState> Heartbeat(absl::string_view member, absl::Duration lease, bool leaving);
  // Ends the job unless it has ended already.
  void End(absl::string_view member, bool failed, absl::string_view reason);
  JobState State();
  // Blocks until the job has ended or the clock reaches `deadline`; the state then.
  JobState WaitUntilEnded(absl::Time deadline);
  // Those that have come and not left, sorted.
  std::vector<std::string> Members();

 private:
  struct Lease {
    absl::Time last_heard;
    absl::Duration length;
    bool left = false;
  };
  void CheckLeases(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  absl::Mutex mutex_;
  std::map<std::string, Lease, std::less<>> leases_ ABSL_GUARDED_BY(mutex_);
  JobState state_ ABSL_GUARDED_BY(mutex_);
  int64_t heartbeats_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MEMBERSHIP_MEMBERSHIP_H_
