// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/store_membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "base/utf8.h"
#include "cluster/membership/incarnation.h"
#include "cluster/membership/limits.h"
#include "cluster/membership/methods.h"

namespace tandem::cluster {
namespace {

constexpr char kIncarnationKey[] = "incarnation", kEndKey[] = "end", kHolderKey[] = "holder";
constexpr char kLives[] = "life/", kReports[] = "report/", kAlive[] = "alive/", kJoined[] = "joined/",
               kLaunchers[] = "launcher/";
// etcd's shortest lease.
constexpr absl::Duration kShortestBeatLease = absl::Seconds(2);
// A process that only waits for the end looks that often, and keeps its alive key for four times as long.
constexpr absl::Duration kLook = absl::Seconds(1);

std::string FreedKey(absl::string_view member) { return absl::StrCat("freed/", member); }
std::string RestartsKey(absl::string_view role) { return absl::StrCat("restarts/", role); }
std::string OfLife(absl::string_view prefix, absl::string_view member, int64_t life) {
  return absl::StrCat(prefix, member, "/", life);
}
std::string AliveKey(absl::string_view member, int64_t life) { return OfLife(kAlive, member, life); }
std::string JoinedKey(absl::string_view member, int64_t life) { return OfLife(kJoined, member, life); }

template <typename Message>
absl::StatusOr<Message> Parsed(absl::string_view key, const std::string& bytes) {
  Message message;
  if (message.ParseFromString(bytes)) return message;
  return absl::FailedPreconditionError(
      absl::StrCat("the store's '", key, "' is not understood: is its prefix used by something else?"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreMembership>> StoreMembership::Open(std::unique_ptr<Store> own,
                                                                       std::string name, bool read_only) {
  std::unique_ptr<StoreMembership> membership(new StoreMembership(std::move(own), std::move(name)));
  Store& store = *membership->store_;
  TANDEM_ASSIGN_OR_RETURN(std::string number, store.GetIfPresent(kIncarnationKey, kLook));
  if (number.empty() && read_only) {
    return absl::NotFoundError(absl::StrCat("no job has begun at ", store.address(), ", or it is forgotten"));
  }
  if (number.empty()) {
    TANDEM_ASSIGN_OR_RETURN(number, store.CompareSet(kIncarnationKey, "", absl::StrCat(NewIncarnation())));
  }
  if (!absl::SimpleAtoi(number, &membership->incarnation_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the store's '", kIncarnationKey, "' is no number: '", number, "'"));
  }
  return membership;
}

std::string StoreMembership::FenceKey(absl::string_view member) { return absl::StrCat(kLives, member); }

std::string StoreMembership::FenceValue(const MemberProcess& process, int64_t life) {
  v1::LifeRecord record;
  record.set_life(life);
  *record.mutable_process() = process.ToProto();
  return record.SerializeAsString();
}

absl::StatusOr<v1::LifeRecord> StoreMembership::Life(absl::string_view member) {
  TANDEM_ASSIGN_OR_RETURN(const std::string held, store_->GetIfPresent(FenceKey(member), kLook));
  return Parsed<v1::LifeRecord>(FenceKey(member), held);
}

absl::StatusOr<bool> StoreMembership::IsAlive(absl::string_view member, int64_t life) {
  TANDEM_ASSIGN_OR_RETURN(const bool alive, store_->Check({AliveKey(member, life)}));
  return alive ? alive : store_->Check({JoinedKey(member, life)});
}

absl::StatusOr<JoinResult> StoreMembership::Join(absl::string_view member, const MemberProcess& process,
                                                 int64_t life, int64_t replaces) {
  TANDEM_RETURN_IF_ERROR(CheckMemberName(member));
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const v1::LifeRecord known, Life(member));
    TANDEM_ASSIGN_OR_RETURN(const std::string freed, store_->GetIfPresent(FreedKey(member), kLook));
    const MemberProcess holder = MemberProcess::FromProto(known.process());
    const std::string held = known.life() == 0 ? "" : FenceValue(holder, known.life());
    int64_t next = known.life() + 1;
    if (life > 0) {
      if (known.life() > life) return WasReplaced(member, life, holder, known.life(), absl::ZeroDuration());
      next = life;
    } else if (known.life() > 0 && holder == process) {
      next = known.life();
    } else if (known.life() > 0 && known.life() != replaces && freed != absl::StrCat(known.life())) {
      TANDEM_ASSIGN_OR_RETURN(const bool alive, IsAlive(member, known.life()));
      if (alive) {
        v1::MemberInfo last;
        TANDEM_ASSIGN_OR_RETURN(const std::string report,
                                store_->GetIfPresent(absl::StrCat(kReports, member), kLook));
        TANDEM_ASSIGN_OR_RETURN(last, Parsed<v1::MemberInfo>(kReports, report));
        const absl::Duration lease = absl::Milliseconds(last.last().lease_ms());
        return JoinResult{.holder = MemberLife{.life = known.life(),
                                               .process = holder,
                                               .lease = std::max(lease, kLeaseWithoutHeartbeats)}};
      }
    }
    // Before the name is taken, so that no third process finds the new life without a sign of life.
    TANDEM_RETURN_IF_ERROR(store_->Beat(JoinedKey(member, next), kLeaseWithoutHeartbeats));
    const std::string mine = FenceValue(process, next);
    TANDEM_ASSIGN_OR_RETURN(const std::string now, store_->CompareSet(FenceKey(member), held, mine));
    if (now != mine) continue;  // another process was quicker
    if (freed == absl::StrCat(next)) TANDEM_RETURN_IF_ERROR(store_->Delete(FreedKey(member)).status());
    return JoinResult{.life = next};
  }
}

absl::Status StoreMembership::EndLife(absl::string_view member, const MemberProcess& process) {
  TANDEM_RETURN_IF_ERROR(CheckMemberName(member));
  TANDEM_ASSIGN_OR_RETURN(const v1::LifeRecord known, Life(member));
  if (known.life() == 0 || !IsSameProcess(MemberProcess::FromProto(known.process()), process)) {
    return absl::OkStatus();
  }
  return store_->Set(FreedKey(member), absl::StrCat(known.life()));
}

absl::Status StoreMembership::AdmitLife(absl::string_view member, int64_t life) {
  if (member.empty() && life == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(CheckJoined(member, life));
  TANDEM_ASSIGN_OR_RETURN(const v1::LifeRecord known, Life(member));
  if (known.life() <= life) return absl::OkStatus();
  return WasReplaced(member, life, MemberProcess::FromProto(known.process()), known.life(),
                     absl::ZeroDuration());
}

absl::StatusOr<JobState> StoreMembership::State() {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_here_.ended) return ended_here_;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string end, store_->GetIfPresent(kEndKey, kLook));
  TANDEM_ASSIGN_OR_RETURN(const v1::HeartbeatResponse state, Parsed<v1::HeartbeatResponse>(kEndKey, end));
  return JobState{state.ended(), state.failed(), state.reason()};
}

absl::StatusOr<JobState> StoreMembership::Heartbeat(absl::string_view member, absl::Duration lease,
                                                    bool leaving, MemberReport report, int64_t life) {
  TANDEM_RETURN_IF_ERROR(CheckMemberName(member));
  TANDEM_RETURN_IF_ERROR(CheckMemberLease(member, lease));
  if (life > 0) TANDEM_RETURN_IF_ERROR(AdmitLife(member, life));
  BoundReport(&report);
  const std::string alive = AliveKey(member, life), report_key = absl::StrCat(kReports, member);
  const absl::Time now = MonotonicNow();
  v1::MemberInfo info;
  info.set_life(life);
  SetReport(member, lease, leaving, report, info.mutable_last());
  bool write = true;
  {
    absl::MutexLock lock(&mutex_);
    const auto known = reported_.find(std::string(member));
    if (known != reported_.end()) {
      v1::MemberInfo but_step = known->second.info;
      but_step.mutable_last()->set_step(info.last().step());
      write = but_step.SerializeAsString() != info.SerializeAsString() || now - known->second.at >= lease;
    }
  }
  if (!leaving) TANDEM_RETURN_IF_ERROR(store_->Beat(alive, std::max(lease, kShortestBeatLease)));
  if (write) {
    TANDEM_RETURN_IF_ERROR(store_->Set(report_key, info.SerializeAsString()));
    absl::MutexLock lock(&mutex_);
    reported_[std::string(member)] = {std::move(info), now};
  }
  if (leaving) {
    if (life > 0) TANDEM_RETURN_IF_ERROR(store_->Set(FreedKey(member), absl::StrCat(life)));
    TANDEM_RETURN_IF_ERROR(store_->Delete(alive).status());
    return State();
  }
  TANDEM_ASSIGN_OR_RETURN(const JobState state, State());
  if (state.ended) return state;
  TANDEM_RETURN_IF_ERROR(LookForSilent(alive));
  return State();
}

absl::StatusOr<std::map<std::string, std::string>> StoreMembership::ReadAll(absl::string_view prefix) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store_->List(prefix));
  std::map<std::string, std::string> all;
  if (keys.empty()) return all;
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> values, store_->MultiGet(keys, absl::ZeroDuration()));
  for (size_t i = 0; i < keys.size(); ++i) all[keys[i].substr(prefix.size())] = std::move(values[i]);
  return all;
}

absl::StatusOr<std::map<std::string, StoreMembership::Seen>> StoreMembership::ReadMembers() {
  // The signs of life come last: a member that joins meanwhile has one.
  TANDEM_ASSIGN_OR_RETURN(const auto reports, ReadAll(kReports));
  TANDEM_ASSIGN_OR_RETURN(const auto lives, ReadAll(kLives));
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> keys, store_->List(kAlive));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> joined, store_->List(kJoined));
  std::set<std::string> signs(keys.begin(), keys.end());
  signs.insert(joined.begin(), joined.end());
  std::map<std::string, Seen> members;
  for (const auto& [name, bytes] : reports) {
    Seen seen;
    TANDEM_ASSIGN_OR_RETURN(seen.report, Parsed<v1::MemberInfo>(kReports, bytes));
    seen.life = seen.report.life();
    if (const auto life = lives.find(name); life != lives.end() && seen.life > 0) {
      TANDEM_ASSIGN_OR_RETURN(const v1::LifeRecord record, Parsed<v1::LifeRecord>(kLives, life->second));
      seen.life = std::max(seen.life, record.life());
    }
    seen.alive = signs.contains(AliveKey(name, seen.life)) || signs.contains(JoinedKey(name, seen.life));
    members.emplace(name, std::move(seen));
  }
  const absl::Time now = MonotonicNow();
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, seen] : members) {
    const bool silent = !seen.alive && !seen.report.last().leaving();
    if (silent) silent_since_.emplace(name, now);
    if (!silent) silent_since_.erase(name);
    if (CameFromEarlier(ReportOf(seen.report.last()), incarnation_))
      memory_lost_ = std::min(memory_lost_, now);
  }
  return members;
}

absl::Status StoreMembership::LookForSilent(const std::string& alive_key) {
  TANDEM_ASSIGN_OR_RETURN(const std::string holder, store_->GetIfPresent(kHolderKey, kLook));
  if (holder != alive_key) {
    if (!holder.empty()) {
      TANDEM_ASSIGN_OR_RETURN(const bool alive, store_->Check({holder}));
      if (alive) return absl::OkStatus();
    }
    TANDEM_ASSIGN_OR_RETURN(const std::string now, store_->CompareSet(kHolderKey, holder, alive_key));
    if (now != alive_key) return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(const auto members, ReadMembers());
  const absl::Time now = MonotonicNow();
  // Launchers come first, as for Membership::Tick, if there are any.
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> launchers, store_->List(kLaunchers));
  std::string silent;
  absl::Duration longest, lease;
  for (const auto& [name, seen] : members) {
    if (seen.alive || seen.report.last().leaving() || seen.report.last().replaceable()) continue;
    const absl::Duration own = absl::Milliseconds(seen.report.last().lease_ms());
    absl::Duration since;
    {
      absl::MutexLock lock(&mutex_);
      since = now - silent_since_[name];
    }
    if ((since < own / 2 && !launchers.empty()) || own + since <= longest) continue;
    TANDEM_ASSIGN_OR_RETURN(const bool restarts, store_->Check({RestartsKey(RoleOfMember(name))}));
    if (restarts) continue;
    silent = name;
    longest = own + since;
    lease = own;
  }
  if (silent.empty()) return absl::OkStatus();
  return EndWith({true, true, SilenceReason(silent, longest, lease)});
}

absl::Status StoreMembership::EndWith(const JobState& end) {
  v1::HeartbeatResponse state;
  state.set_ended(end.ended);
  state.set_failed(end.failed);
  state.set_reason(ValidUtf8(end.reason));
  return store_->CompareSet(kEndKey, "", state.SerializeAsString()).status();
}

void StoreMembership::AllowRestart(absl::string_view role) {
  absl::MutexLock lock(&mutex_);
  restarts_to_write_.emplace(role);
}

absl::Status StoreMembership::End(absl::string_view member, bool failed, absl::string_view reason) {
  if (failed && absl::StrContains(member, '/')) {
    TANDEM_ASSIGN_OR_RETURN(const bool restarts, store_->Check({RestartsKey(RoleOfMember(member))}));
    if (restarts) return absl::OkStatus();
  }
  const JobState end{true, failed, EndReason(member, reason)};
  const absl::Status written = EndWith(end);
  if (written.ok()) return written;
  absl::MutexLock lock(&mutex_);
  if (!ended_here_.ended) ended_here_ = end;
  return written;
}

void StoreMembership::Abandon(absl::string_view, bool, absl::string_view) {
  absl::MutexLock lock(&mutex_);
  if (!ended_here_.ended) ended_here_.ended = true;
}

JobState StoreMembership::WaitUntilEnded(absl::Time deadline) {
  const std::string alive = absl::StrCat(kLaunchers, name_);
  std::string told;  // of an error
  while (true) {
    std::set<std::string> restarts;
    {
      absl::MutexLock lock(&mutex_);
      restarts = restarts_to_write_;
    }
    absl::Status done;
    for (const std::string& role : restarts) done.Update(store_->Set(RestartsKey(role), ""));
    if (done.ok()) {
      absl::MutexLock lock(&mutex_);
      for (const std::string& role : restarts) restarts_to_write_.erase(role);
    }
    if (done.ok() && !name_.empty()) done = store_->Beat(alive, 4 * kLook);
    if (done.ok() && !name_.empty()) done = LookForSilent(alive);
    const absl::StatusOr<JobState> state = State();
    const absl::Duration left = deadline - MonotonicNow();
    if (state.ok() && (state->ended || left <= absl::ZeroDuration())) return *state;
    if (left <= absl::ZeroDuration()) return {};
    done.Update(state.status());
    // Not the same line each second.
    if (!done.ok() && told.empty())
      LogWarning(absl::StrCat("the job's store does not answer: ", done.message()));
    told = done.ok() ? "" : "told";
    // Returns at once when the job ends.
    const absl::Time next = MonotonicNow() + std::min(kLook, left);
    if (!done.ok() || !store_->Get(kEndKey, std::min(kLook, left)).ok()) {
      absl::MutexLock lock(&mutex_);
      const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return ended_here_.ended; };
      AwaitUntil(&mutex_, absl::Condition(&ended), next);
    }
  }
}

absl::StatusOr<MembershipView> StoreMembership::Look() {
  MembershipView view;
  TANDEM_ASSIGN_OR_RETURN(view.job, State());
  TANDEM_ASSIGN_OR_RETURN(const auto members, ReadMembers());
  const absl::Time now = MonotonicNow();
  // Longer than any lease: this store does not forget.
  view.serving = absl::Hours(48);
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, seen] : members) {
    MemberStatus status{.name = name,
                        .report = ReportOf(seen.report.last()),
                        .lease = absl::Milliseconds(seen.report.last().lease_ms()),
                        .left = seen.report.last().leaving(),
                        .life = seen.life};
    status.came_back = CameFromEarlier(status.report, incarnation_);
    // The keys expire after the lease in whole seconds.
    if (const auto since = silent_since_.find(name); since != silent_since_.end()) {
      status.silent = status.lease + absl::Milliseconds(1) + (now - since->second);
    }
    view.members.push_back(std::move(status));
  }
  if (memory_lost_ != absl::InfiniteFuture()) view.since_memory_lost = now - memory_lost_;
  return view;
}

}  // namespace tandem::cluster
