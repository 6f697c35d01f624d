// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_PROTOCOL_H_
#define TANDEM_PS_FAILOVER_PROTOCOL_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ps/failover/lineage.h"
#include "ps/failover/placement.h"

namespace tandem::ps {

// Decides which role a process has that holds a copy of a shard, who is in sync, and when it takes over.
// It is a state machine without threads, clock, network or disk. Each event changes the state and appends
// actions, which the caller must carry out in their order.
//
// ps/failover/replica.h drives it in a process. tests/ps/failover explores all states of small worlds, and
// simulates large ones. It follows PacificA (Lin et al., 2008), with a compare-and-set in place of its
// configuration manager.
//
// The role of a process changes as follows.
//
//   - STARTING to PRIMARY: there is no document, this process may begin the shard (`fresh`), and the
//     compare-and-set that names it succeeds.
//   - STARTING to LEARNER: the document names another primary.
//   - LEARNER to FOLLOWER: the copy is complete, and the document names it as in sync.
//   - FOLLOWER to TAKING_OVER: the primary is lost, and the document still names this copy; or the
//     primary hands over to it (OnTakeOver).
//   - TAKING_OVER to PRIMARY: the compare-and-set succeeded.
//   - any of these to LEARNER: another copy became primary; the tables are copied anew unless they are a
//     prefix of what the new primary has.
//   - PRIMARY to STEPPING_DOWN: another copy has taken over as asked, and says so.
//   - STEPPING_DOWN to LEARNER: nothing changes the tables any more but the new primary's log.
//   - PRIMARY to ENDED: deposed, or another copy has taken over as asked and this process leaves, or does not
//     know for sure what has become of its hand-over: the process must end.
//   - LEARNER to ENDED: the primary and all followers in sync are dead, the shard is lost.
//
// What holds, whatever messages are lost, repeated or reordered, whenever processes die or are wrongly taken
// for dead, and if the outcome of a compare-and-set stays unknown:
//
//   I1  A position of a term is the same record in every copy of that term.
//   I2  A push is acknowledged only if every copy has its record that could take over.
//   I3  The primary waits for all followers that the document may name as in sync: a follower joins this set
//       (WaitSet) before the document names it, and leaves the set afterwards.
//   I4  Only a copy that the document names as in sync becomes primary, each time in a larger term.
//   I5  A copy refuses messages of terms before the largest that it knows, and all messages from before its
//       own compare-and-set on (AppendFence).
//       A primary that has asked a follower to take over answers nothing until it has changed the document.
//       The follower may take over only in the version in which it was asked.
//   I6  The id of a copy is never used again. A copy that begins anew has a new id, and is not in sync.
//   I7  An earlier primary tells its successor what its tables contain when no call of its time can change
//       them any more. Only if the successor had all of that when it took over (Lineage), they stay.
//
//   I8  If the board has lost the document, nobody takes over and nobody is removed. The primary publishes
//       the document again, by a compare-and-set from version 0, once every copy that could take over denies
//       that it knows a larger term. A takeover that was under way is given up before its copy denies that.
//       A call to a board that has lost its memory since does not reach its next memory.
//
// Detection of deaths is the caller's. A wrong OnPrimaryLost, OnFollowerSilent or OnLinkEnded costs time
// only; a wrong OnProbed gives the shard up.
//
// A plain value, which tests copy. Not thread-safe. Events that come late, for a copy, term or link that is
// over, have no effect.
class Protocol {
 public:
  enum class Role { kStarting, kLearner, kFollower, kTakingOver, kPrimary, kSteppingDown, kEnded };

  struct Action {
    enum class Kind {
      // The board. At most one of these four is under way; its event must follow.
      kRead,           // read the document, then OnRead or OnReadFailed
      kCompareAndSet,  // from version `expected` to `placement`, then OnCompareAndSet
      kWait,           // call OnWaited after a while
      kAskCopies,      // the board has lost the document: ask the copies in `placement.in_sync`, which could
                       // take over, for the terms that they know, then OnCopiesAsked
      // Learners and followers.
      kBeginCopy,  // open the fence for `copy`, this process's new copy, and the primary of `placement`; then
                   // call Attach there with what the tables contain; OnAttachFailed if that fails. Drop the
                   // tables now if they are not whole, else when the primary sends others.
      kProbe,      // find out if the primary or one of the followers of `placement` lives, then OnProbed
      kCloseAppends,   // close the fence: no message is stored from now on
      kApplyReceived,  // apply everything that is stored, then OnApplied
      // The primary.
      kLead,              // begin to log and serve as the primary of `placement`, whose in_sync is empty
      kStartLink,         // copy the shard to `copy`, unless it can continue with what it has (`held`,
                          // ps/failover/lineage.h), and ship the log; OnComplete, ... follow
      kEndLink,           // end the link to `copy`, which is not in the wait set
      kRequire,           // add `copy` to the wait set, then OnCaughtUp once it has caught up
      kRelease,           // remove `copy` from the wait set
      kConfirm,           // `placement` is in force: these followers are in sync (WaitSet::Confirm)
      kServe,             // answer calls (again)
      kRefuse,            // answer no call: `status` says why
      kFollowersRemoved,  // answers OnRemoveFollowers
      kTellTakeOver,      // ask the follower `copy` to take over from `placement`, then OnHandedOver or
                          // OnHandOverFailed, soon
      kStepDown,          // end all links, finish the calls that wait, let those under way end, and take no
                          // more that change the tables; then OnSteppedDown of `copy`
      // Every role.
      kEnd,  // the process must end with `status`
    };
    Kind kind;
    Copy copy = {};
    ShardPlacement placement = {};
    uint64_t expected = 0;
    absl::Status status = absl::OkStatus();
    Lineage held = {};
  };
  using Actions = std::vector<Action>;

  enum class Outcome { kDone, kChanged, kUnknown };

  // Faults that tests plant, to show that the explorer finds them.
  enum class Fault {
    kNone,
    kLearnerInSync,       // the document names a follower whose copy is not complete
    kJoinWithoutBarrier,  // the document names a follower that has not caught up
    kEarlyRelease,        // the wait set shrinks before the compare-and-set
    kUnknownIsDone,       // an unknown outcome is taken for success
    kReadSettles,         // a read settles an unknown outcome
    kAnyoneTakesOver,     // a copy takes over that is not in sync
    kLateClose,           // the fence is not closed before a takeover
    kIdReused,            // a copy that begins anew keeps its id
    kForgetsIds,          // a delayed Attach begins a second link to the same copy
    kLostTooEarly,        // the shard is given up without a second look at the document
    kServesAfterTold,     // a primary goes on that has asked a follower to take over
    kTakesOverLate,       // a follower that was asked takes over in a later version, though not in sync
    kFollowsTooEarly,     // an earlier primary follows while calls of its time still change the tables
    kRemovalReleases,     // followers that are removed leave the wait set before the compare-and-set
    kBeginsUnasked,       // a copy begins the shard anew though the board has lost its document
    kPublishesUnasked,    // a primary publishes a lost document without asking the other copies
    kTakesOverUnplaced,   // a follower takes over though the board has lost the document
  };

  // `life` is random, and unique among all processes of all times. `address` is where this process serves.
  // With min_copies = n a primary takes no follower out of the document if fewer than n - 1 would remain: it
  // acknowledges nothing without them in any case, and the last ones can still take over. With `fresh` the
  // process may become the primary of an empty shard if there is no document; otherwise it waits for one.
  Protocol(std::string life, std::string address, int min_copies = 1, Fault fault = Fault::kNone,
           bool fresh = true);

  Role role() const { return role_; }
  // Returns the present copy of this process.
  const Copy& self() const { return self_; }
  // Returns the newest document that this process knows to have been in force; version 0: none.
  const ShardPlacement& placement() const { return placement_; }
  bool serving() const { return serving_; }

  // Begins. To be called once.
  void Start(Actions* actions);

  // Answers of the board.
  void OnRead(const ShardPlacement& found, Actions* actions);  // version 0: there is no document
  void OnReadFailed(Actions* actions);
  // `current` is the document that was found, if the outcome is kChanged.
  void OnCompareAndSet(Outcome outcome, const ShardPlacement& current, Actions* actions);
  void OnWaited(Actions* actions);
  // The board has lost its memory, or may have. A process that has not started may not begin the shard any
  // more; a primary looks whether its document is there.
  void OnBoardReset(Actions* actions);
  // Every copy that was asked (kAskCopies) by a primary that knows `version` has denied that it knows a
  // larger term, or is gone for good; or not.
  void OnCopiesAsked(uint64_t version, bool all_deny, Actions* actions);
  // There has been no document for a long time: a primary cannot publish it again, or a process that may not
  // begin the shard has waited for one. `why` names what was waited for. The process ends.
  void OnNoPlacement(absl::string_view why, Actions* actions);
  // Returns whether the board had no document when it was last read, though there was one before, or though
  // this process must not begin without one.
  bool misses_placement() const { return misses_placement_; }

  // Learners and followers.
  //
  // Attach of the copy `id` failed: the callee did not answer, or refused it for now.
  void OnAttachFailed(absl::string_view id, Actions* actions);
  // Attach was refused for a reason that will not pass, such as another number of servers.
  void OnMismatch(const absl::Status& why, Actions* actions);
  // Nobody of the document `version` lives, or somebody may.
  void OnProbed(uint64_t version, bool anyone_may_live, Actions* actions);
  // The primary of `term` is dead, or was silent for the lease.
  void OnPrimaryLost(uint64_t term, Actions* actions);
  // The primary of `term` was heard after all.
  void OnPrimaryHeard(uint64_t term);
  // The primary says that it has no link to the copy `id`.
  void OnUnlinked(absl::string_view id, Actions* actions);
  // The primary says which document is in force.
  void OnTold(const ShardPlacement& placement, Actions* actions);
  // Everything that the copy `id` had stored is applied.
  void OnApplied(absl::string_view id, Actions* actions);
  // The copy `id` cannot be used any more: a record could not be applied.
  void OnCopyFailed(absl::string_view id, Actions* actions);

  // The primary.
  //
  // A copy that has `held` wants to be served. Returns OK if it is, now or already. FailedPrecondition: this
  // process is not the primary `primary` of `term`, or had served that copy before. Unavailable: followers
  // are being removed.
  absl::Status OnAttach(const Copy& copy, uint64_t term, absl::string_view primary, Actions* actions,
                        const Lineage& held = {});
  // The copy has the whole shard, and little of the log is on its way.
  void OnComplete(absl::string_view id, Actions* actions);
  // The copy has stored what was durable when it was added to the wait set (WaitSet::HasCaughtUp).
  void OnCaughtUp(absl::string_view id, Actions* actions);
  // The follower has not answered for a while; it has answered again, perhaps although OnLinkEnded has come.
  void OnFollowerSilent(absl::string_view id, Actions* actions);
  void OnFollowerHeard(absl::string_view id, Actions* actions);
  // The link cannot go on: the copy is gone, or too much waits for it.
  void OnLinkEnded(absl::string_view id, Actions* actions);
  // A copy knows a later term.
  void OnHigherTerm(uint64_t term, Actions* actions);
  // The lease began or ended: all followers that may take over were heard lately (MayTakeOver), or not.
  void OnLease(bool held, Actions* actions);
  // Ends all links. kFollowersRemoved follows when no copy may take over any more. Until OnAllowFollowers
  // nobody is served.
  void OnRemoveFollowers(Actions* actions);
  void OnAllowFollowers();

  // Hand-over, at the primary. Begins to hand over to the follower `id`, which is in sync: this process
  // answers no calls (kRefuse). OnAllStored or OnHandOverFailed must follow soon. With `stays` the process
  // goes on as a follower (kStepDown); it ends nevertheless if the answer to kTellTakeOver was lost.
  // FailedPrecondition: this process is not the primary, or `id` is not in sync. Unavailable: a change of the
  // document or another hand-over is under way, or the primary does not serve; try again.
  absl::Status OnHandOver(absl::string_view id, bool stays, Actions* actions);
  // All records are durable. kTellTakeOver follows.
  void OnAllStored(Actions* actions);
  // Something took too long, or the follower has refused. If the follower was asked, calls are answered again
  // once the document has changed, so that the follower cannot take over any more.
  void OnHandOverFailed(Actions* actions);
  // The follower says that it is the primary, by the document `by`.
  void OnHandedOver(const ShardPlacement& by, Actions* actions);
  // The copy `id` has carried kStepDown out. An error: its tables cannot be used.
  void OnSteppedDown(absl::string_view id, const absl::Status& status, Actions* actions);
  // Returns whether this process answers no calls because of a hand-over.
  bool handing_over() const { return held_; }
  // Returns whether the follower was asked, and has not answered.
  bool has_told() const { return told_ && !held_over_; }
  const Copy& hand_over_to() const { return hand_over_to_; }

  // Hand-over, at a follower: its primary asks the copy `id` to take over from `placement`. OK, also if that
  // has begun already: the follower takes over. FailedPrecondition: that document is not in force as far as
  // this process knows, or does not name this copy. Unavailable: the document is being read.
  absl::Status OnTakeOver(absl::string_view id, const ShardPlacement& placement, Actions* actions);

  // Returns the ids of the followers that the document names as in sync, or may name.
  std::vector<std::string> MayTakeOver() const;
  // Returns the copy `id` if this process is the primary and has a link to it, else nullptr.
  const Copy* FindCopy(absl::string_view id) const {
    const auto found = members_.find(std::string(id));
    return found == members_.end() ? nullptr : &found->second.copy;
  }

  // Hashes the whole state, for explorers.
  template <typename H>
  friend H AbslHashValue(H h, const Protocol& p) {
    return H::combine(std::move(h), p.role_, p.self_, p.placement_, p.pending_, p.desired_, p.asked_version_,
                      p.doubt_, p.dead_version_, p.applied_, p.members_, p.served_, p.attempted_,
                      p.unsettled_, p.serving_, p.removing_, p.removal_asked_, p.asked_to_, p.hand_over_to_,
                      p.told_, p.held_, p.held_over_, p.stays_, p.fresh_, p.misses_placement_);
  }

 private:
  // The call to the board that is under way.
  enum class Pending { kNothing, kRead, kCompareAndSet, kWait, kAsk };
  // Why a learner or follower reads the document.
  enum class Doubt { kNone, kPrimaryLost, kUnlinked, kNotAttached };
  struct Member {
    enum class State {
      kCopying,  // not in the wait set, not to be in sync
      kJoining,  // in the wait set, has not caught up
      kReady,    // in the wait set, to be in sync
      kLeaving,  // in the wait set, not to be in sync; the link lives
      kGone,     // the same; the link has ended, unless the copy is heard again
    };
    Copy copy;
    State state = State::kCopying;
    bool complete = false;
    template <typename H>
    friend H AbslHashValue(H h, const Member& m) {
      return H::combine(std::move(h), m.copy, m.state, m.complete);
    }
  };

  void Read(Actions* actions);
  void Wait(Actions* actions);
  void CompareAndSet(ShardPlacement desired, Actions* actions);
  void End(absl::Status status, Actions* actions);
  void Serve(Actions* actions);
  void Depose(const ShardPlacement& by, Actions* actions);
  void StepDown(const ShardPlacement& by, Actions* actions);
  void BecomeLearner(const ShardPlacement& placement, Actions* actions);
  void BecomePrimary(const ShardPlacement& placement, Actions* actions);

  void DecideStart(const ShardPlacement& found, Actions* actions);
  // The board has lost the document.
  void DecideWithoutPlacement(Actions* actions);
  // Publishes the document again.
  void PublishAgain(Actions* actions);
  void DecideFollower(const ShardPlacement& found, Actions* actions);
  void DecideTakeover(const ShardPlacement& found, Actions* actions);
  void TakeOver(Actions* actions);
  void DecidePrimary(const ShardPlacement& found, Actions* actions);
  void Doubted(Doubt doubt, Actions* actions);

  bool MayTakeOver(const std::string& id) const;
  // Brings members in line with the document in force, which is settled.
  void Settle(const ShardPlacement& placement, Actions* actions);
  // Changes the document if that is due and possible.
  void Advance(Actions* actions);
  Member* FindMember(absl::string_view id);

  std::string life_;
  int min_copies_;
  Fault fault_;
  bool fresh_;
  bool misses_placement_ = false;
  Role role_ = Role::kStarting;
  Copy self_;
  uint64_t copies_ = 0;  // that this process has begun
  ShardPlacement placement_;
  Pending pending_ = Pending::kNothing;
  ShardPlacement desired_;      // of the compare-and-set under way
  uint64_t asked_version_ = 0;  // that was known when the call under way began

  // Learners and followers.
  Doubt doubt_ = Doubt::kNone;
  uint64_t dead_version_ = 0;  // nobody of the document of this version lives
  bool applied_ = false;       // a takeover has applied everything
  bool asked_to_ = false;      // the primary has asked for the takeover

  // The primary.
  std::map<std::string, Member> members_;  // by id
  std::set<std::string> served_;           // ids of all copies to which there ever was a link in this term
  std::set<std::string> attempted_;        // ids in documents that this process may have put in force
  bool unsettled_ = false;                 // the outcome of a compare-and-set is unknown
  bool serving_ = false;
  bool removing_ = false;       // all followers
  bool removal_asked_ = false;  // kFollowersRemoved is due
  Copy hand_over_to_;           // while held_
  bool told_ = false;           // kTellTakeOver was an action, and the document has not changed since
  bool held_ = false;           // no calls are answered because of a hand-over
  bool held_over_ = false;      // the hand-over has failed: calls are answered once the document has changed
  bool stays_ = false;          // the process goes on as a follower after the hand-over
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_PROTOCOL_H_
