// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/protocol.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ps/failover/protocol_actions.h"

namespace tandem::ps {
namespace {

using internal::Add;
using internal::Name;
using internal::Refuse;
using Kind = Protocol::Action::Kind;

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

Protocol::Protocol(std::string life, std::string address, int min_copies, Fault fault, bool fresh)
    : life_(std::move(life)),
      min_copies_(min_copies),
      fault_(fault),
      fresh_(fresh),
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
  actions->back().expected =
      misses_placement_ && fault_ == Fault::kTakesOverUnplaced ? 0 : placement_.version;
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
  misses_placement_ = found.version == 0 && (asked_version_ > 0 || !fresh_);
  if (found.version == 0 && asked_version_ > 0) return DecideWithoutPlacement(actions);
  if (found.version < asked_version_) {
    return End(
        absl::DataLossError(absl::StrCat(
            "the placement document of the shard has version ", found.version, ", but version ",
            asked_version_,
            " was in force: the job's store has lost it, and a copy has begun the shard anew (--fresh). "
            "Start the job again; it begins at its newest checkpoint")),
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
    case Role::kSteppingDown:  // reads nothing
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
  misses_placement_ = false;
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
  if (!fresh_ && fault_ != Fault::kBeginsUnasked) return Wait(actions);
  CompareAndSet({.term = 1, .primary = self_}, actions);
}

// The loss of the document.

void Protocol::OnBoardReset(Actions* actions) {
  if (role_ == Role::kStarting) fresh_ = false;
  if (role_ == Role::kPrimary && pending_ == Pending::kNothing) Read(actions);
}

void Protocol::DecideWithoutPlacement(Actions* actions) {
  switch (role_) {
    case Role::kPrimary: {
      if (fault_ == Fault::kPublishesUnasked) return PublishAgain(actions);
      pending_ = Pending::kAsk;
      ShardPlacement asked = placement_;
      asked.in_sync.clear();
      for (const std::string& id : MayTakeOver()) {
        const auto member = members_.find(id);
        if (member != members_.end()) asked.in_sync.push_back(member->second.copy);
      }
      return Add(actions, Kind::kAskCopies, asked);
    }
    case Role::kLearner:
    case Role::kFollower:
      if (doubt_ == Doubt::kPrimaryLost && fault_ == Fault::kTakesOverUnplaced) {
        return DecideFollower(placement_, actions);
      }
      // The primary may be alive, and have removed this copy before the document was lost.
      if (doubt_ == Doubt::kPrimaryLost) return BecomeLearner(placement_, actions);
      return DecideFollower(placement_, actions);
    case Role::kTakingOver:
      // Whether its compare-and-set was in force before the document was lost does not matter: this process
      // has not served, and gives the takeover up.
      if (fault_ == Fault::kTakesOverUnplaced) return DecideTakeover(placement_, actions);
      return BecomeLearner(placement_, actions);
    case Role::kStarting:
    case Role::kSteppingDown:  // reads nothing
    case Role::kEnded:
      return;
  }
}

void Protocol::OnCopiesAsked(uint64_t version, bool all_deny, Actions* actions) {
  if (pending_ != Pending::kAsk || role_ != Role::kPrimary || version != placement_.version) return;
  pending_ = Pending::kNothing;
  all_deny ? PublishAgain(actions) : Wait(actions);
}

void Protocol::OnNoPlacement(absl::string_view why, Actions* actions) {
  if (!misses_placement_) return;
  if (role_ == Role::kPrimary) {
    End(absl::DataLossError(absl::StrCat("the job's store has lost the placement document of the shard, and "
                                         "its primary cannot publish it again: ",
                                         why, ". Start the job again; it begins at its newest checkpoint")),
        actions);
  } else if (role_ == Role::kStarting) {
    End(absl::FailedPreconditionError(
            absl::StrCat("the shard has no primary, and this copy may not begin it anew: ", why,
                         ". If the shard has never had one, or is lost, start one copy with --fresh")),
        actions);
  }
}

void Protocol::PublishAgain(Actions* actions) {
  pending_ = Pending::kCompareAndSet;
  asked_version_ = placement_.version;
  desired_ = placement_;
  // A change of this process whose outcome it does not know may have had the next version.
  desired_.version = placement_.version + 2;
  Add(actions, Kind::kCompareAndSet, desired_);
  actions->back().expected = 0;
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

}  // namespace tandem::ps
