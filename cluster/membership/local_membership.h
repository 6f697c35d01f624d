// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_MEMBERSHIP_LOCAL_MEMBERSHIP_H_
#define TANDEM_CLUSTER_MEMBERSHIP_LOCAL_MEMBERSHIP_H_

// The membership of a store that a process serves.

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
#include "cluster/membership/membership.h"

namespace tandem::v1 {
class LifeRecord;
}

namespace tandem::cluster {

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

// Thread-safe. In the memory of this process, with a journal for what must outlive it. The next call
// (Heartbeat, State, WaitUntilEnded) detects that a member's silence has outlasted its lease, so no thread is
// needed here.
class LocalMembership final : public Membership {
 public:
  // `incarnation`: of the store next to it (incarnation.h).
  explicit LocalMembership(Clock* clock, uint64_t incarnation = NewIncarnation())
      : clock_(clock), incarnation_(incarnation), started_(clock->Now()) {}

  // Takes over what an earlier process has written to `journal`, which gets all changes from now on. Members
  // that have sent heartbeats, and have not left, are heard of now: they have a lease to come back. Call it
  // before any other method. `journal` is borrowed.
  void Restore(const std::map<std::string, v1::LifeRecord, std::less<>>& lives,
               const std::optional<JobState>& end, MembershipJournal* journal);

  // Ends the use of the journal: changes are in memory only from then on.
  void ForgetJournal();

  uint64_t incarnation() const override { return incarnation_; }
  // Returns how long this object exists.
  absl::Duration Age() const { return clock_->Now() - started_; }
  // Returns how long ago a member came that had registered with another incarnation: the store has lost its
  // memory. nullopt: none has come.
  std::optional<absl::Duration> SinceMemoryLost() const;

  absl::StatusOr<JoinResult> Join(absl::string_view member, const MemberProcess& process, int64_t life = 0,
                                  int64_t replaces = 0) override;
  absl::Status EndLife(absl::string_view member, const MemberProcess& process) override;
  absl::Status AdmitLife(absl::string_view member, int64_t life) override;
  absl::StatusOr<JobState> Heartbeat(absl::string_view member, absl::Duration lease, bool leaving,
                                     MemberReport report = {}, int64_t life = 0) override;
  void AllowRestart(absl::string_view role) override;
  void Tick(absl::Duration late) override;
  absl::Status End(absl::string_view member, bool failed, absl::string_view reason) override;
  void Abandon(absl::string_view member, bool failed, absl::string_view reason) override {
    (void)End(member, failed, reason);
  }
  JobState WaitUntilEnded(absl::Time deadline) override;
  absl::StatusOr<MembershipView> Look() override;

  JobState State();
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

#endif  // TANDEM_CLUSTER_MEMBERSHIP_LOCAL_MEMBERSHIP_H_
