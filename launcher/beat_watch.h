// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_BEAT_WATCH_H_
#define TANDEM_LAUNCHER_BEAT_WATCH_H_

// Watches the beats of this node's processes, and ends those that hang by the rules of SilenceRules.

#include <vector>

#include "absl/time/time.h"
#include "launcher/process/processes.h"
#include "launcher/round_processes.h"
#include "launcher/silence_rules.h"

namespace tandem::launcher {

// For the launcher's main thread.
class BeatWatch {
 public:
  // `processes` is borrowed.
  BeatWatch(absl::Duration lease, Processes* processes)
      : lease_(lease), processes_(*processes), rules_(lease) {}

  // How often Look must be called.
  absl::Duration interval() const { return rules_.interval(); }
  // Looks at the running processes of `slots`, and kills those that hang. Says on the console who was silent
  // for how long and in which state, or why nobody is ended. Returns the slots whose process has not ended a
  // lease after it was killed. Each is returned once.
  std::vector<const RoundProcesses::Slot*> Look(absl::Time now,
                                                const std::vector<RoundProcesses::Slot>& slots);

  // Says that the process has not ended after SIGKILL.
  void SayLost(const Process& process);

 private:
  const absl::Duration lease_;
  Processes& processes_;
  SilenceRules rules_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_BEAT_WATCH_H_
