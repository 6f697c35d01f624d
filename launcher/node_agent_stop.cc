// SPDX-License-Identifier: Apache-2.0
// How a node stops its processes, and waits for the workers of the other nodes.

#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "launcher/node_agent.h"
#include "launcher/round_work.h"

namespace tandem::launcher {

using cluster::Rendezvous;

namespace {

// How the workers of a node have ended, for the launchers of the other nodes.
constexpr char kSaved[] = "saved", kUnsaved[] = "unsaved";
// How long one call waits for the workers of other nodes. It delays the calls of RoundMonitor::Tell after it.
constexpr absl::Duration kWorkersEndedWait = absl::Milliseconds(500);
// The number of these calls without an answer after which the store counts as gone.
constexpr int kUnanswered = 3;

}  // namespace

void NodeAgent::Stop(Next next, int exit_code, absl::Duration grace, int signal) {
  next_ = next;
  exit_code_ = exit_code;
  phase_ = Phase::kStopping;
  stop_grace_ = grace;
  deadline_ = MonotonicNow() + grace;
  if (control_ != nullptr && next == Next::kEnd) control_->Close("the job is over").IgnoreError();
  // A node that only leaves is not waited for, since the others form another round.
  await_others_ = next == Next::kEnd && asked_to_stop_ && closed_ && round_.has_value() &&
                  !OtherNodesWithWork(*round_).empty();
  local_->Terminate(signal);
  StopServers();
}

void NodeAgent::StopServers() {
  if (!processes_->OnlyServing()) return;
  // A node that only leaves the job is not awaited.
  if (next_ == Next::kEnd && closed_ && round_.has_value() && !ended_told_) {
    ended_told_ = true;
    const char* const outcome = unsaved_ ? kUnsaved : saved_ ? kSaved : "";
    monitor_->Tell([this, round = *round_, outcome](Rendezvous&) {
      rendezvous_->SendWorkersEnded(round, outcome);
      return absl::OkStatus();
    });
    if (await_others_ && local_->AllEnded()) {
      // The workers of the other nodes need the stores of this launcher while they save their state.
      await_others_ = (round_->group_rank == 0 && !InEtcd()) || rendezvous_->serves_store();
      if (await_others_) processes_->console().Say("waiting for the workers of the other nodes");
    }
    if (await_others_) AwaitOtherWorkers();
  }
  if (!await_others_ && local_->TerminateServing()) deadline_ = MonotonicNow() + stop_grace_;
}

void NodeAgent::AwaitOtherWorkers() {
  monitor_->Tell([this, epoch = round_->epoch, nodes = OtherNodesWithWork(*round_)](Rendezvous&) {
    auto outcomes = rendezvous_->AwaitWorkersEnded(epoch, nodes, kWorkersEndedWait);
    AgentEvent event{.kind = AgentEvent::Kind::kWorkersEnded, .status = outcomes.status()};
    if (outcomes.ok()) event.outcomes = *std::move(outcomes);
    monitor_->Post(std::move(event));
    return absl::OkStatus();
  });
}

void NodeAgent::NoteStopped(const RoundProcesses::Slot& slot, const Process& process) {
  // Only the main role has state to save.
  if (asked_to_stop_ && slot.planned.role->name == plan().main && !process.succeeded()) {
    (process.exit_code() == kRunAgain ? saved_ : unsaved_) = true;
  }
  if (next_ == Next::kEnd && exit_code_ == 0 && !process.succeeded()) {
    processes_->console().Say(absl::StrCat(process.HowItEnded(), " while it was being stopped"));
  }
}

void NodeAgent::OnWorkersEnded(const AgentEvent& event) {
  if (!await_others_ || phase_ != Phase::kStopping) return;
  if (absl::IsDeadlineExceeded(event.status)) return AwaitOtherWorkers();
  // A store that does not answer once may be busy; without one it cannot be known.
  if (!event.status.ok() && ++unanswered_ < kUnanswered) return AwaitOtherWorkers();
  await_others_ = false;
  saved_ = saved_ || absl::c_linear_search(event.outcomes, kSaved);
  unsaved_ = unsaved_ || absl::c_linear_search(event.outcomes, kUnsaved);
}

}  // namespace tandem::launcher
