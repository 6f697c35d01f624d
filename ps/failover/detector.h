// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_DETECTOR_H_
#define TANDEM_PS_FAILOVER_DETECTOR_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"

namespace tandem::ps {

// Decides by the time of messages which copies of a shard are silent. A mistake costs time, never data: the
// protocol is safe whatever this class says. Not thread-safe.
//
// All times are of the monotonic clock, except those of the lease: a primary whose machine was suspended has
// been silent for its followers meanwhile, so its lease is a time of the boot clock. A follower that was
// suspended may wait longer than it has to.
class Detector {
 public:
  // `lease`: after this time without a message a follower holds its primary for lost; and a primary that has
  // not heard a follower which may take over for so long must not answer. `silence`, which is shorter: after
  // this time without an answer a primary goes on without a follower. `stall`: the same after this time in
  // which the follower has stored nothing, though there were records for it.
  Detector(absl::Duration lease, absl::Duration silence, absl::Duration stall = absl::InfiniteDuration())
      : lease_(lease), silence_(silence), stall_(stall) {}

  // Must be called often, before the questions below. A call that comes later than kLate after the one before
  // means that this process has slept (SIGSTOP, a suspended machine): the others were not silent meanwhile.
  void Tick(absl::Time now);

  // A follower. Its primary counts as heard when it begins to follow.
  void Follow(absl::Time now) { primary_heard_ = now; }
  void PrimaryHeard(absl::Time now) { primary_heard_ = now; }
  bool IsPrimaryLost(absl::Time now) const { return now - primary_heard_ >= lease_; }
  absl::Duration PrimarySilence(absl::Time now) const { return now - primary_heard_; }

  // A primary. `sent` is the time at which the message was sent that the follower has answered: after that
  // moment it waits for a whole lease before it takes over.
  void StartLink(const std::string& id, const ClockReading& now) {
    links_[id] = {.lease_from = now.boot, .heard = now.monotonic, .moved = now.monotonic};
  }
  void EndLink(const std::string& id) { links_.erase(id); }
  void EndAllLinks() { links_.clear(); }
  void FollowerHeard(const std::string& id, const ClockReading& sent);
  // The follower has stored the records up to `position`, and `last` is the log's last one. To be called
  // often. A follower that has stalled counts as silent until it has stored everything that was in the log at
  // the call before.
  void FollowerStored(const std::string& id, uint64_t position, uint64_t last, absl::Time now);
  // The follower is taken for dead: its link counts as silent until an answer comes to a message that was
  // sent after `time`. InfiniteFuture: the link has ended for good.
  void TakeForDead(const std::string& id, absl::Time time);
  // Return the links whose state has changed since the last call.
  struct Changes {
    std::vector<std::string> silent;
    std::vector<std::string> heard;
  };
  Changes TakeChanges(absl::Time now);
  // Lets the next call of TakeChanges return the link as silent if it is, also if an earlier one has done so.
  // Whether the follower has stalled is counted from now on.
  void ReportSilenceAgain(const std::string& id, absl::Time now);
  // Returns the links without an answer for `quiet`.
  std::vector<std::string> Quiet(absl::Duration quiet, absl::Time now) const;
  // Returns the time of the boot clock before which none of the followers `ids` can hold this primary for
  // lost; InfinitePast if one of them has no link, InfiniteFuture if there are none.
  absl::Time LeaseEnd(const std::vector<std::string>& ids) const;
  bool HoldsLease(const std::vector<std::string>& ids, absl::Time boot_now) const {
    return boot_now < LeaseEnd(ids);
  }

  static constexpr absl::Duration kLate = absl::Milliseconds(500);

 private:
  struct Link {
    absl::Time lease_from;  // of the boot clock; never moved
    absl::Time heard;       // for silence: moved by sleeps of this process
    absl::Time moved;       // when it last stored a record, or lacked none; moved by sleeps of this process
    absl::Time dead = absl::InfinitePast();  // of TakeForDead
    uint64_t position = 0;
    uint64_t last = 0;  // position of the log at the last call of FollowerStored
    bool stalled = false;
    bool silent = false;
  };
  absl::Duration lease_;
  absl::Duration silence_;
  absl::Duration stall_;
  absl::Time last_tick_ = absl::InfinitePast();
  absl::Time primary_heard_ = absl::InfinitePast();
  std::map<std::string, Link> links_;  // by id of the copy
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_DETECTOR_H_
