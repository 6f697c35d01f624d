// SPDX-License-Identifier: Apache-2.0
// Which events may happen in a world.

#include <algorithm>

#include "tests/ps/failover/world.h"

namespace tandem::ps::testing {

void World::Enabled(std::vector<Event>* events) const {
  const auto add = [&](Event::Kind kind, size_t who, int push = 0) {
    events->push_back({kind, static_cast<uint8_t>(who), static_cast<uint8_t>(push)});
  };
  for (int w = 0; w < kProcesses; ++w) {
    const Process& process = *processes_[w];
    if (!process.alive) {
      // A process that finds no primary but a follower would only wait.
      bool follower = false;
      for (const Copy& copy : store_.in_sync) follower = follower || Find(copy.id) >= 0;
      const bool useful = Find(store_.primary.id) >= 0 || !follower;
      if (budget_.restarts > 0 && useful) add(Event::Kind::kRestart, w);
      continue;
    }
    const Protocol& protocol = process.protocol;
    const Protocol::Role role = protocol.role();
    const bool copies = role == Protocol::Role::kLearner || role == Protocol::Role::kFollower;
    const int primary = Find(protocol.placement().primary.id);
    switch (process.board) {
      case Process::BoardCall::kCompareAndSet:
        add(Event::Kind::kCompareAndSet, w);
        if (budget_.unknown > 0) add(Event::Kind::kUnknownOutcome, w);
        break;
      case Process::BoardCall::kWait:
        // Without a document a copy waits for a primary, if there is one, and begins nothing.
        if (copies && misses_placement()) {
          if (!PrimaryLives()) add(Event::Kind::kWaited, w);
          break;
        }
        // A learner that waits for another primary would only begin the same again, unless nobody lives and
        // the store was away when it looked (SetReach).
        if (!copies || primary >= 0 || store_.IsInSync(protocol.self().id) ||
            store_.version != protocol.placement().version ||
            (reach_ != ~0u && std::none_of(store_.in_sync.begin(), store_.in_sync.end(),
                                           [&](const Copy& copy) { return Find(copy.id) >= 0; })))
          add(Event::Kind::kWaited, w);
        break;
      case Process::BoardCall::kNone:
        break;
    }
    const bool mistaken = budget_.mistaken > 0;
    if (process.attaching && (primary < 0 || mistaken)) add(Event::Kind::kAttachFails, w);
    // A learner that looks for a primary anyway would only begin the same again.
    const bool follows = store_.IsInSync(protocol.self().id) ||
                         (!process.attaching && process.board == Process::BoardCall::kNone);
    if (copies && follows && (primary < 0 || mistaken)) add(Event::Kind::kPrimaryLost, w);
    if (copies && primary >= 0 && processes_[primary]->protocol.role() == Protocol::Role::kPrimary) {
      const bool linked = std::any_of(links_.begin(), links_.end(), [&](const Shared<Link>& link) {
        return link->active && link->from == primary && link->copy == protocol.self().id;
      });
      if (!linked && !process.attaching) add(Event::Kind::kUnlinked, w);
      const bool newer = processes_[primary]->protocol.placement().version > protocol.placement().version;
      if (mistakes_ && newer) add(Event::Kind::kTold, w);
    }
    if (role == Protocol::Role::kPrimary && protocol.has_told()) {
      if (store_.primary.id == protocol.hand_over_to().id) add(Event::Kind::kHandedOver, w);
      add(Event::Kind::kHandOverFails, w);
    }
    if (role == Protocol::Role::kPrimary && budget_.handovers > 0 && protocol.serving() &&
        process.board == Process::BoardCall::kNone) {
      for (const Copy& copy : protocol.placement().in_sync) {
        if (const int to = Find(copy.id); to >= 0) add(Event::Kind::kHandOver, w, to);
      }
    }
    if (role == Protocol::Role::kPrimary && misses_placement() &&
        process.board == Process::BoardCall::kNone) {
      add(Event::Kind::kNotice, w);
    }
    if (role == Protocol::Role::kSteppingDown) add(Event::Kind::kSteppedDown, w);
    if (role == Protocol::Role::kPrimary && process.removing) add(Event::Kind::kLoad, w);
    if (role == Protocol::Role::kPrimary && budget_.loads > 0 && !process.removing && protocol.serving()) {
      add(Event::Kind::kRemove, w);
    }
    // Calls that were under way when a primary began to refuse others change its tables, too.
    if (role == Protocol::Role::kPrimary || process.calls) {
      for (int push = 0; push < pushes_; ++push) {
        // Pushes differ by their numbers only: the first one is sent first.
        if ((sent_ >> push) == 0 && push > 0 && (sent_ >> (push - 1)) == 0) break;
        // A push that waits already may be repeated, which must change nothing.
        const bool waits =
            (process.waiting >> push & 1) != 0 && path_fault_ != PathFault::kDuplicateAcknowledgedEarly;
        if (!waits && ((acknowledged_ >> push & 1) == 0 || !process.Contains(push))) {
          add(Event::Kind::kPush, w, push);
        }
      }
    }
    if (budget_.crashes > 0) add(Event::Kind::kCrash, w);
  }
  if (budget_.resets > 0) add(Event::Kind::kReset, 0);
  for (size_t i = 0; i < take_overs_.size(); ++i) {
    const int asked = Find(take_overs_[i].copy);
    if (asked < 0) continue;  // it copies under another id meanwhile
    const Protocol::Role role = processes_[asked]->protocol.role();
    if (role == Protocol::Role::kFollower || role == Protocol::Role::kLearner) add(Event::Kind::kTakeOver, i);
  }
  for (size_t i = 0; i < late_.size(); ++i) add(Event::Kind::kLateChange, i);
  for (size_t i = 0; i < attaches_.size(); ++i) {
    // A call that is repeated late matters only if the callee forgets whom it has served.
    const int caller = Find(attaches_[i].copy.id);
    const bool waits = caller >= 0 && processes_[caller]->attaching;
    const bool repeats = fault_ == Protocol::Fault::kForgetsIds;
    if (Find(attaches_[i].primary) >= 0 && (waits || repeats)) add(Event::Kind::kAttach, i);
  }
  for (size_t i = 0; i < links_.size(); ++i) {
    const Link& link = *links_[i];
    const int to = Find(link.copy), from = Find(link.primary);
    const bool leads =
        from >= 0 && link.active && processes_[from]->protocol.role() == Protocol::Role::kPrimary;
    if (to >= 0 && (processes_[to]->stored_number < link.messages.size() ||
                    link.answered.number < processes_[to]->stored_number)) {
      add(Event::Kind::kDeliver, i);
    }
    if (!leads) continue;
    if (!(link.answered == link.known)) add(Event::Kind::kAnswer, i);
    if (to < 0 || budget_.mistaken > 0) add(Event::Kind::kLinkEnded, i);
    if (to >= 0 && budget_.mistaken > 0) add(Event::Kind::kSilent, i);
    if (to >= 0 && mistakes_) add(Event::Kind::kHeard, i);
    if (processes_[link.to]->alive && processes_[link.to]->fence.term() > link.term)
      add(Event::Kind::kHigherTerm, i);
  }
}

}  // namespace tandem::ps::testing
