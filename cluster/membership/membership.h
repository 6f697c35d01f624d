// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_MEMBERSHIP_MEMBERSHIP_H_
#define TANDEM_CLUSTER_MEMBERSHIP_MEMBERSHIP_H_

// The members of a job, their leases, and whether the job is over. It lives next to the job's store; members
// reach it through JobMonitor (job_monitor.h).

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/membership/incarnation.h"
#include "cluster/membership/member_process.h"

namespace tandem::v1 {
class LifeRecord;
}

namespace tandem::cluster {

struct JobState {
  bool ended = false;
  bool failed = false;  // only when ended
  std::string reason;   // names the member: "worker/1 has been silent for 10s (lease 10s): killed or hung?"
  bool store_lost = false;  // the store has not said so: it is silent itself
};

// A member's report in its heartbeats, shown to people who look at the job.
struct MemberReport {
  std::string state;  // "training"
  std::string host;
  int64_t pid = 0;
  std::string diagnostics;  // "host:port" of its tandem.v1.Diagnostics; empty: it serves none
  uint64_t step = 0;
  int64_t epoch = 0;        // of the membership: the rendezvous round; 0 if there is none
  int64_t train_epoch = 0;  // the pass over the data, from 1; 0: none
  // The job goes on without this member (another copy takes its place), so its silence does not end the job.
  // A failure that it reports does.
  bool replaceable = false;
  std::string address;  // "host:port" at which it serves its job; empty: it serves nothing, or not yet
  uint64_t registered_with = 0;  // the store's incarnation that has what it owns; 0: none yet
};

struct MemberStatus {
  std::string name;
  MemberReport report;
  absl::Duration lease;
  absl::Duration silent;  // since its last heartbeat
  bool left = false;
  bool came_back = false;  // it had registered with an earlier incarnation of the store
  int64_t life = 0;        // of its present process; 0: it has not joined
};

// A process that has joined as a member, and the member's name with it.
struct MemberLife {
  int64_t life = 0;  // counts the processes of this name, from 1
  MemberProcess process;
  absl::Duration joined;  // since then
  absl::Duration silent;  // since the store heard of it
  absl::Duration lease;   // a silence that is longer frees the name
  int64_t heartbeats = 0;
};

// The result of Membership::Join: a life, or the process that has the name.
struct JoinResult {
  int64_t life = 0;
  std::optional<MemberLife> holder;
};

// Gets the changes of a membership that must outlive its process.
class MembershipJournal {
 public:
  virtual ~MembershipJournal() = default;
  // Write down what is known of the process of `member`, or how the job has ended. Called under the
  // membership's lock, so they must not call it. After an error of WriteLife the membership does not make the
  // change, and its caller gets the error.
  virtual absl::Status WriteLife(absl::string_view member, const v1::LifeRecord& life) = 0;
  virtual absl::Status WriteEnd(const JobState& end) = 0;
};

// Thread-safe. A member is known from its first heartbeat on: a process that never sent one is not dead. The
// job fails when the silence of a member that is not replaceable outlasts its lease. The next call
// (Heartbeat, State, WaitUntilEnded) detects that, so no thread is needed here. The job ends once: the first
// reason stays.
class Membership {
 public:
  // `incarnation`: of the store next to it (incarnation.h).
  explicit Membership(Clock* clock, uint64_t incarnation = NewIncarnation())
      : clock_(clock), incarnation_(incarnation), started_(clock->Now()) {}

  // Takes over what an earlier process has written to `journal`, which gets all changes from now on. Members
  // that have sent heartbeats, and have not left, are heard of now: they have a lease to come back. Call it
  // before any other method. `journal` is borrowed.
  void Restore(const std::map<std::string, v1::LifeRecord, std::less<>>& lives,
               const std::optional<JobState>& end, MembershipJournal* journal);

  // Ends the use of the journal: changes are in memory only from then on.
  void ForgetJournal();

  uint64_t incarnation() const { return incarnation_; }
  // Returns how long this object exists.
  absl::Duration Age() const { return clock_->Now() - started_; }
  // Returns how long ago a member came that had registered with another incarnation: the store has lost its
  // memory. nullopt: none has come.
  std::optional<absl::Duration> SinceMemoryLost() const;

  // Gives the name `member` ("worker/0") to `process`. Each process of a name has a life of its own, the one
  // before plus 1; the same process gets the same life again. The name is free if no process has it, and once
  // the one that has it
  //
  //   - has left, or its life was ended (EndLife)
  //   - has been silent for longer than its lease, or 10 s if it sends no heartbeats
  //   - is the life `replaces`, which the caller has seen to be gone
  //
  // Otherwise the result has the holder and no life. `life` is not 0 if the process has one already, from a
  // store that has lost its memory; AlreadyExists then if a later life is known. InvalidArgument and
  // ResourceExhausted as for Heartbeat.
  absl::StatusOr<JoinResult> Join(absl::string_view member, const MemberProcess& process, int64_t life = 0,
                                  int64_t replaces = 0);
  // Frees the name of `member` if `process` has it and has ended. Start time 0: that of any process. Errors
  // are those of the journal.
  absl::Status EndLife(absl::string_view member, const MemberProcess& process);
  // Returns AlreadyExists, which names both processes, if a later life of `member` than `life` has
  // joined. A later `life` than the known one becomes known: the store has lost its memory. OK for clients,
  // which have neither; FailedPrecondition for a member without a life.
  absl::Status AdmitLife(absl::string_view member, int64_t life);

  // Records that `member` ("worker/0") lives and may stay silent for `lease`. With `leaving` it has finished
  // its work, and its silence is no death; a later heartbeat makes it a member again. `life` is that of the
  // process, or 0 if it has not joined. InvalidArgument for an empty or long name or a lease outside
  // (0, 1 day]; ResourceExhausted beyond 65,536 members; AlreadyExists as for AdmitLife.
  absl::StatusOr<JobState> Heartbeat(absl::string_view member, absl::Duration lease, bool leaving,
                                     MemberReport report = {}, int64_t life = 0);
  // Declares that the launcher restarts members of `role` ("ps": "ps/0", "ps/1", ...) when they die: neither
  // their silence nor a failure that they report ends the job.
  void AllowRestart(absl::string_view role);
  // Called often by the launcher that has this object. From the first call on two things change:
  //
  //   - Silence ends the job after one and a half leases. Launchers watch the members of their nodes, and end
  //     those that hang after a lease (launcher/silence_rules.h), so a launcher acts first and the rule for
  //     the member's role applies.
  //   - A call that comes later than `late` after the one before means that this process has not run
  //   (SIGSTOP,
  //     a frozen container): members were not silent meanwhile. Nobody's lease ends between such calls.
  void Tick(absl::Duration late);
  // Ends the job unless it has ended already. Errors are those of the journal: the job has ended, but a
  // store that is restarted will not know.
  absl::Status End(absl::string_view member, bool failed, absl::string_view reason);
  JobState State();
  // Blocks until the job has ended or the clock reaches `deadline`; returns the state then.
  JobState WaitUntilEnded(absl::Time deadline);
  // Returns the members that have joined and not left, sorted.
  std::vector<std::string> Members();
  // Returns all members that ever joined, by name, with their last report.
  std::vector<MemberStatus> Statuses();

 private:
  struct Lease {
    absl::Time last_heard;
    absl::Duration length;
    bool left = false;
    bool came_back = false;
    MemberReport report;
  };
  // The process that has a name, or had it last.
  struct Life {
    int64_t life = 0;
    MemberProcess process;
    absl::Time joined, last_heard;
    absl::Duration lease;
    int64_t heartbeats = 0;
    bool free = false;  // the name may be given to another process at once
    // These are what the journal has recorded of its heartbeats.
    absl::Duration heard_lease;
    bool left = false, replaceable = false;

    v1::LifeRecord ToProto() const;
  };
  // Makes `next` the life of `member`, whose present one is `known`, once the journal has it.
  absl::Status SetLife(absl::string_view member, Life next, Life* known)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SetEnd(JobState end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AdmitLifeLocked(absl::string_view member, int64_t life, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckLeases(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether Tick has been called.
  bool ticks() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return last_tick_ != absl::InfinitePast(); }
  // Returns when the member's silence ends the job.
  absl::Time EndOf(const Lease& lease) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Restarts(absl::string_view member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayBeSilent(absl::string_view member, const Lease& lease) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  const uint64_t incarnation_;
  const absl::Time started_;
  mutable absl::Mutex mutex_;
  MembershipJournal* journal_ ABSL_GUARDED_BY(mutex_) = nullptr;  // nullptr: in memory only
  absl::Time memory_lost_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::map<std::string, Lease, std::less<>> leases_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Life, std::less<>> lives_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string, std::less<>> restarting_roles_ ABSL_GUARDED_BY(mutex_);
  JobState state_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_tick_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration late_ ABSL_GUARDED_BY(mutex_);  // of the last Tick
  int64_t heartbeats_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_MEMBERSHIP_MEMBERSHIP_H_
