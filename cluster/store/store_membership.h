// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_STORE_MEMBERSHIP_H_
#define TANDEM_CLUSTER_STORE_STORE_MEMBERSHIP_H_

// The members of a job in a store that survives each of its processes (etcd).

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cluster/membership/membership.h"
#include "cluster/store/store.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {

// The keys, in a store of their own:
//
//   incarnation             a random number, drawn with the first key
//   life/<member>           the present process of the name and its life, a v1.LifeRecord. Constant during
//                           the life, so a change of the job's keys can be made to depend on it (FenceKey)
//   freed/<member>          the number of a life that has ended or left: another process may take the name
//   joined/<member>/<life>  expires 10 s after Join (Store::Beat)
//   alive/<member>/<life>   expires a lease after the last heartbeat (Store::Beat)
//   report/<member>         the last report, a v1.MemberInfo. Written when something but the step has
//                           changed, and with the step once in a lease
//   restarts/<role>         AllowRestart
//   end                     how the job has ended, a v1.HeartbeatResponse. Set once
//   launcher/<name>         expires 4 s after a launcher has last looked (Store::Beat)
//   holder                  the alive or launcher key of the process that looks for silent members
//
// One process looks for silent members and ends the job: the first that takes the key `holder`. Each process
// that sends heartbeats, or waits for the end of the job, tries to take it when the holder's alive key has
// expired. Two may hold it for a moment, which is harmless: `end` is set once, and only if a member's keys
// have expired, which no clock but the store's decides.
//
// Silence ends the job after a lease, in whole seconds, at least 2. If there are launchers, it ends the job
// after one and a half leases, because they come first, as Membership::Tick describes.
class StoreMembership final : public Membership {
 public:
  // Owns `store`, whose keys must expire (Store::BeatsExpire). `name`: under which a process that is no
  // member, such as a launcher, takes part in the search for silent members; "": it does not.
  // Errors are those of the store, and with `read_only` NotFound if no job has been there.
  static absl::StatusOr<std::unique_ptr<StoreMembership>> Open(std::unique_ptr<Store> store,
                                                               std::string name = "", bool read_only = false);

  uint64_t incarnation() const override { return incarnation_; }
  absl::StatusOr<JoinResult> Join(absl::string_view member, const MemberProcess& process, int64_t life,
                                  int64_t replaces) override;
  absl::Status EndLife(absl::string_view member, const MemberProcess& process) override;
  absl::Status AdmitLife(absl::string_view member, int64_t life) override;
  absl::StatusOr<JobState> Heartbeat(absl::string_view member, absl::Duration lease, bool leaving,
                                     MemberReport report, int64_t life) override;
  void AllowRestart(absl::string_view role) override;
  void Tick(absl::Duration) override {}
  absl::Status End(absl::string_view member, bool failed, absl::string_view reason) override;
  void Abandon(absl::string_view member, bool failed, absl::string_view reason) override;
  // Writes down what AllowRestart was told, and takes part in the search for silent members.
  JobState WaitUntilEnded(absl::Time deadline) override;
  // A member whose heartbeats come in time has been silent for 0 s: its keys do not say more.
  absl::StatusOr<MembershipView> Look() override;

  // The key that has the present life of `member`, and its value during the life `life` of `process`.
  static std::string FenceKey(absl::string_view member);
  static std::string FenceValue(const MemberProcess& process, int64_t life);

 private:
  struct Reported {
    v1::MemberInfo info;
    absl::Time at;
  };
  // All members that have sent a heartbeat.
  struct Seen {
    v1::MemberInfo report;
    int64_t life = 0;
    bool alive = false;
  };

  StoreMembership(std::unique_ptr<Store> store, std::string name)
      : store_(std::move(store)), name_(std::move(name)) {}
  absl::StatusOr<v1::LifeRecord> Life(absl::string_view member);
  absl::StatusOr<bool> IsAlive(absl::string_view member, int64_t life);
  absl::StatusOr<JobState> State();
  absl::StatusOr<std::map<std::string, Seen>> ReadMembers();
  absl::StatusOr<std::map<std::string, std::string>> ReadAll(absl::string_view prefix);
  // Ends the job if a member is silent and this process, whose alive key is `alive_key`, looks for them.
  absl::Status LookForSilent(const std::string& alive_key);
  absl::Status EndWith(const JobState& end);

  const std::unique_ptr<Store> store_;
  const std::string name_;
  uint64_t incarnation_ = 0;
  absl::Mutex mutex_;
  std::map<std::string, Reported> reported_ ABSL_GUARDED_BY(mutex_);        // by this process, by member
  std::map<std::string, absl::Time> silent_since_ ABSL_GUARDED_BY(mutex_);  // as far as this process has seen
  absl::Time memory_lost_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::set<std::string> restarts_to_write_ ABSL_GUARDED_BY(mutex_);
  JobState ended_here_ ABSL_GUARDED_BY(mutex_);  // by Abandon, or End without an answer
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_STORE_MEMBERSHIP_H_
