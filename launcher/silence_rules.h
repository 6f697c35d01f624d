// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_SILENCE_RULES_H_
#define TANDEM_LAUNCHER_SILENCE_RULES_H_

// Decides which processes of a node hang, by the counters that they advance (cluster/membership/beat.h), and
// which of them the launcher may end. BeatWatch reads the counters and ends the processes.
//
// A process whose counter has stood still for a lease is silent. The rules err towards patience:
//
//   - A process that has not joined the job is never silent.
//   - The silence of all begins anew if the launcher itself was late by more than half a lease: it was
//     stopped, or the machine was.
//   - A process is not ended while a debugger holds it, while it dumps its core, or while it exits.
//   - If a quarter of the node's processes, and at least two, are silent together, the machine stalls, and
//     nobody is ended. Afterwards the silence of all begins anew.
//   - Of each role at most one process is ended per lease.
//
// The race with the job's store. The store ends the job if the heartbeats of a member, one per quarter of a
// lease, stop for longer than a lease and a half (Membership::Tick). A process that stops at
// time T has sent its last heartbeat at T - lease / 4 or later, so the store acts at T + 5/4 lease at the
// earliest. The launcher acts at T + lease + 2 * interval() at the latest: it may see the last beat one
// interval late and the end of the lease one interval late. That is T + 9/8 lease. So a process that hangs on
// a machine that runs is ended by its launcher, and only the rule of its role applies; the store decides
// about machines and networks.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tandem::launcher {

// Not thread-safe.
class SilenceRules {
 public:
  explicit SilenceRules(absl::Duration lease) : lease_(lease) {}

  // How often Look must be called, and the time between two beats of a process.
  static absl::Duration Interval(absl::Duration lease) { return lease / 16; }
  absl::Duration interval() const { return Interval(lease_); }

  // A running process, as its counter shows it.
  struct Beat {
    int id = 0;          // never used again for another process
    std::string role;    // "worker"
    uint64_t count = 0;  // 0: no process has joined
  };
  // A process whose counter stands still, as the kernel shows it.
  struct Finding {
    bool joined = true;    // the process that has advanced the counter still exists
    bool traced = false;   // a debugger holds it
    bool dumping = false;  // it writes its core
    bool exiting = false;  // it frees its memory
  };
  struct Silent {
    int id = 0;
    absl::Duration silence;
  };
  struct Verdict {
    std::vector<Silent> end;  // to be ended now
    // For messages. Each is reported once, until the process advances its counter again.
    std::vector<Silent> traced, dumping;
    // Did not end within a lease after Look had returned them in `end`.
    std::vector<Silent> lost;
    // A stall of the machine has begun: so many processes are silent together, of so many. 0: it has not.
    int stalled = 0, joined = 0;
  };
  // `beats` are all running processes of the node. `examine` is called for those whose counter has not moved
  // for half a lease, and for those that do not end.
  Verdict Look(absl::Time now, const std::vector<Beat>& beats, const std::function<Finding(int id)>& examine);

 private:
  struct State {
    std::string role;
    uint64_t count = 0;
    bool joined = false;
    absl::Time moved;                           // when the counter was seen to move
    absl::Time ended = absl::InfiniteFuture();  // when Look returned it in `end`
    bool told = false;                          // in `traced`, `dumping` or `lost`
  };
  // Takes over the counters. Forgets processes that do not run any more.
  void Update(absl::Time now, const std::vector<Beat>& beats);
  void BeginAnew(absl::Time now);

  const absl::Duration lease_;
  absl::Time last_look_ = absl::InfinitePast();
  bool stalled_ = false;
  std::map<int, State> states_;                 // by id
  std::map<std::string, absl::Time> last_end_;  // by role
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_SILENCE_RULES_H_
