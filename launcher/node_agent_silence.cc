// SPDX-License-Identifier: Apache-2.0
// What a node does about processes that hang.

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "launcher/node_agent.h"
#include "launcher/process/proc_status.h"

namespace tandem::launcher {
namespace {

// A busy machine may take that long to end a process.
constexpr absl::Duration kAtLeastAfterKill = absl::Seconds(5);

}  // namespace

void NodeAgent::OnTick(absl::Time now) {
  tick_at_ = now + beats_.interval();
  // The store judges by these calls as well whether this launcher has run.
  if (services_.membership() != nullptr) services_.membership()->Tick(local_->options().lease / 2);
  if (phase_ != Phase::kRunning && phase_ != Phase::kSettling) return;
  for (const RoundProcesses::Slot* slot : beats_.Look(now, local_->slots())) {
    slot->process->SetLost();
    // The job goes on without a process that is restarted alone, which it is when it ends after all.
    if (slot->planned.role->restart == Restart::kAlone && !local_->OnlyLostLeft()) continue;
    FailBecauseOfLost();
  }
}

absl::Duration NodeAgent::AfterKill() const { return std::max(local_->options().lease, kAtLeastAfterKill); }

void NodeAgent::LoseUnkilled() {
  deadline_ = MonotonicNow() + AfterKill();
  for (const RoundProcesses::Slot& slot : local_->slots()) {
    Process* const process = slot.process;
    // A large process needs time to free its memory.
    if (process == nullptr || process->lost() || ReadProcStatus(process->pid()).exiting) continue;
    beats_.SayLost(*process);
    process->SetLost();
  }
}

void NodeAgent::FailBecauseOfLost() {
  const Process* const lost = local_->FindLost();
  job_failure_ = absl::StrCat(lost->name(), " (pid ", lost->pid(), ") hangs, and does not end after SIGKILL",
                              local_->OnlyLostLeft() ? "; the others have finished" : "");
  NoteFailure(absl::ZeroDuration());
}

}  // namespace tandem::launcher
