// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_DETECTOR_H_
#define TANDEM_PS_FAILOVER_DETECTOR_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tandem::ps {

// Decides by the time of messages which copies of a shard are silent. A mistake costs time, never data: the
// protocol is safe whatever this class says. All times are of the monotonic clock. Not thread-safe.
class Detector {
 public:
  // `lease`: after this time without a message a follower holds its primary for lost; and a primary that has
  // not heard a follower which may take over for so long must not answer. `silence`, which is shorter: after
  // this time without an answer a primary goes on without a follower.
  Detector(absl::Duration lease, absl::Duration silence) : lease_(lease), silence_(silence) {}

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
  void StartLink(const std::string& id, absl::Time now) { links_[id] = {.sent = now, .heard = now}; }
  void EndLink(const std::string& id) { links_.erase(id); }
  void EndAllLinks() { links_.clear(); }
  void FollowerHeard(const std::string& id, absl::Time sent);
  // Return the links whose state has changed since the last call.
  struct Changes {
    std::vector<std::string> silent;
    std::vector<std::string> heard;
  };
  Changes TakeChanges(absl::Time now);
  // Lets the next call of TakeChanges return the link as silent if it is, also if an earlier one has done so.
  void ReportSilenceAgain(const std::string& id);
  // Returns the links without an answer for `quiet`.
  std::vector<std::string> Quiet(absl::Duration quiet, absl::Time now) const;
  // Returns whether none of the followers `ids` can hold this primary for lost.
  bool HoldsLease(const std::vector<std::string>& ids, absl::Time now) const;

  static constexpr absl::Duration kLate = absl::Milliseconds(500);

 private:
  struct Link {
    absl::Time sent;   // for the lease: never moved
    absl::Time heard;  // for silence: moved by sleeps of this process
    bool silent = false;
  };
  absl::Duration lease_;
  absl::Duration silence_;
  absl::Time last_tick_ = absl::InfinitePast();
  absl::Time primary_heard_ = absl::InfinitePast();
  std::map<std::string, Link> links_;  // by id of the copy
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_DETECTOR_H_
