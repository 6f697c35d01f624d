// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/protocol.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::ps {
namespace {

using Kind = Protocol::Action::Kind;

std::string Name(const Copy& copy) { return absl::StrCat(copy.id, " at ", copy.address); }

void Add(Protocol::Actions* actions, Kind kind) { actions->emplace_back().kind = kind; }
void Add(Protocol::Actions* actions, Kind kind, const Copy& copy) {
  Add(actions, kind);
  actions->back().copy = copy;
}
void Add(Protocol::Actions* actions, Kind kind, const ShardPlacement& placement) {
  Add(actions, kind);
  actions->back().placement = placement;
}
void Refuse(absl::Status why, Protocol::Actions* actions) {
  Add(actions, Kind::kRefuse);
  actions->back().status = std::move(why);
}

// Returns whether `id` is a later copy of the same process than `other`.
bool IsLater(const std::string& id, const std::string& other) {
  const auto life = [](const std::string& of) { return of.substr(0, of.rfind('-')); };
  return life(id) == life(other) && (id.size() > other.size() || (id.size() == other.size() && id > other));
}

absl::Status Lost(const ShardPlacement& placement) {
  const std::string followers =
      placement.in_sync.empty()
          ? "no follower was in sync"
          : absl::StrCat("neither do its followers that were in sync, ", placement.in_sync.size());
  return absl::DataLossError(absl::StrCat(
      "the shard is lost: its primary ", Name(placement.primary), " is dead or does not answer, and ",
      followers,
      ". Start the job again; it begins at its newest checkpoint. More followers (--ps-followers) "
      "survive more deaths at the same time"));
}

}  // namespace

Protocol::Protocol(std::string life, std::string address, int min_copies, Fault fault)
    : life_(std::move(life)),
      min_copies_(min_copies),
      fault_(fault),
      self_{absl::StrCat(life_, "-0"), std::move(address)} {}

// The board.

void Protocol::Read(Actions* actions) {
  pending_ = Pending::kRead;
  asked_version_ = placement_.version;
  Add(actions, Kind::kRead);
}

void Protocol::Wait(Actions* actions) {
  pending_ = Pending::kWait;
  Add(actions, Kind::kWait);
}

void Protocol::CompareAndSet(ShardPlacement desired, Actions* actions) {
  pending_ = Pending::kCompareAndSet;
  asked_version_ = placement_.version;
  desired.version = placement_.version + 1;
  desired_ = std::move(desired);
  Add(actions, Kind::kCompareAndSet, desired_);
  actions->back().expected = placement_.version;
}

void Protocol::Start(Actions* actions) { Read(actions); }

void Protocol::OnWaited(Actions* actions) {
  if (pending_ != Pending::kWait || role_ == Role::kEnded) return;
  Read(actions);
}

void Protocol::OnReadFailed(Actions* actions) {
  if (pending_ != Pending::kRead || role_ == Role::kEnded) return;
  Wait(actions);
}

void Protocol::OnRead(const ShardPlacement& found, Actions* actions) {
  if (pending_ != Pending::kRead || role_ == Role::kEnded) return;
  pending_ = Pending::kNothing;
  if (found.version < asked_version_) {
    return End(absl::DataLossError(absl::StrCat(
                   "the placement document of the shard has version ", found.version, ", but version ",
                   asked_version_,
                   " was in force: the job's store has lost it. Start the job again; it begins at its newest "
                   "checkpoint")),
               actions);
  }
  // The primary has told of a newer document while the answer was on its way.
  if (found.version < placement_.version) return Read(actions);
  switch (role_) {
    case Role::kStarting:
      return DecideStart(found, actions);
    case Role::kLearner:
    case Role::kFollower:
      return DecideFollower(found, actions);
    case Role::kTakingOver:
      return DecideTakeover(found, actions);
    case Role::kPrimary:
      return DecidePrimary(found, actions);
    case Role::kEnded:
      return;
  }
}

void Protocol::OnCompareAndSet(Outcome outcome, const ShardPlacement& current, Actions* actions) {
  if (pending_ != Pending::kCompareAndSet || role_ == Role::kEnded) return;
  if (outcome == Outcome::kUnknown && fault_ == Fault::kUnknownIsDone) outcome = Outcome::kDone;
  pending_ = Pending::kNothing;
  if (outcome == Outcome::kUnknown) {
    // The change may be in force, or come into force later. A read alone does not tell: role by role the
    // decision after it makes another compare-and-set unless the document has moved on.
    if (role_ == Role::kPrimary) unsettled_ = true;
    return Wait(actions);
  }
  if (outcome == Outcome::kChanged) {
    pending_ = Pending::kRead;
    return OnRead(current, actions);
  }
  if (role_ == Role::kPrimary) {
    Settle(desired_, actions);
    return Advance(actions);
  }
  BecomePrimary(desired_, actions);
}

void Protocol::End(absl::Status status, Actions* actions) {
  role_ = Role::kEnded;
  serving_ = false;
  Refuse(absl::UnavailableError(status.message()), actions);
  Add(actions, Kind::kEnd);
  actions->back().status = std::move(status);
}

void Protocol::DecideStart(const ShardPlacement& found, Actions* actions) {
  // The compare-and-set may have succeeded although its outcome was unknown.
  if (found.primary.id == self_.id) return BecomePrimary(found, actions);
  if (found.version > 0) return BecomeLearner(found, actions);
  CompareAndSet({.term = 1, .primary = self_}, actions);
}

// Learners and followers.

void Protocol::BecomeLearner(const ShardPlacement& placement, Actions* actions) {
  role_ = Role::kLearner;
  placement_ = placement;
  doubt_ = Doubt::kNone;
  dead_version_ = 0;
  applied_ = asked_to_ = false;
  if (fault_ != Fault::kIdReused) self_.id = absl::StrCat(life_, "-", ++copies_);
  Add(actions, Kind::kBeginCopy, self_);
  actions->back().placement = placement_;
}

void Protocol::Doubted(Doubt doubt, Actions* actions) {
  if (role_ != Role::kLearner && role_ != Role::kFollower) return;
  // Only this doubt may lead to a takeover, so that no other replaces it.
  if (doubt_ != Doubt::kPrimaryLost) doubt_ = doubt;
  if (pending_ == Pending::kNothing) Read(actions);
}

void Protocol::OnPrimaryLost(uint64_t term, Actions* actions) {
  if (term == placement_.term) Doubted(Doubt::kPrimaryLost, actions);
}

void Protocol::OnPrimaryHeard(uint64_t term) {
  if (role_ != Role::kLearner && role_ != Role::kFollower) return;
  if (term == placement_.term && doubt_ == Doubt::kPrimaryLost) doubt_ = Doubt::kNone;
}

void Protocol::OnUnlinked(absl::string_view id, Actions* actions) {
  if (id == self_.id) Doubted(Doubt::kUnlinked, actions);
}

void Protocol::OnTold(const ShardPlacement& placement, Actions* actions) {
  if (role_ != Role::kLearner && role_ != Role::kFollower) return;
  if (placement.version <= placement_.version) return;
  if (placement.term != placement_.term) return Doubted(Doubt::kUnlinked, actions);
  placement_ = placement;
  role_ = placement.IsInSync(self_.id) ? Role::kFollower : Role::kLearner;
}

void Protocol::OnAttachFailed(absl::string_view id, Actions* actions) {
  if (role_ != Role::kLearner || id != self_.id) return;
  doubt_ = Doubt::kNotAttached;
  if (pending_ != Pending::kNothing) return;  // the document is read in any case
  Add(actions, Kind::kProbe, placement_);
}

void Protocol::OnMismatch(const absl::Status& why, Actions* actions) {
  if (role_ == Role::kLearner || role_ == Role::kFollower) End(why, actions);
}

void Protocol::OnProbed(uint64_t version, bool anyone_may_live, Actions* actions) {
  if (role_ != Role::kLearner || version != placement_.version || pending_ != Pending::kNothing) return;
  if (doubt_ != Doubt::kNotAttached) return;
  if (anyone_may_live) {
    dead_version_ = 0;
    return Wait(actions);
  }
  // A follower may have taken over, and have died, since this process has read the document.
  dead_version_ = version;
  if (fault_ == Fault::kLostTooEarly) {
    pending_ = Pending::kRead;
    return OnRead(placement_, actions);
  }
  Read(actions);
}

void Protocol::DecideFollower(const ShardPlacement& found, Actions* actions) {
  const Doubt doubt = std::exchange(doubt_, Doubt::kNone);
  if (found.term != placement_.term) return BecomeLearner(found, actions);
  placement_ = found;
  const bool in_sync = found.IsInSync(self_.id);
  role_ = in_sync ? Role::kFollower : Role::kLearner;
  switch (doubt) {
    case Doubt::kNone:
      return;
    case Doubt::kPrimaryLost:
      if (in_sync || fault_ == Fault::kAnyoneTakesOver) return TakeOver(actions);
      return BecomeLearner(found, actions);
    case Doubt::kUnlinked:
      if (!in_sync) return BecomeLearner(found, actions);
      // The primary is about to remove this copy from the document, or it dies before.
      doubt_ = doubt;
      return Wait(actions);
    case Doubt::kNotAttached:
      if (dead_version_ != found.version) return BecomeLearner(found, actions);
      return End(Lost(found), actions);
  }
}

// Takeover.

absl::Status Protocol::OnTakeOver(absl::string_view id, const ShardPlacement& placement, Actions* actions) {
  const bool follows = role_ == Role::kLearner || role_ == Role::kFollower;
  if (id != self_.id || (!follows && !asked_to_)) {
    return absl::FailedPreconditionError(absl::StrCat("copy ", id,
                                                      " was asked to take over, and this is copy ",
                                                      Name(self_), follows ? "" : ", which is no follower"));
  }
  if (!follows) return absl::OkStatus();
  OnTold(placement, actions);
  if (placement != placement_ || role_ != Role::kFollower) {
    return absl::FailedPreconditionError(
        absl::StrCat("copy ", Name(self_), " was asked to take over from version ", placement.version,
                     " of the placement document, and knows version ", placement_.version,
                     role_ == Role::kFollower ? "" : ", in which it is not in sync"));
  }
  if (pending_ != Pending::kNothing) {
    return absl::UnavailableError(
        absl::StrCat("copy ", Name(self_), " is reading the placement document: ask again soon"));
  }
  asked_to_ = true;
  doubt_ = Doubt::kNone;
  TakeOver(actions);
  return absl::OkStatus();
}

void Protocol::TakeOver(Actions* actions) {
  role_ = Role::kTakingOver;
  applied_ = false;
  // The old primary can acknowledge nothing more that this copy lacks: it would need this copy to
  // store it, or the document to name it no more, and then the compare-and-set below fails.
  if (fault_ != Fault::kLateClose) Add(actions, Kind::kCloseAppends);
  Add(actions, Kind::kApplyReceived);
}

void Protocol::OnApplied(absl::string_view id, Actions* actions) {
  if (role_ != Role::kTakingOver || id != self_.id || applied_) return;
  applied_ = true;
  DecideTakeover(placement_, actions);
}

void Protocol::DecideTakeover(const ShardPlacement& found, Actions* actions) {
  if (found.primary.id == self_.id) return BecomePrimary(found, actions);
  // Another follower was faster, or the primary lives and has removed this copy.
  bool may = found.term == placement_.term && (found.IsInSync(self_.id) || fault_ == Fault::kAnyoneTakesOver);
  // The primary that has asked goes on: it has changed the document.
  if (asked_to_ && found.version != placement_.version) {
    may = fault_ == Fault::kTakesOverLate && found.term == placement_.term;
  }
  if (!may) return BecomeLearner(found, actions);
  placement_ = found;
  CompareAndSet({.term = found.term + 1,
                 .primary = self_,
                 .failovers = found.failovers + (asked_to_ ? 0 : 1),
                 .handovers = found.handovers + (asked_to_ ? 1 : 0)},
                actions);
}

void Protocol::OnCopyFailed(absl::string_view id, Actions* actions) {
  const bool copies = role_ == Role::kLearner || role_ == Role::kFollower || role_ == Role::kTakingOver;
  // The new copy is not in sync, whatever the document says of this one.
  if (copies && id == self_.id && pending_ != Pending::kCompareAndSet) BecomeLearner(placement_, actions);
}

// The primary.

void Protocol::BecomePrimary(const ShardPlacement& placement, Actions* actions) {
  role_ = Role::kPrimary;
  placement_ = placement;
  members_.clear();
  served_.clear();
  attempted_.clear();
  unsettled_ = removing_ = removal_asked_ = told_ = held_ = held_over_ = false;
  hand_over_to_ = {};
  serving_ = true;
  if (fault_ == Fault::kLateClose) Add(actions, Kind::kCloseAppends);
  Add(actions, Kind::kLead, placement_);
  Add(actions, Kind::kServe);
}

void Protocol::Depose(const ShardPlacement& by, Actions* actions) {
  if (told_ && by.primary.id == hand_over_to_.id) {
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
  for (const auto& [id, member] : members_) ids.push_back(id);
  for (const std::string& id : ids) OnLinkEnded(id, actions);
  Advance(actions);
}

void Protocol::OnAllowFollowers() { removing_ = removal_asked_ = false; }

// Hand-over.

absl::Status Protocol::OnHandOver(absl::string_view id, Actions* actions) {
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
  held_ = told_ = held_over_ = false;
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
