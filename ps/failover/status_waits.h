// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_STATUS_WAITS_H_
#define TANDEM_PS_FAILOVER_STATUS_WAITS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ps/failover/placement.h"
#include "ps/failover/protocol.h"

namespace tandem::ps {

// Holds what a process knows about its shard, and the calls that wait for that to change. Thread-safe.
class StatusWaits {
 public:
  struct Known {
    ShardPlacement placement;
    Copy self;
    Protocol::Role role = Protocol::Role::kStarting;
    bool serving = false;
    std::set<std::string> linked;  // copies to which this process has a link
    std::string failure;
    absl::Duration takeover;        // duration of the takeover by which this process became primary
    absl::Duration handover_pause;  // for which calls waited, if that was a hand-over
    std::string handing_over_to;    // address
    bool operator==(const Known&) const = default;
  };
  // A call that waits. It is answered once one of these holds.
  //
  //   - the document has another version than `version`
  //   - the role is another than when the call came
  //   - the copy `linked` has no link; not if `linked` is empty
  //   - Expire was called with a time at or after `deadline`
  //   - Expire was called, and `gone`, unless empty, says that nobody waits for the answer any more
  struct Wait {
    uint64_t version = 0;
    std::string linked;
    absl::Time deadline;
    std::function<bool()> gone;   // runs with the lock; must not block
    std::function<void()> reply;  // runs once, without locks, on any thread; must not block
  };

  Known known() const;
  // Replaces what is known and answers calls. Returns false, and does nothing, if nothing has changed.
  bool Publish(Known known);
  // Answers the call at once if nothing is to be waited for, or after Stop.
  void Await(Wait wait);
  void Expire(absl::Time now);
  // Answers all calls, also later ones.
  void Stop();

 private:
  struct Waiting {
    Wait wait;
    Protocol::Role role;
  };
  bool IsOver(const Waiting& waiting, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer(absl::Time now);

  mutable absl::Mutex mutex_;
  Known known_ ABSL_GUARDED_BY(mutex_);
  std::list<Waiting> waits_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_STATUS_WAITS_H_
