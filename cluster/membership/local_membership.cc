// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership/local_membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/membership/limits.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {
v1::LifeRecord LocalMembership::Life::ToProto() const {
  v1::LifeRecord record;
  record.set_life(life);
  *record.mutable_process() = process.ToProto();
  record.set_free(free);
  record.set_lease_ms(absl::ToInt64Milliseconds(heard_lease));
  record.set_left(left);
  record.set_replaceable(replaceable);
  return record;
}

void LocalMembership::Restore(const std::map<std::string, v1::LifeRecord, std::less<>>& lives,
                              const std::optional<JobState>& end, MembershipJournal* journal) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  journal_ = journal;
  state_ = end.value_or(JobState());
  for (const auto& [member, record] : lives) {
    const absl::Duration heard = absl::Milliseconds(record.lease_ms());
    const bool heard_of = heard > absl::ZeroDuration();
    lives_[member] = Life{.life = record.life(),
                          .process = MemberProcess::FromProto(record.process()),
                          .joined = now,
                          .last_heard = now,
                          .lease = heard_of ? heard : kLeaseWithoutHeartbeats,
                          .free = record.free(),
                          .heard_lease = heard,
                          .left = record.left(),
                          .replaceable = record.replaceable()};
    if (heard_of) {
      leases_[member] = Lease{.last_heard = now,
                              .length = heard,
                              .left = record.left(),
                              .report = {.replaceable = record.replaceable()}};
    }
  }
}

void LocalMembership::ForgetJournal() {
  absl::MutexLock lock(&mutex_);
  journal_ = nullptr;
}

absl::Status LocalMembership::SetLife(absl::string_view member, Life next, Life* known) {
  if (journal_ != nullptr) TANDEM_RETURN_IF_ERROR(journal_->WriteLife(member, next.ToProto()));
  *known = std::move(next);
  return absl::OkStatus();
}

absl::Status LocalMembership::SetEnd(JobState end) {
  state_ = std::move(end);
  return journal_ == nullptr ? absl::OkStatus() : journal_->WriteEnd(state_);
}

absl::StatusOr<JoinResult> LocalMembership::Join(absl::string_view member, const MemberProcess& process,
                                                 int64_t life, int64_t replaces) {
  TANDEM_RETURN_IF_ERROR(CheckMemberName(member));
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  auto it = lives_.find(member);
  if (it == lives_.end()) {
    if (lives_.size() >= kMostMembers) return TooManyMembers();
    it = lives_.emplace(std::string(member), Life{.free = true}).first;
  }
  Life& known = it->second;
  if (known.life > 0 && known.process == process) {
    Life same = known;
    same.life = std::max(known.life, life);
    same.last_heard = now;
    same.free = false;
    if (same.life != known.life || known.free) {
      TANDEM_RETURN_IF_ERROR(SetLife(member, std::move(same), &known));
    } else {
      known = std::move(same);
    }
    return JoinResult{.life = known.life};
  }
  if (life > 0) {
    TANDEM_RETURN_IF_ERROR(AdmitLifeLocked(member, life, now));
    Life named = known;
    named.process = process;
    TANDEM_RETURN_IF_ERROR(SetLife(member, std::move(named), &known));
    return JoinResult{.life = known.life};
  }
  if (!known.free && replaces != known.life && now - known.last_heard <= known.lease) {
    return JoinResult{.holder = MemberLife{.life = known.life,
                                           .process = known.process,
                                           .joined = now - known.joined,
                                           .silent = now - known.last_heard,
                                           .lease = known.lease,
                                           .heartbeats = known.heartbeats}};
  }
  // It is heard of now, so its predecessor's silence is over. Its first heartbeat is still to come.
  auto lease = leases_.find(member);
  Life next{.life = known.life + 1,
            .process = process,
            .joined = now,
            .last_heard = now,
            .lease = lease == leases_.end() ? kLeaseWithoutHeartbeats : lease->second.length,
            .heard_lease = known.heard_lease,
            .left = known.left,
            .replaceable = known.replaceable};
  TANDEM_RETURN_IF_ERROR(SetLife(member, std::move(next), &known));
  if (lease != leases_.end()) lease->second.last_heard = now;
  return JoinResult{.life = known.life};
}

absl::Status LocalMembership::EndLife(absl::string_view member, const MemberProcess& process) {
  absl::MutexLock lock(&mutex_);
  const auto it = lives_.find(member);
  if (it == lives_.end()) return absl::OkStatus();
  Life& known = it->second;
  if (known.free || !IsSameProcess(known.process, process)) return absl::OkStatus();
  Life ended = known;
  ended.free = true;
  return SetLife(member, std::move(ended), &known);
}

absl::Status LocalMembership::AdmitLife(absl::string_view member, int64_t life) {
  if (member.empty() && life == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(CheckJoined(member, life));
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  return AdmitLifeLocked(member, life, now);
}

absl::Status LocalMembership::AdmitLifeLocked(absl::string_view member, int64_t life, absl::Time now) {
  auto it = lives_.find(member);
  if (it == lives_.end()) {
    if (lives_.size() >= kMostMembers) return TooManyMembers();
    it = lives_.emplace(std::string(member), Life{}).first;
  }
  Life& known = it->second;
  if (life > known.life) {
    return SetLife(member,
                   Life{.life = life, .joined = now, .last_heard = now, .lease = kLeaseWithoutHeartbeats},
                   &known);
  }
  if (life == known.life) return absl::OkStatus();
  return WasReplaced(member, life, known.process, known.life, now - known.joined);
}

absl::StatusOr<JobState> LocalMembership::Heartbeat(absl::string_view member, absl::Duration lease,
                                                    bool leaving, MemberReport report, int64_t life) {
  TANDEM_RETURN_IF_ERROR(CheckMemberName(member));
  TANDEM_RETURN_IF_ERROR(CheckMemberLease(member, lease));
  BoundReport(&report);
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  if (life > 0) {
    TANDEM_RETURN_IF_ERROR(AdmitLifeLocked(member, life, now));
    Life& known = lives_.find(member)->second;
    Life heard = known;
    heard.last_heard = now;
    heard.lease = heard.heard_lease = lease;
    heard.free = heard.left = leaving;
    heard.replaceable = report.replaceable;
    ++heard.heartbeats;
    const bool written = heard.heard_lease == known.heard_lease && heard.free == known.free &&
                         heard.left == known.left && heard.replaceable == known.replaceable;
    if (!written) {
      TANDEM_RETURN_IF_ERROR(SetLife(member, std::move(heard), &known));
    } else {
      known = std::move(heard);
    }
  }
  auto it = leases_.find(member);
  if (it == leases_.end()) {
    if (leases_.size() >= kMostMembers) return TooManyMembers();
    it = leases_.emplace(std::string(member), Lease{}).first;
  }
  const bool from_earlier = CameFromEarlier(report, incarnation_);
  if (from_earlier) memory_lost_ = std::min(memory_lost_, now);
  const bool came_back = it->second.came_back || from_earlier;
  it->second = Lease{now, lease, leaving, came_back, std::move(report)};
  ++heartbeats_;
  CheckLeases(now);
  return state_;
}

void LocalMembership::CheckLeases(absl::Time now) {
  if (state_.ended) return;
  if (ticks() && now - last_tick_ > late_) return;  // the next Tick tells who was silent
  const std::string* silent = nullptr;
  const Lease* oldest = nullptr;
  for (const auto& [name, lease] : leases_) {
    if (lease.left || now <= EndOf(lease) || MayBeSilent(name, lease)) continue;
    // If several leases ran out, the one that ran out first is the likelier cause.
    if (oldest == nullptr || EndOf(lease) < EndOf(*oldest)) {
      silent = &name;
      oldest = &lease;
    }
  }
  if (silent == nullptr) return;
  const absl::Status written =
      SetEnd({true, true, SilenceReason(*silent, now - oldest->last_heard, oldest->length)});
  if (!written.ok()) LogWarning(written.message());
}

void LocalMembership::Tick(absl::Duration late) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  const absl::Duration slept = now - last_tick_;
  if (ticks() && slept > late) {
    for (auto& [name, lease] : leases_) lease.last_heard = std::min(lease.last_heard + slept, now);
  }
  last_tick_ = now;
  late_ = late;
  CheckLeases(now);
}

absl::Time LocalMembership::EndOf(const Lease& lease) const {
  return lease.last_heard + lease.length * (ticks() ? 1.5 : 1);
}

void LocalMembership::AllowRestart(absl::string_view role) {
  absl::MutexLock lock(&mutex_);
  restarting_roles_.emplace(role);
}

bool LocalMembership::Restarts(absl::string_view member) const {
  return restarting_roles_.contains(RoleOfMember(member));
}

bool LocalMembership::MayBeSilent(absl::string_view member, const Lease& lease) const {
  return lease.report.replaceable || Restarts(member);
}

absl::Status LocalMembership::End(absl::string_view member, bool failed, absl::string_view reason) {
  absl::MutexLock lock(&mutex_);
  if (state_.ended || (failed && Restarts(member))) return absl::OkStatus();
  return SetEnd({true, failed, EndReason(member, reason)});
}

JobState LocalMembership::State() {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  CheckLeases(now);
  return state_;
}

JobState LocalMembership::WaitUntilEnded(absl::Time deadline) {
  while (true) {
    const absl::Time now = clock_->Now();
    absl::MutexLock lock(&mutex_);
    CheckLeases(now);
    if (state_.ended || now >= deadline) return state_;
    absl::Time next = deadline;
    for (const auto& [name, lease] : leases_) {
      if (ticks()) break;  // Tick looks at the leases
      // A lease ends when the silence is longer than the lease, not when it is equally long.
      if (!lease.left && !MayBeSilent(name, lease))
        next = std::min(next, EndOf(lease) + absl::Milliseconds(1));
    }
    const int64_t seen = heartbeats_;
    auto changed = [this, seen]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return state_.ended || heartbeats_ != seen; };
    clock_->AwaitUntil(&mutex_, absl::Condition(&changed), next);
  }
}

std::vector<std::string> LocalMembership::Members() {
  std::vector<std::string> names;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, lease] : leases_) {
    if (!lease.left) names.push_back(name);
  }
  return names;
}

std::vector<MemberStatus> LocalMembership::Statuses() {
  const absl::Time now = clock_->Now();
  std::vector<MemberStatus> statuses;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, lease] : leases_) {
    const auto life = lives_.find(name);
    statuses.push_back({.name = name,
                        .report = lease.report,
                        .lease = lease.length,
                        .silent = now - lease.last_heard,
                        .left = lease.left,
                        .came_back = lease.came_back,
                        .life = life == lives_.end() ? 0 : life->second.life});
  }
  return statuses;
}

absl::StatusOr<MembershipView> LocalMembership::Look() {
  return MembershipView{
      .job = State(), .members = Statuses(), .serving = Age(), .since_memory_lost = SinceMemoryLost()};
}

std::optional<absl::Duration> LocalMembership::SinceMemoryLost() const {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  if (memory_lost_ == absl::InfiniteFuture()) return std::nullopt;
  return now - memory_lost_;
}

}  // namespace tandem::cluster
