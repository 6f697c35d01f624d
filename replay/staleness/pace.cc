// SPDX-License-Identifier: Apache-2.0
#include "replay/staleness/pace.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/counted.h"

namespace tandem::replay {
namespace {

constexpr size_t kKeptActors = 65536;

int64_t Signed(uint64_t n) { return static_cast<int64_t>(n); }
std::string Count(uint64_t n, absl::string_view what) { return Counted(Signed(n), what); }
std::string NameOf(const std::string& actor) { return actor.empty() ? "an actor" : actor; }

}  // namespace

int64_t Pace::Deadline(uint64_t commit) const {
  // A file from elsewhere may hold any numbers, so this is computed in 128 bits.
  const __int128 commits_left =
      static_cast<__int128>(Signed(commit)) + options_.max_lag + 1 - Signed(versions_.commits());
  const __int128 deadline = Signed(versions_.consumed()) + commits_left * options_.batch * options_.every;
  constexpr __int128 kFurthest = std::numeric_limits<int64_t>::max() / 4;
  return static_cast<int64_t>(std::clamp(deadline, -kFurthest, kFurthest));
}

uint64_t Pace::Admissible() const {
  if (versions_.commits() == 0) return 0;
  const uint64_t unsampled = tickets_.size() + residents_.size();
  const __int128 admissible =
      static_cast<__int128>(Deadline(versions_.commits())) - Signed(sampled_ + unsampled);
  return static_cast<uint64_t>(std::max<__int128>(admissible, 0));
}

std::vector<Ticket> Pace::Granted(const AdmitRequest& request) const {
  const auto actor = actors_.find(request.actor);
  if (request.sequence == 0 || actor == actors_.end() || actor->second.incarnation != request.incarnation ||
      actor->second.sequence != request.sequence) {
    return {};
  }
  return actor->second.last;
}

absl::Status Pace::Replace(const AdmitRequest& request) {
  const auto actor = actors_.find(request.actor);
  if (request.sequence == 0 || actor == actors_.end()) return absl::OkStatus();
  if (request.incarnation < actor->second.incarnation) {
    return absl::FailedPreconditionError(absl::StrCat(
        "actor '", request.actor, "' of incarnation ", request.incarnation, " has been replaced by one of ",
        actor->second.incarnation, ", which uses the same name: stop one of the two"));
  }
  if (request.incarnation == actor->second.incarnation) {
    if (request.sequence >= actor->second.sequence) return absl::OkStatus();
    return absl::AbortedError(
        absl::StrCat("actor '", request.actor, "' has asked for other tickets since this request"));
  }
  for (auto ticket = tickets_.begin(); ticket != tickets_.end() && actor->second.running > 0;) {
    const auto ending = ticket++;
    if (ending->second.actor != request.actor) continue;
    ++counts_.expired;
    Remove(ending);
  }
  actor->second = {.incarnation = request.incarnation};
  return absl::OkStatus();
}

std::vector<Ticket> Pace::Admit(const AdmitRequest& request, absl::Time now) {
  if (actors_.size() >= kKeptActors && !actors_.contains(request.actor)) {
    std::erase_if(actors_, [](const auto& entry) { return entry.second.running == 0; });
  }
  Actor& actor = actors_[request.actor];
  actor.incarnation = request.incarnation;
  actor.sequence = request.sequence;
  actor.last.clear();
  for (uint32_t i = 0; i < request.count; ++i) {
    const uint64_t id = ++last_ticket_;
    Running& ticket = tickets_[id];
    ticket = {.actor = request.actor,
              .commit = versions_.commits(),
              .min_version = versions_.head().version,
              .granted = now};
    SetEnd(id, &ticket, now + options_.lease);
    actor.last.push_back({.id = id,
                          .min_version = ticket.min_version,
                          .epoch = versions_.head().epoch,
                          .lease = options_.lease});
  }
  actor.running += request.count;
  groups_[versions_.commits()].running += request.count;
  counts_.admitted += request.count;
  return actor.last;
}

void Pace::SetEnd(uint64_t id, Running* ticket, absl::Time end) {
  ends_.erase({ticket->end, id});
  ticket->end = std::min(end, ticket->granted + options_.max_rollout);
  ends_.insert({ticket->end, id});
}

void Pace::DropIfEmpty(std::map<uint64_t, Group>::iterator group) {
  if (group->second.running == 0 && group->second.resident == 0) groups_.erase(group);
}

void Pace::Remove(std::map<uint64_t, Running>::iterator ticket) {
  ends_.erase({ticket->second.end, ticket->first});
  const auto actor = actors_.find(ticket->second.actor);
  if (actor != actors_.end() && actor->second.running > 0) --actor->second.running;
  const auto group = groups_.find(ticket->second.commit);
  --group->second.running;
  DropIfEmpty(group);
  tickets_.erase(ticket);
}

size_t Pace::Renew(absl::Span<const uint64_t> tickets, absl::Time now) {
  size_t in_use = 0;
  for (const uint64_t id : tickets) {
    const auto ticket = tickets_.find(id);
    if (ticket == tickets_.end()) continue;
    SetEnd(id, &ticket->second, now + options_.lease);
    ++in_use;
  }
  return in_use;
}

size_t Pace::Return(absl::Span<const uint64_t> tickets) {
  size_t in_use = 0;
  for (const uint64_t id : tickets) {
    const auto ticket = tickets_.find(id);
    if (ticket == tickets_.end()) continue;
    Remove(ticket);
    ++in_use;
  }
  counts_.returned += in_use;
  return in_use;
}

bool Pace::Expire(absl::Time now) {
  const uint64_t before = counts_.expired;
  while (!ends_.empty() && ends_.begin()->first <= now) {
    ++counts_.expired;
    Remove(tickets_.find(ends_.begin()->second));
  }
  while (options_.slow != SlowRollouts::kTake && !tickets_.empty() &&
         Deadline(tickets_.begin()->second.commit) <= Signed(sampled_)) {
    ++counts_.expired;
    Remove(tickets_.begin());
  }
  return counts_.expired != before;
}

absl::Status Pace::Check(uint64_t id, int64_t min_version) {
  const auto ticket = tickets_.find(id);
  if (id != 0 && ticket != tickets_.end() && min_version >= ticket->second.min_version) {
    return absl::OkStatus();
  }
  ++counts_.refused;
  if (id == 0) {
    return absl::InvalidArgumentError("the item has no ticket; ask for one (Admit) before the rollout");
  }
  if (ticket == tickets_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "ticket ", id, " of the item is not in use: its lease of ", absl::FormatDuration(options_.lease),
        " or max_rollout of ", absl::FormatDuration(options_.max_rollout),
        " has ended, its item would be too old, or it was used; roll out again with another ticket"));
  }
  const int64_t required = ticket->second.min_version;
  ++counts_.returned;
  Remove(ticket);
  return absl::InvalidArgumentError(
      absl::StrCat("the item has steps of version ", min_version, ", and its ticket requires version ",
                   required, " or later: pull the policy after Admit, before the first step of the item"));
}

void Pace::Place(uint64_t id, uint32_t slot) {
  const auto ticket = tickets_.find(id);
  const uint64_t commit = ticket->second.commit;
  ++groups_[commit].resident;  // before Remove, which would forget an empty group
  Remove(ticket);
  residents_[id] = {.slot = slot, .commit = commit};
}

void Pace::Restore(uint64_t id, const Resident& resident) {
  residents_[id] = resident;
  ++groups_[resident.commit].resident;
}

uint64_t Pace::FreshResidents() const {
  if (options_.slow == SlowRollouts::kTake) return residents_.size();
  int64_t position = Signed(sampled_);
  for (const auto& [commit, group] : groups_) {
    position += std::clamp<int64_t>(Deadline(commit) - position, 0, Signed(group.resident));
  }
  return static_cast<uint64_t>(position) - sampled_;
}

uint64_t Pace::SamplesAllowed() const {
  const auto fresh = Signed(FreshResidents());
  if (options_.slow != SlowRollouts::kWait) return static_cast<uint64_t>(fresh);
  // Once more items have been sampled than there are with older tickets, the items of running rollouts come
  // next at the earliest, one after the other.
  int64_t allowed = fresh, running = 0, resident = 0;
  for (const auto& [commit, group] : groups_) {
    running += Signed(group.running);
    resident += Signed(group.resident);
    if (running == 0) continue;
    allowed = std::min(allowed, std::max(resident, Deadline(commit) - Signed(sampled_) - running));
  }
  return static_cast<uint64_t>(std::max<int64_t>(allowed, 0));
}

std::vector<uint32_t> Pace::NextSlots(size_t n) const {
  std::vector<uint32_t> slots;
  for (const auto& [ticket, resident] : residents_) {
    if (slots.size() >= n) break;
    const bool too_old =
        options_.slow != SlowRollouts::kTake && Deadline(resident.commit) <= Signed(sampled_ + slots.size());
    if (!too_old) slots.push_back(resident.slot);
  }
  return slots;
}

uint32_t Pace::TakeNext() {
  const auto next = residents_.begin();
  const uint32_t slot = next->second.slot;
  Left(next->first);
  ++sampled_;
  return slot;
}

std::optional<uint32_t> Pace::TooOld() const {
  if (options_.slow == SlowRollouts::kTake || residents_.empty()) return std::nullopt;
  const Resident& oldest = residents_.begin()->second;
  if (Deadline(oldest.commit) > Signed(sampled_)) return std::nullopt;
  return oldest.slot;
}

void Pace::Left(uint64_t id) {
  const auto resident = residents_.find(id);
  if (resident == residents_.end()) return;
  const auto group = groups_.find(resident->second.commit);
  --group->second.resident;
  DropIfEmpty(group);
  residents_.erase(resident);
}

void Pace::Clear() {
  tickets_.clear();
  ends_.clear();
  residents_.clear();
  groups_.clear();
  actors_.clear();
}

std::optional<Pace::Oldest> Pace::oldest() const {
  if (tickets_.empty()) return std::nullopt;
  const Running& ticket = tickets_.begin()->second;
  return Oldest{.actor = ticket.actor, .granted = ticket.granted, .min_version = ticket.min_version};
}

std::string Pace::OldestText(absl::Time now) const {
  const Running& ticket = tickets_.begin()->second;
  return absl::StrCat(NameOf(ticket.actor), ", since ", absl::ToInt64Seconds(now - ticket.granted),
                      " s, by version ", ticket.min_version);
}

std::string Pace::WhyNotAdmitted(uint32_t count, absl::Time now) const {
  if (Admissible() >= count) return "";
  if (versions_.commits() == 0) return "admits no rollouts: no version of the policy has been committed yet";
  return absl::StrCat("admits no ", count == 1 ? "rollout" : absl::StrCat(count, " rollouts"),
                      " until a later version than ", versions_.head().version,
                      " is committed or items are dropped: ",
                      Count(sampled_ - std::min(sampled_, versions_.consumed()), "item"),
                      " sampled that no commit has counted as consumed, ", residents_.size(),
                      " waiting, and ", Count(tickets_.size(), "rollout"), " running reach (max_lag ",
                      options_.max_lag, " + 1) x batch ", options_.batch, " x every ", options_.every,
                      tickets_.empty() ? "" : absl::StrCat("; the oldest rollout runs in ", OldestText(now)));
}

std::string Pace::WhyNoSample(uint64_t batch, absl::Time now) const {
  const uint64_t allowed = SamplesAllowed();
  if (allowed >= batch) return "";
  const std::string gives = absl::StrCat("gives no batch of ", batch, ": ");
  if (FreshResidents() < batch) {
    return absl::StrCat(gives, "it holds ", Count(residents_.size(), "item"), ", and ",
                        Count(tickets_.size(), "rollout"), tickets_.size() == 1 ? " runs" : " run",
                        tickets_.empty() ? "" : absl::StrCat("; the oldest one in ", OldestText(now)));
  }
  return absl::StrCat(gives, "samples wait for the rollout of ", OldestText(now),
                      ", whose item would otherwise exceed max_lag ", options_.max_lag, " (slow: wait)");
}

}  // namespace tandem::replay
