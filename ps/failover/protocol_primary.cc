// SPDX-License-Identifier: Apache-2.0
// The primary: its followers, its hand-over, and the end of its term.

#include <utility>

#include "absl/strings/str_cat.h"
#include "ps/failover/protocol.h"
#include "ps/failover/protocol_actions.h"

namespace tandem::ps {
namespace {

using internal::Add;
using internal::Name;
using internal::Refuse;
using Kind = Protocol::Action::Kind;

// Returns whether `id` is a later copy of the same process than `other`.
bool IsLater(const std::string& id, const std::string& other) {
  const auto life = [](const std::string& of) { return of.substr(0, of.rfind('-')); };
  return life(id) == life(other) && (id.size() > other.size() || (id.size() == other.size() && id > other));
}

}  // namespace

void Protocol::BecomePrimary(const ShardPlacement& placement, Actions* actions) {
  role_ = Role::kPrimary;
  placement_ = placement;
  members_.clear();
  served_.clear();
  attempted_.clear();
  unsettled_ = removing_ = removal_asked_ = told_ = held_ = held_over_ = stays_ = false;
  hand_over_to_ = {};
  serving_ = true;
  if (fault_ == Fault::kLateClose) Add(actions, Kind::kCloseAppends);
  Add(actions, Kind::kLead, placement_);
  Add(actions, Kind::kServe);
}

void Protocol::Depose(const ShardPlacement& by, Actions* actions) {
  if (told_ && by.primary.id == hand_over_to_.id) {
    const bool sure = !held_over_ && !unsettled_ && pending_ == Pending::kNothing;
    if (stays_ && sure && by.term == placement_.term + 1) return StepDown(by, actions);
    return End(
        absl::CancelledError(absl::StrCat("handed over to ", Name(by.primary), ", the primary of term ",
                                          by.term, ". Started again, this process becomes a follower")),
        actions);
  }
  End(absl::AbortedError(absl::StrCat(
          "deposed by ", by.primary.id.empty() ? "another copy" : Name(by.primary), ", the primary of term ",
          by.term, " (this process was that of term ", placement_.term,
          "): it was silent for too long or could not be reached. Start it again: it copies the shard and "
          "becomes a follower")),
      actions);
}

void Protocol::StepDown(const ShardPlacement& by, Actions* actions) {
  role_ = Role::kSteppingDown;
  placement_ = by;  // clients that ask are told
  serving_ = false;
  members_.clear();
  served_.clear();
  attempted_.clear();
  removing_ = removal_asked_ = told_ = held_ = stays_ = false;
  hand_over_to_ = {};
  Refuse(absl::UnavailableError(
             absl::StrCat("handed over to ", Name(by.primary), ", the primary of term ", by.term)),
         actions);
  if (fault_ == Fault::kFollowsTooEarly) return BecomeLearner(by, actions);
  Add(actions, Kind::kStepDown, self_);
}

void Protocol::OnSteppedDown(absl::string_view id, const absl::Status& status, Actions* actions) {
  if (role_ != Role::kSteppingDown || id != self_.id) return;
  if (status.ok()) return BecomeLearner(placement_, actions);
  End(absl::CancelledError(absl::StrCat("handed over to ", Name(placement_.primary), ", the primary of term ",
                                        placement_.term, ", and cannot follow it: ", status.message(),
                                        ". Started again, this process becomes a follower")),
      actions);
}

void Protocol::OnHigherTerm(uint64_t term, Actions* actions) {
  if (role_ != Role::kPrimary || term <= placement_.term) return;
  // The follower that was asked, or the document, is about to say who has taken over. Until then no call is
  // answered.
  if (told_) return;
  Depose({.term = term}, actions);
}

bool Protocol::MayTakeOver(const std::string& id) const {
  return placement_.IsInSync(id) || attempted_.contains(id);
}

std::vector<std::string> Protocol::MayTakeOver() const {
  std::vector<std::string> ids(attempted_.begin(), attempted_.end());
  for (const Copy& copy : placement_.in_sync) {
    if (!attempted_.contains(copy.id)) ids.push_back(copy.id);
  }
  return ids;
}

Protocol::Member* Protocol::FindMember(absl::string_view id) {
  if (role_ != Role::kPrimary) return nullptr;
  const auto found = members_.find(std::string(id));
  return found == members_.end() ? nullptr : &found->second;
}

absl::Status Protocol::OnAttach(const Copy& copy, uint64_t term, absl::string_view primary, Actions* actions,
                                const Lineage& held) {
  if (role_ != Role::kPrimary || primary != self_.id || term != placement_.term) {
    const char* const is = role_ == Role::kPrimary ? "the primary" : "no primary; the newest document is";
    return absl::FailedPreconditionError(absl::StrCat("copy ", Name(copy), " looks for the primary ", primary,
                                                      " of term ", term, ", but ", Name(self_), " is ", is,
                                                      " of term ", placement_.term));
  }
  if (members_.contains(copy.id)) return absl::OkStatus();
  // A call that was delayed: the copy may hold messages of the link that it had.
  if (served_.contains(copy.id) && fault_ != Fault::kForgetsIds) {
    return absl::FailedPreconditionError(
        absl::StrCat("the link to copy ", Name(copy), " has ended: it must begin anew, with a new id"));
  }
  if (removing_) {
    return absl::UnavailableError("the primary is about to replace its tables: attach again soon");
  }
  std::vector<std::string> earlier;  // copies of the same process, which are gone
  for (const auto& [id, member] : members_) {
    if (member.copy.address != copy.address) continue;
    if (IsLater(id, copy.id)) {
      return absl::FailedPreconditionError(
          absl::StrCat("copy ", Name(copy), " is gone: its process has begun copy ", id, " since"));
    }
    earlier.push_back(id);
  }
  for (const std::string& id : earlier) OnLinkEnded(id, actions);
  served_.insert(copy.id);
  members_[copy.id].copy = copy;
  Add(actions, Kind::kStartLink, copy);
  actions->back().held = held;
  if (fault_ == Fault::kLearnerInSync) {
    Add(actions, Kind::kRequire, copy);
    members_[copy.id].state = Member::State::kReady;
    Advance(actions);
  }
  return absl::OkStatus();
}

void Protocol::OnComplete(absl::string_view id, Actions* actions) {
  Member* const member = FindMember(id);
  if (member == nullptr || member->state != Member::State::kCopying) return;
  member->complete = true;
  member->state = Member::State::kJoining;
  Add(actions, Kind::kRequire, member->copy);
  if (fault_ == Fault::kJoinWithoutBarrier) OnCaughtUp(id, actions);
}

void Protocol::OnCaughtUp(absl::string_view id, Actions* actions) {
  Member* const member = FindMember(id);
  if (member == nullptr || member->state != Member::State::kJoining) return;
  member->state = Member::State::kReady;
  Advance(actions);
}

void Protocol::OnFollowerSilent(absl::string_view id, Actions* actions) {
  Member* const member = FindMember(id);
  if (member == nullptr) return;
  if (member->state != Member::State::kJoining && member->state != Member::State::kReady) return;
  if (MayTakeOver(member->copy.id)) {
    member->state = Member::State::kLeaving;
    if (fault_ == Fault::kEarlyRelease) {
      Add(actions, Kind::kRelease, member->copy);
    }
    return Advance(actions);
  }
  member->state = Member::State::kCopying;
  Add(actions, Kind::kRelease, member->copy);
}

void Protocol::OnFollowerHeard(absl::string_view id, Actions* actions) {
  Member* const member = FindMember(id);
  if (member == nullptr) return;
  if (member->state == Member::State::kLeaving || member->state == Member::State::kGone) {
    // It is in the wait set still, so that it lacks nothing that was acknowledged.
    member->state = Member::State::kReady;
    Advance(actions);
  } else if (member->state == Member::State::kCopying && member->complete) {
    OnComplete(id, actions);
  }
}

void Protocol::OnLinkEnded(absl::string_view id, Actions* actions) {
  Member* const member = FindMember(id);
  if (member == nullptr || member->state == Member::State::kGone) return;
  const Copy copy = member->copy;
  if (MayTakeOver(copy.id)) {
    member->state = Member::State::kGone;
    if (fault_ == Fault::kEarlyRelease) Add(actions, Kind::kRelease, copy);
    return Advance(actions);
  }
  members_.erase(copy.id);
  Add(actions, Kind::kRelease, copy);
  Add(actions, Kind::kEndLink, copy);
}

void Protocol::OnLease(bool held, Actions* actions) {
  if (role_ != Role::kPrimary || held == serving_ || held_) return;
  serving_ = held;
  if (held) return Add(actions, Kind::kServe);
  Refuse(absl::UnavailableError(
             absl::StrCat("the primary ", Name(self_), " of term ", placement_.term,
                          " cannot reach a follower that may have taken over, nor the store to remove it")),
         actions);
}

void Protocol::OnRemoveFollowers(Actions* actions) {
  if (role_ != Role::kPrimary) return;
  removing_ = removal_asked_ = true;
  std::vector<std::string> ids;
  for (const auto& [id, member] : members_) {
    ids.push_back(id);
    if (fault_ == Fault::kRemovalReleases) Add(actions, Kind::kRelease, member.copy);
  }
  for (const std::string& id : ids) OnLinkEnded(id, actions);
  Advance(actions);
}

void Protocol::OnAllowFollowers() { removing_ = removal_asked_ = false; }

// Hand-over.

absl::Status Protocol::OnHandOver(absl::string_view id, bool stays, Actions* actions) {
  const Member* const member = FindMember(id);
  if (role_ != Role::kPrimary) {
    return absl::FailedPreconditionError(absl::StrCat(Name(self_), " is not the primary; the primary is ",
                                                      Name(placement_.primary), " as far as it knows"));
  }
  if (member == nullptr || member->state != Member::State::kReady || !placement_.IsInSync(id)) {
    return absl::FailedPreconditionError(absl::StrCat("copy ", id, " is not in sync with the primary"));
  }
  if (held_ || !serving_ || removing_ || unsettled_ || pending_ != Pending::kNothing) {
    return absl::UnavailableError(absl::StrCat("the primary ", Name(self_),
                                               held_       ? " hands over already"
                                               : removing_ ? " loads a checkpoint"
                                                           : " is changing the placement document",
                                               ": try again soon"));
  }
  hand_over_to_ = member->copy;
  held_ = true;
  stays_ = stays;
  told_ = serving_ = false;
  Refuse(absl::UnavailableError(
             absl::StrCat("the primary ", Name(self_), " hands over to ", Name(hand_over_to_))),
         actions);
  return absl::OkStatus();
}

void Protocol::OnAllStored(Actions* actions) {
  if (role_ != Role::kPrimary || !held_ || told_) return;
  told_ = true;
  Add(actions, Kind::kTellTakeOver, hand_over_to_);
  actions->back().placement = placement_;
}

void Protocol::OnHandOverFailed(Actions* actions) {
  if (role_ != Role::kPrimary || !held_) return;
  if (told_ && fault_ != Fault::kServesAfterTold) {
    // The follower may take over until the document has another version.
    unsettled_ = true;
    held_over_ = true;
    return Advance(actions);
  }
  Serve(actions);
  Advance(actions);
}

void Protocol::OnHandedOver(const ShardPlacement& by, Actions* actions) {
  if (role_ == Role::kPrimary && told_ && by.term > placement_.term) Depose(by, actions);
}

void Protocol::Serve(Actions* actions) {
  held_ = told_ = held_over_ = stays_ = false;
  hand_over_to_ = {};
  serving_ = true;
  Add(actions, Kind::kServe);
}

void Protocol::DecidePrimary(const ShardPlacement& found, Actions* actions) {
  if (found.primary.id != self_.id || found.term != placement_.term) return Depose(found, actions);
  // Only this process changes the document in its term. A change that is still on its way finds a newer
  // version than it expects.
  if (found.version > placement_.version || fault_ == Fault::kReadSettles) Settle(found, actions);
  Advance(actions);
}

void Protocol::Settle(const ShardPlacement& placement, Actions* actions) {
  placement_ = placement;
  attempted_.clear();
  unsettled_ = false;
  Add(actions, Kind::kConfirm, placement_);
  // Whatever follower was asked to take over, it cannot any more.
  if (held_) Serve(actions);
  for (auto at = members_.begin(); at != members_.end();) {
    Member& member = at->second;
    const bool unwanted = member.state == Member::State::kLeaving || member.state == Member::State::kGone;
    if (unwanted && !placement_.IsInSync(at->first)) {
      Add(actions, Kind::kRelease, member.copy);
      if (member.state == Member::State::kGone) {
        Add(actions, Kind::kEndLink, member.copy);
        at = members_.erase(at);
        continue;
      }
      member.state = Member::State::kCopying;
    }
    ++at;
  }
}

void Protocol::Advance(Actions* actions) {
  if (role_ != Role::kPrimary || pending_ != Pending::kNothing) return;
  if (held_ && !held_over_) return;
  ShardPlacement desired = placement_;
  desired.in_sync.clear();
  bool changes = unsettled_;
  for (const auto& [id, member] : members_) {
    if (member.state != Member::State::kReady) continue;
    desired.in_sync.push_back(member.copy);
    changes = changes || !placement_.IsInSync(id);
  }
  // The last copies that have every acknowledged push stay, even if they are silent or gone.
  for (const Member::State state : {Member::State::kLeaving, Member::State::kGone}) {
    for (const auto& [id, member] : members_) {
      const bool enough = removing_ || desired.in_sync.size() + 1 >= static_cast<size_t>(min_copies_);
      if (!enough && member.state == state && placement_.IsInSync(id)) desired.in_sync.push_back(member.copy);
    }
  }
  if (changes || desired.in_sync.size() != placement_.in_sync.size()) {
    for (const Copy& copy : desired.in_sync) attempted_.insert(copy.id);
    return CompareAndSet(std::move(desired), actions);
  }
  if (removal_asked_ && placement_.in_sync.empty()) {
    removal_asked_ = false;
    Add(actions, Kind::kFollowersRemoved);
  }
}

}  // namespace tandem::ps
