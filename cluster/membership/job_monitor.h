// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_MEMBERSHIP_JOB_MONITOR_H_
#define TANDEM_CLUSTER_MEMBERSHIP_JOB_MONITOR_H_

// JobMonitor sends a member's heartbeats to its job and learns when the job is over.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/membership/membership.h"
#include "rpc/channel.h"
#include "rpc/diagnostics/process_status.h"

namespace tandem::cluster {

// Thread-safe. Owns a thread that sends a heartbeat every quarter of the lease, and one that registers again
// what the member owns when the job's store has lost its memory.
class JobMonitor {
 public:
  struct Options {
    std::string member;  // "worker/0"
    // Silence longer than this counts as death, of the store as well as of this member.
    absl::Duration lease = absl::Seconds(10);
    Clock* clock = Clock::Real();
    // The status that heartbeats report; nullptr: they report the member's name alone.
    std::shared_ptr<const rpc::ProcessStatus> status;
    // The job goes on without this member: its silence does not end the job, a failure that it reports does.
    bool replaceable = false;
    // The member outlives its job and the job's store: heartbeats go on after the job has ended and while the
    // store is silent. on_end is called only when another process has taken the place of this one.
    bool outlives_job = false;
  };
  // Called at most once, on the monitor's thread: when the job has ended, when the store has been silent for
  // a whole lease, or when another process has taken this member's place. In the last two cases the state is
  // ended and failed, and its reason names the store or the process. The callback must not destroy the
  // monitor nor call Leave. If it blocks, Leave and the destructor wait for it.
  using OnEnd = std::function<void(const JobState&)>;

  // Sends the first heartbeat and blocks for its response, at most a lease. Errors: Unavailable or
  // DeadlineExceeded if the store cannot be reached, InvalidArgument for a name or lease that it refuses.
  static absl::StatusOr<std::unique_ptr<JobMonitor>> Start(std::shared_ptr<rpc::Channel> store,
                                                           Options options, OnEnd on_end);
  // Stops the heartbeats. Unless Leave was called, the job fails a lease later, as it does when the process
  // crashes.
  ~JobMonitor();

  // Announces that this member has finished its work, and stops the heartbeats. on_end is not called any more
  // once this has returned. Cancels a heartbeat that is under way. Blocks at most `timeout`. An error means
  // that the store may not have received the announcement.
  absl::Status Leave(absl::Duration timeout = absl::Seconds(5));
  // Ends the job for all members: it has failed for `reason`. The monitor continues and reports that end like
  // any other.
  // `as` is the member that the others see in the reason; empty: this one.
  absl::Status ReportFailure(absl::string_view reason, absl::Duration timeout = absl::Seconds(5),
                             absl::string_view as = "");
  // Ends the job for all members: it has reached its goal.
  absl::Status ReportSuccess(absl::string_view reason, absl::Duration timeout = absl::Seconds(5));
  // Something that this member keeps in the job's store, such as its address. The destructor waits for
  // `again` if it runs, and then it runs no more. The monitor must outlive it.
  class Registration {
   public:
    ~Registration();
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

   private:
    friend class JobMonitor;
    Registration(JobMonitor* monitor, uint64_t number) : monitor_(monitor), number_(number) {}
    JobMonitor* const monitor_;
    const uint64_t number_;
  };
  // Calls `again` when the store answers with another incarnation: it was restarted, and is empty. `again`
  // puts into the store what this member owns. It runs on a thread of the monitor, after those that were
  // added before, and again every 200 ms until all of them return OK in one pass. It may block for a call to
  // the store, and must not add or destroy a Registration.
  std::unique_ptr<Registration> OnStoreLost(std::function<absl::Status()> again);

  // Sends the next heartbeat at once, so that the store has the present status. Does not block.
  void ReportStatus();
  // Returns the job's state as of the last heartbeat.
  JobState state() const;

 private:
  JobMonitor(std::shared_ptr<rpc::Channel> store, Options options, OnEnd on_end);
  absl::StatusOr<JobState> Heartbeat(bool leaving, absl::Duration timeout, bool retry);
  absl::Status EndJob(bool failed, absl::string_view reason, absl::Duration timeout, absl::string_view as);
  // `last_answered` is the time at which the last answered heartbeat was sent.
  void Run(JobState state, absl::Time last_answered);
  void Stop();
  // Body of the thread that registers again.
  void RegisterAgain();
  // Calls all registrations; returns the first error.
  absl::Status RegisterAll();

  const std::shared_ptr<rpc::Channel> store_;
  const Options options_;
  const OnEnd on_end_;
  std::stop_source stop_beats_;  // ends the thread's heartbeat that is under way
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool due_ ABSL_GUARDED_BY(mutex_) = false;  // a heartbeat before its time
  JobState state_ ABSL_GUARDED_BY(mutex_);
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;      // of the store, as it has said last
  uint64_t registered_with_ ABSL_GUARDED_BY(mutex_) = 0;  // the incarnation that has what this member owns
  absl::Mutex registrations_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // held while registrations run
  uint64_t next_registration_ ABSL_GUARDED_BY(registrations_mutex_) = 1;
  std::map<uint64_t, std::function<absl::Status()>> registrations_ ABSL_GUARDED_BY(registrations_mutex_);
  absl::Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
  std::thread registering_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_MEMBERSHIP_JOB_MONITOR_H_
