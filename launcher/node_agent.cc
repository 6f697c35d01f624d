#include "launcher/node_agent.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "collectives/store/fenced_store.h"
#include "launcher/error_file.h"

namespace tandem::launcher {

using collectives::Rendezvous;
using collectives::RendezvousEvent;

namespace {

// How long to wait after a first failure for a better explanation: a process killed by a signal explains the
// errors that its death causes in other processes, and so does the reason that a failing member reports.
constexpr absl::Duration kSettle = absl::Milliseconds(100);
// How long to wait for the rendezvous to end a round. The rendezvous has shorter deadlines of its own.
constexpr absl::Duration kPatience = absl::Seconds(30);
// A process that ran at least this long resets the count of consecutive deaths.
constexpr absl::Duration kHealthy = absl::Minutes(10);
constexpr int kTimedOut = 124;  // the exit code, as timeout(1) has it
constexpr absl::Duration kFirstPause = absl::Milliseconds(500);
constexpr absl::Duration kLongestPause = absl::Seconds(30);

absl::Duration PauseBefore(int restart) {
  return std::min(kLongestPause, kFirstPause * (int64_t{1} << std::min(restart - 1, 10)));
}

// Returns advice for the user if the last lines of the output show a known mistake, else "".
std::string Advice(const ChildOutput& output, int master_port) {
  for (const std::string& line : output.tail()) {
    if (absl::StrContains(line, "ddress already in use") || absl::StrContains(line, "EADDRINUSE")) {
      return absl::StrCat(
          "a port was taken. MASTER_PORT (", master_port,
          ") is kept free for rank 0, which must bind it with SO_REUSEADDR as PyTorch does; other "
          "ports are the program's own choice: port 0 lets the kernel pick a free one");
    }
  }
  return "";
}

}  // namespace

int NodeAgent::Run() {
  end_by_ = absl::Now() + options_.timeout;
  watch_ = std::make_unique<RoundMonitor>(
      rendezvous_->rendezvous(),
      [this](const std::function<bool()>& stop) { return rendezvous_->Reach(stop); });
  if (options_.plan.reform) {
    absl::StatusOr<std::unique_ptr<collectives::StoreServer>> store =
        collectives::StoreServer::Start("127.0.0.1:0");
    if (!store.ok()) {
      processes_->console().Say(store.status().message());
      return 1;
    }
    agent_store_ = *std::move(store);
    control_ = std::make_unique<LauncherControl>(agent_store_->store());
    control_->OnPeerFailure([this](const LauncherControl::PeerFailure& failure) {
      watch_->Post({.kind = AgentEvent::Kind::kPeerFailure,
                    .status = absl::UnavailableError(failure.reason),
                    .process = failure.process,
                    .epoch = failure.number});
    });
  }
  BeginJoin();
  while (phase_ != Phase::kOver) {
    const bool patient = phase_ == Phase::kRunning || phase_ == Phase::kJoining;
    const ProcessEvents seen = processes_->Wait(NextDeadline(), watch_->fd(), patient);
    for (const int signal : seen.signals) OnSignal(signal);
    for (Process* process : seen.ended) OnEnd(process);
    if (seen.woken) {
      for (const AgentEvent& news : watch_->Take()) OnEvent(news);
    }
    OnTime();
    if ((phase_ == Phase::kStopping || phase_ == Phase::kKilling) && processes_->AllEnded()) OnAllStopped();
  }
  processes_->ForgetEnded();
  control_.reset();  // its callback posts to watch_
  if (round_.has_value() && closed_) rendezvous_->SendShutdownNotice(*round_);
  watch_.reset();
  return exit_code_;
}

absl::Time NodeAgent::NextDeadline() const {
  absl::Time next = std::min(
      deadline_, phase_ == Phase::kRunning || phase_ == Phase::kJoining ? end_by_ : absl::InfiniteFuture());
  if (phase_ != Phase::kRunning && phase_ != Phase::kSettling) return next;
  for (const Slot& slot : slots_) next = std::min(next, slot.restart_at);
  return next;
}

void NodeAgent::OnSignal(int signal) {
  const bool stopping = phase_ == Phase::kStopping || phase_ == Phase::kKilling;
  if (stopping && next_ == Next::kEnd) {
    if (exit_code_ != 0) deadline_ = absl::Now();  // the second signal ends the grace period
    return;
  }
  processes_->console().Say(absl::StrCat("stopping on ", SignalName(signal)));
  if (phase_ == Phase::kJoining || rendezvous_->elastic()) {
    // The other nodes continue without this one if they are enough.
    watch_->Leave();
  } else {
    CloseJob(absl::StrCat("the launcher on ", rendezvous_->host(), " was stopped by ", SignalName(signal)),
             128 + signal);
  }
  Stop(Next::kEnd, 128 + signal, options_.grace);
}

void NodeAgent::OnEnd(Process* process) {
  const auto slot = absl::c_find_if(slots_, [process](const Slot& one) { return one.process == process; });
  if (slot == slots_.end()) return;
  slot->process = nullptr;
  const bool good = process->succeeded() && !slot->role->serves;
  switch (phase_) {
    case Phase::kRunning:
    case Phase::kSettling:
      if (good) {
        slot->done = true;
        return FinishIfDone();
      }
      // A role that serves may not end before the others, not even with exit code 0.
      if (RestartAlone(*slot, process)) return;
      failed_.push_back(process);
      return NoteFailure(process->killed() ? absl::ZeroDuration() : kSettle);
    case Phase::kJoining:
    case Phase::kWaiting:
      // The next round starts the process again.
      if (good) {
        slot->done = true;
      } else {
        processes_->console().Say(absl::StrCat(process->HowItEnded(), " while the job forms again"));
      }
      return;
    case Phase::kStopping:
    case Phase::kKilling:
    case Phase::kOver:
      if (next_ == Next::kEnd && exit_code_ == 0 && !process->succeeded()) {
        processes_->console().Say(absl::StrCat(process->HowItEnded(), " while it was being stopped"));
      }
      return;
  }
}

bool NodeAgent::RestartAlone(Slot& slot, Process* process) {
  if (slot.role->restart != Restart::kAlone) return false;
  slot.deaths_in_a_row = absl::Now() - process->started() >= kHealthy ? 1 : slot.deaths_in_a_row + 1;
  const int limit = slot.role->restart_limit;
  if (slot.deaths_in_a_row > limit) {
    processes_->console().Say(absl::StrCat(process->name(), " has been started again ", limit,
                                           " times in a row: that is its limit (--restart ", slot.role->name,
                                           "=alone:", limit, ")"));
    return false;
  }
  const absl::Duration pause = PauseBefore(slot.deaths_in_a_row);
  slot.restart_at = absl::Now() + pause;
  ++slot.restarts_alone;
  processes_->console().Say(absl::StrCat(process->HowItEnded(), "; starting it again in ",
                                         absl::FormatDuration(pause), " (", slot.deaths_in_a_row, " of ",
                                         limit, ")"));
  for (const std::string& text : process->output().tail())
    processes_->console().Say(absl::StrCat("  | ", text));
  if (slot.role->name == "ps" && slot.role->command.empty()) {
    processes_->console().Say(absl::StrCat(
        process->name(),
        " comes back with empty tables and at another address: workers that hold the old one will "
        "fail. Without --restart ps=alone the whole job starts again, and `--resume auto` takes "
        "its newest checkpoint"));
  }
  return true;
}

void NodeAgent::OnEvent(const AgentEvent& news) {
  switch (news.kind) {
    case AgentEvent::Kind::kRound:
      return OnRound(news);
    case AgentEvent::Kind::kRoundOver:
      return OnRoundOver(news);
    case AgentEvent::Kind::kTold:
      // FailedPrecondition: the limit of restarts is reached. The rendezvous then closes the job, which gives
      // an event of its own.
      if (!absl::IsFailedPrecondition(news.status)) {
        processes_->console().Say(absl::StrCat("the rendezvous does not answer: ", news.status.message()));
      }
      return;
    case AgentEvent::Kind::kJobState:
      if (!news.state.failed || !round_.has_value() || news.epoch != round_->epoch) return;
      if (phase_ != Phase::kRunning && phase_ != Phase::kSettling) return;
      job_failure_ = news.state.reason;
      return NoteFailure(kSettle);
    case AgentEvent::Kind::kPeerFailure: {
      // A report about an earlier round, or about a failure that is being handled already.
      if (news.epoch != assignment_ || phase_ != Phase::kRunning) return;
      // LauncherControl names processes by local rank, Process::name by rank.
      const auto slot = absl::c_find_if(slots_, [&news](const Slot& one) {
        return one.process != nullptr && news.process == absl::StrCat(one.role->name, "/", one.local_rank);
      });
      const std::string& name = slot == slots_.end() ? news.process : slot->process->name();
      job_failure_ = absl::StrCat(name, ": ", news.status.message());
      return NoteFailure(kSettle);
    }
  }
}

void NodeAgent::OnRoundOver(const AgentEvent& news) {
  if (!round_.has_value() || news.epoch != round_->epoch) return;
  Console& console = processes_->console();
  const bool ending = (phase_ == Phase::kStopping || phase_ == Phase::kKilling) && next_ == Next::kEnd;
  if (!news.status.ok()) {
    if (ending) return;
    if (options_.plan.reform && absl::IsUnavailable(news.status) &&
        (phase_ == Phase::kRunning || phase_ == Phase::kSettling || phase_ == Phase::kWaiting)) {
      // The processes cannot complete a step now. But if no round takes place without them (the store failed
      // for all nodes), the job continues from their state.
      console.Say(absl::StrCat("this node is no longer part of the round: ", news.status.message(),
                               "; its processes wait for the next"));
      return FormAgain(std::string(news.status.message()));
    }
    // The other nodes have continued without this one, so its processes must not do any more.
    console.Say(absl::StrCat("this node is no longer part of the job: ", news.status.message(),
                             "; stopping its processes"));
    round_over_ = true;
    return Stop(Next::kJoin, 1, absl::ZeroDuration());
  }
  const RendezvousEvent& event = news.event;
  round_over_ = true;
  if (event.kind == RendezvousEvent::Kind::kClosed) {
    closed_ = true;
    // Another node's failure came first, and the one here may be its consequence.
    if (failed_here_ && event.failed) exit_code_ = event.exit_code;
    if (ending) return;
    if (!event.failed) {
      watch_->Unwatch(/*failed=*/false, "all workers have finished");
      return Stop(Next::kEnd, 0, options_.grace);
    }
    if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) {
      console.Say(absl::StrCat("the job failed: ", event.reason, "; stopping it here"));
    } else {
      console.Say(absl::StrCat("the job is over: ", event.reason));
    }
    return Stop(Next::kEnd, event.exit_code, options_.grace);
  }
  switch (phase_) {
    case Phase::kRunning:
    case Phase::kSettling:
    case Phase::kWaiting:
      if (phase_ != Phase::kWaiting) {
        console.Say(
            absl::StrCat(options_.plan.reform ? "the job forms again: " : "starting again: ", event.reason));
      }
      if (options_.plan.reform) return FormAgain(event.reason);
      if (processes_->AllEnded()) return BeginJoin();
      return Stop(Next::kJoin, 1, options_.grace);
    default:
      return;  // OnAllStopped continues when all processes have ended
  }
}

void NodeAgent::FormAgain(const std::string& reason) {
  // Processes that wait in a call to the old round's store get an error.
  collectives::EnterEpoch(store_->store(), round_->epoch + 1, "launcher").IgnoreError();
  if (absl::Status told = control_->RoundOver(assignment_, reason); !told.ok()) {
    processes_->console().Say(told.message());
  }
  BeginJoin();
}

void NodeAgent::NoteFailure(absl::Duration settle) {
  const absl::Time until = absl::Now() + settle;
  deadline_ = phase_ == Phase::kSettling ? std::min(deadline_, until) : until;
  phase_ = Phase::kSettling;
}

void NodeAgent::OnTime() {
  const absl::Time now = absl::Now();
  Console& console = processes_->console();
  if ((phase_ == Phase::kRunning || phase_ == Phase::kJoining) && now >= end_by_) {
    const std::string what =
        absl::StrCat("the job did not end within ", absl::FormatDuration(options_.timeout));
    console.Say(absl::StrCat(what, "; stopping it"));
    CloseJob(what, kTimedOut);
    return Stop(Next::kEnd, kTimedOut, options_.grace);
  }
  if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) {
    for (Slot& slot : slots_) {
      if (now < slot.restart_at) continue;
      if (const absl::Status started = StartSlot(slot); !started.ok()) {
        job_failure_ = std::string(started.message());
        NoteFailure(absl::ZeroDuration());
      }
    }
  }
  if (now < deadline_) return;
  switch (phase_) {
    case Phase::kSettling:
      return AnnounceFailure();
    case Phase::kStopping:
      phase_ = Phase::kKilling;
      deadline_ = absl::InfiniteFuture();
      return processes_->SignalAll(SIGKILL);
    case Phase::kWaiting:
      console.Say("the rendezvous has not ended the round in time; stopping");
      return Stop(Next::kEnd, exit_code_ != 0 ? exit_code_ : 1, options_.grace);
    default:
      return;
  }
}

void NodeAgent::AnnounceFailure() {
  const auto killed = absl::c_find_if(failed_, [](const Process* process) { return process->killed(); });
  const Process* cause = killed != failed_.end() ? *killed : failed_.empty() ? nullptr : failed_.front();
  std::string line;
  bool explained = false;
  if (!job_failure_.empty() && killed == failed_.end()) {
    line = absl::StrCat("the job failed: ", job_failure_);
    // The process that the reason names knows more than the first one that noticed.
    const auto consider = [&](const Process* process) {
      if (process == nullptr) return;
      const bool speaks = absl::StartsWith(job_failure_, absl::StrCat(process->name(), ":"));
      if (!speaks && !absl::StartsWith(job_failure_, absl::StrCat(process->name(), " "))) return;
      cause = process;
      explained = speaks;
    };
    for (const Slot& slot : slots_) consider(slot.process);
    for (const Process* process : failed_) consider(process);
  } else {
    line = cause->HowItEnded();
  }
  const bool again = round_->restarts < options_.plan.max_restarts;
  Console& console = processes_->console();
  console.Say(
      absl::StrCat(line, again ? absl::StrCat("; starting the job again (restart ", round_->restarts + 1,
                                              " of ", options_.plan.max_restarts, ")")
                               : "; stopping the job"));
  // The launchers of the other nodes are told on which node it happened, and the last line of the output.
  std::string reason =
      absl::StrCat(line, rendezvous_->alone() ? "" : absl::StrCat(", on ", rendezvous_->host()));
  if (cause != nullptr && !explained) {
    const ChildOutput& output = cause->output();
    const std::string message = ReadErrorFile(cause->spec().error_file);
    if (!message.empty()) {
      console.Say(absl::StrCat("it said: ", message));
      absl::StrAppend(&reason, ": ", message);
    }
    if (!output.tail().empty()) {
      console.Say(absl::StrCat("the last lines of ", output.log_path(), ":"));
      for (const std::string& text : output.tail()) console.Say(absl::StrCat("  | ", text));
      if (message.empty()) absl::StrAppend(&reason, ": ", output.tail().back());
    } else {
      console.Say(absl::StrCat(output.log_path(), " is empty"));
    }
    if (const std::string advice = Advice(output, port_->port()); !advice.empty()) console.Say(advice);
  }
  const Process* code = cause != nullptr && cause->ended() ? cause
                        : failed_.empty()                  ? nullptr
                                                           : failed_.front();
  const int exit_code = code == nullptr || code->exit_code() == 0 ? 1 : code->exit_code();
  job_failure_.clear();
  if (!again) {
    failed_here_ = true;
    CloseJob(reason, exit_code);
    return Stop(Next::kEnd, exit_code, options_.grace);
  }
  const int64_t epoch = round_->epoch;
  watch_->Tell([epoch, reason, exit_code](Rendezvous& rendezvous) {
    return rendezvous.RequestRestart(epoch, reason, exit_code);
  });
  if (!options_.plan.reform) return Stop(Next::kJoin, exit_code, options_.grace);
  exit_code_ = exit_code;
  phase_ = Phase::kWaiting;
  deadline_ = absl::Now() + kPatience;
}

void NodeAgent::CloseJob(const std::string& reason, int exit_code) {
  closed_ = true;
  watch_->Tell([reason, exit_code](Rendezvous& rendezvous) {
    return rendezvous.Close(/*failed=*/true, reason, exit_code);
  });
}

void NodeAgent::Stop(Next next, int exit_code, absl::Duration grace) {
  next_ = next;
  exit_code_ = exit_code;
  phase_ = Phase::kStopping;
  deadline_ = absl::Now() + grace;
  for (Slot& slot : slots_) slot.restart_at = absl::InfiniteFuture();
  if (control_ != nullptr && next == Next::kEnd) control_->Close("the job is over").IgnoreError();
  processes_->SignalAll(SIGTERM);
}

void NodeAgent::OnAllStopped() {
  if (next_ == Next::kEnd) {
    phase_ = Phase::kOver;
  } else if (round_over_) {
    BeginJoin();
  } else if (next_ == Next::kStart) {
    BeginRound();
  } else {
    phase_ = Phase::kWaiting;
    deadline_ = absl::Now() + kPatience;
  }
}

}  // namespace tandem::launcher
