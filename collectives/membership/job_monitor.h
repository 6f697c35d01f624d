#ifndef TANDEM_COLLECTIVES_MEMBERSHIP_JOB_MONITOR_H_
#define TANDEM_COLLECTIVES_MEMBERSHIP_JOB_MONITOR_H_

// A member's line to its job: says "I live" and hears when the job is over.

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/membership/membership.h"
#include "rpc/channel.h"
#include "rpc/diagnostics/process_status.h"

namespace tandem::collectives {

// Thread-safe. Owns one thread, which sends a heartbeat every quarter of the lease.
class JobMonitor {
 public:
  struct Options {
    std::string member;  // "worker/0"
    absl::Duration lease =
        absl::Seconds(10);  // silence longer than this counts as death, the store's as well as ours
    Clock* clock = Clock::Real();
    // What heartbeats tell of this process; nullptr: its name alone.
    std::shared_ptr<const rpc::ProcessStatus> status;
  };
  // Runs at most once, on the monitor's thread, when the job has ended, or when the store has been silent for
  // a whole lease (then ended and failed, and the reason names the store). It must not destroy the monitor
  // nor call Leave.
  using OnEnd = std::function<void(const JobState&)>;

  // Blocks for the first heartbeat, at most a lease. Errors: Unavailable or DeadlineExceeded when the store
  // cannot be reached, InvalidArgument for a name or lease it refuses.
  static absl::StatusOr<std::unique_ptr<JobMonitor>> Start(std::shared_ptr<rpc::Channel> store,
                                                           Options options, OnEnd on_end);
  // Without Leave the member falls silent, and the job fails a lease later: what should happen when it
  // crashes.
  ~JobMonitor();

  // This member has finished its work. Stops the heartbeats; on_end does not run any more once this has
  // returned. Blocks at most `timeout`. An error means that the store may not have heard.
  absl::Status Leave(absl::Duration timeout = absl::Seconds(5));
  // Ends the job for all: it has failed for `reason`. The monitor goes on and will report that end like any
  // other.
  absl::Status ReportFailure(absl::string_view reason, absl::Duration timeout = absl::Seconds(5));
  // Ends the job for all: it has reached its goal.
  absl::Status ReportSuccess(absl::string_view reason, absl::Duration timeout = absl::Seconds(5));
  // What the last heartbeat told.
  JobState state() const;

 private:
  JobMonitor(std::shared_ptr<rpc::Channel> store, Options options, OnEnd on_end);
  absl::StatusOr<JobState> Heartbeat(bool leaving, absl::Duration timeout, bool retry);
  absl::Status EndJob(bool failed, absl::string_view reason, absl::Duration timeout);
  // `last_answered`: when the last heartbeat that was answered had been sent.
  void Run(JobState state, absl::Time last_answered);
  void Stop();

  const std::shared_ptr<rpc::Channel> store_;
  const Options options_;
  const OnEnd on_end_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  JobState state_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MEMBERSHIP_JOB_MONITOR_H_
