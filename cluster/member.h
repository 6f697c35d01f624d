// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_MEMBER_H_
#define TANDEM_CLUSTER_MEMBER_H_

// A process of a job, from joining to leaving.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/wait_log.h"
#include "cluster/environment.h"
#include "cluster/membership/job_monitor.h"
#include "cluster/process.h"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "rpc/diagnostics/process_diagnostics.h"

namespace tandem::cluster {

// Why a member's part in its job is over.
struct End {
  enum class Cause {
    kSignal,        // the process was asked to stop
    kJobSucceeded,  // the job has reached its goal
    kJobFailed,     // the job has failed, as another member or this one has reported
    kStoreLost,     // the job's store has been silent for a lease
    kOwnFailure,    // Member::Fail
  };
  Cause cause = Cause::kSignal;
  int signal = 0;  // of kSignal
  // OK for kSignal and kJobSucceeded. kJobFailed and kStoreLost: Aborted, "the job failed: <reason>".
  absl::Status failure;
  std::string reason;  // for people: "stopped by a signal", "done: training has finished"

  // Returns what the process should exit with: 0 if there was no failure, else 1.
  int exit_code() const { return failure.ok() ? 0 : 1; }
};

struct MemberOptions {
  // Bounds the wait for the job's store.
  absl::Duration join_timeout = absl::Seconds(60);
  // Silence longer than this counts as death, of the store as well as of this member. If not set: that of the
  // environment.
  std::optional<absl::Duration> lease = std::nullopt;
  // The job goes on without this member: its silence ends nobody else. If not set: MayBeReplaced(env).
  std::optional<bool> replaceable = std::nullopt;
  // Neither the end of the job nor the death of its store is an End: the member goes on with its heartbeats,
  // and so belongs to the job that a later store serves. For servers and actors, which a launcher or a
  // supervisor stops.
  bool outlives_job = false;
  // A process whose job has failed ends (Process::Exit, code 1) when this has passed, unless the program
  // knows by then: it has called AwaitEnd, AcknowledgeEnd, Leave or FailJob. The process that hosts the
  // job's store stays some seconds, until the others know.
  absl::Duration exit_after = absl::InfiniteDuration();
  // The process of the member, which logs its waits and has signals for EndOnSignals. It must outlive the
  // member. nullptr: the member gets no signals.
  Process* process = nullptr;
};

// Returns whether a job goes on without the process of `env` until it comes back: that is true outside of the
// main role, except for parameter servers without followers.
bool MayBeReplaced(const Environment& env);

// A process's membership in a job: the connection to the job's store, heartbeats, diagnostics for
// `tandem status` and `tandem trace`, and how the job ends. Thread-safe, except that Leave and the destructor
// are called by one thread. An ordinary object: several may be in a process, which tests use.
class Member {
 public:
  // Joins the job that `env` describes: opens the job's store (OpenStore) and sends the first heartbeat.
  // Names the log (SetLogName). Blocks at most options.join_timeout and a lease. Errors: those of OpenStore
  // and JobMonitor::Start.
  static absl::StatusOr<std::unique_ptr<Member>> Join(const Environment& env, MemberOptions options = {});
  // Unless Leave was called, the job fails a lease later, as it does when the process crashes.
  ~Member();

  // Returns the environment with the key and the life of this process.
  const Environment& env() const { return store_->env(); }
  std::string name() const { return env().member(); }
  Store* store() const { return store_->store(); }
  const std::shared_ptr<rpc::Channel>& store_channel() const { return store_->channel(); }
  const std::string& store_address() const { return store_->address(); }

  // Returns the status that heartbeats report: state, step and address. Shared with the code that sets them.
  const std::shared_ptr<rpc::ProcessStatus>& status() const { return diagnostics_->status(); }
  // Joins again at a store that has lost its memory, with the life that this process has. Blocks at most
  // `timeout`. Errors: those of JoinStore.
  absl::Status JoinAgain(absl::Duration timeout);
  // Calls `again` when the job's store has lost its memory (JobMonitor::OnStoreLost).
  std::unique_ptr<JobMonitor::Registration> OnStoreLost(std::function<absl::Status()> again) {
    return monitor_->OnStoreLost(std::move(again));
  }
  // Sends the next heartbeat at once, so that the job's store has the present status. Does not block.
  void ReportStatus();
  // Sets what health checking reports for the process. It is NOT_SERVING before the first call.
  void SetServing(bool serving) { diagnostics_->SetServing(serving); }
  // Logs this process's waits for others.
  WaitLog& waits() { return own_waits_ == nullptr ? options_.process->waits() : *own_waits_; }
  // Makes a signal to the process an End from now on. Requires MemberOptions::process.
  void EndOnSignals();

  // Connects to a peer with this process's identity. Blocks and fails like rpc::Connect.
  absl::StatusOr<std::unique_ptr<rpc::Channel>> Connect(const std::string& address,
                                                        rpc::ConnectOptions options = {}) const;

  // Blocks until the first End, at most `timeout`; nullopt then. The process knows its End from then on
  // (MemberOptions::exit_after).
  std::optional<End> AwaitEnd(absl::Duration timeout = absl::InfiniteDuration());
  // Returns the End if there was one. It does not count as known.
  std::optional<End> end() const;
  // Says that the program knows how its job has ended.
  void AcknowledgeEnd();
  // Blocks until the job has ended, at most `timeout`. Returns how. It may do so after another End.
  std::optional<JobState> AwaitJobEnd(absl::Duration timeout);

  // Records that this process has failed. AwaitEnd returns it if it is the first End. Tells no one else.
  void Fail(const absl::Status& why);
  // Ends the job for all members: it has failed for `reason`. Blocks at most `timeout`. `as`: the member
  // that the reason names; empty: this one.
  absl::Status FailJob(absl::string_view reason, absl::Duration timeout = absl::Seconds(5),
                       absl::string_view as = "");
  // Does the same for a process whose work has failed for `why`. If another process may have caused that, it
  // first waits up to one and a half leases for the job to name a dead member. The job then reports the
  // process that died and not those that noticed. `stop` ends the wait. Returns the exit code, 1.
  int FailJobUnlessPeerDied(const absl::Status& why, const std::function<bool()>& stop = nullptr);

  // Announces that this member has finished its work, and that it no longer needs the job's store. Without a
  // launcher, the process that hosts the store ends the job for all: it has reached its goal, `reason`. It
  // then waits for the others to be done with the store. Blocks at most `timeout`, also while the store is
  // gone. An error means that the store may not know. Later calls do nothing.
  absl::Status Leave(absl::Duration timeout, absl::string_view reason = "the work is done");

 private:
  explicit Member(MemberOptions options);
  absl::Duration lease() const { return options_.lease.value_or(env().lease); }
  void OnJobEnd(const JobState& state);
  void SetEnd(End end);
  bool Exits() const { return options_.exit_after < absl::InfiniteDuration(); }
  // Called on the monitor's thread.
  void ExitUnlessKnown(const JobState& state);

  const MemberOptions options_;
  mutable absl::Mutex mutex_;
  std::optional<End> end_ ABSL_GUARDED_BY(mutex_);
  std::optional<JobState> job_end_ ABSL_GUARDED_BY(mutex_);
  bool known_ ABSL_GUARDED_BY(mutex_) = false;  // the program knows of the end, or leaves
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  bool failed_job_ ABSL_GUARDED_BY(mutex_) = false;
  bool ends_on_signals_ = false;
  const std::unique_ptr<WaitLog> own_waits_;  // nullptr: those of the process
  // Destroyed from the last to the first. The diagnostics own the recorder of traces, which outlives all
  // threads that record.
  std::unique_ptr<rpc::ProcessDiagnostics> diagnostics_;
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<JobMonitor> monitor_;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_MEMBER_H_
