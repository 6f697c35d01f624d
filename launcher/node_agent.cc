// SPDX-License-Identifier: Apache-2.0
#include "launcher/node_agent.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/store/etcd/etcd_channel.h"
#include "launcher/job_file.h"
#include "launcher/node_text.h"
#include "launcher/plan/copies.h"
#include "launcher/root_cause.h"
#include "launcher/round_work.h"
#include "rpc/security/audit_log.h"

namespace tandem::launcher {

using cluster::Node;
using cluster::Rendezvous;
using cluster::RendezvousEvent;
using cluster::Round;

namespace {

// How long to wait after a first failure for a better explanation: a process killed by a signal explains the
// errors that its death causes in other processes, and so does the reason that a failing member reports.
constexpr absl::Duration kSettle = absl::Milliseconds(100);
// The launcher waits this long if the failure is a consequence of another process's failure, which it does
// not know yet: that process may still be ending, or its launcher has not reported it.
constexpr absl::Duration kSettleConsequence = absl::Seconds(2);
// How long to wait for the rendezvous to end a round. The rendezvous has shorter deadlines of its own.
constexpr absl::Duration kRoundEndTimeout = absl::Seconds(30);
// How long restarts alone are put off while the rendezvous does not allow them.
constexpr absl::Duration kMayStartPause = absl::Milliseconds(20);
constexpr char kAgentSocket[] = "launcher";
constexpr int kTimedOut = 124;  // the exit code, as timeout(1) has it
// A SIGTERM that follows another within this time is the same request: systemd and Slurm signal each process
// of a job, and a parent may pass its own signal on as well.
constexpr absl::Duration kSameRequest = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<NodeAgent>> NodeAgent::Create(NodeAgentOptions options, Processes* processes,
                                                             RendezvousHandler* rendezvous) {
  options.node.advertise = rendezvous->outward() ? rendezvous->host() : "";
  TANDEM_ASSIGN_OR_RETURN(rpc::JobKey key, rpc::JobKey::Load());
  key = key.ForJob(options.node.run_id);
  TANDEM_ASSIGN_OR_RETURN(options.node.key_file, WriteKeyFile(options.node.attempts_dir, key));
  rpc::AuditLog::UseFile(AuditFileBeside(options.node.key_file));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<RoundProcesses> local,
                          RoundProcesses::Create(std::move(options.node), processes));
  return std::unique_ptr<NodeAgent>(new NodeAgent(options, key, std::move(local), processes, rendezvous));
}

NodeAgent::NodeAgent(const NodeAgentOptions& options, const rpc::JobKey& key,
                     std::unique_ptr<RoundProcesses> local, Processes* processes,
                     RendezvousHandler* rendezvous)
    : key_(key),
      grace_(options.grace),
      timeout_(options.timeout),
      processes_(processes),
      rendezvous_(rendezvous),
      local_(std::move(local)),
      beats_(local_->options().lease, processes),
      node_id_(FreshNodeId(rendezvous->host())),
      services_(local_->options().run_id, node_id_, key_, options.master_port,
                rendezvous->job_store_in_etcd()) {}

NodeAgent::~NodeAgent() = default;

int NodeAgent::Run() {
  end_by_ = MonotonicNow() + timeout_;
  absl::StatusOr<std::unique_ptr<SocketDirectory>> sockets = SocketDirectory::Make();
  if (!sockets.ok()) {
    processes_->console().Say(sockets.status().message());
    return 1;
  }
  sockets_ = *std::move(sockets);
  monitor_ = std::make_unique<RoundMonitor>(
      rendezvous_->rendezvous(),
      [this](const std::function<bool()>& stop) { return rendezvous_->Reach(stop); },
      [this, name = node_id_](const Round& round) -> absl::StatusOr<std::shared_ptr<cluster::Membership>> {
        const std::string store = StoreOf(round);
        if (!cluster::IsEtcdAddress(store)) return nullptr;
        return cluster::OpenEtcdMembership(store, name);
      });
  if (plan().reform) {
    if (const absl::Status started = StartControl(); !started.ok()) {
      processes_->console().Say(started.message());
      return 1;
    }
  }
  if (plan().IsReplaceable()) {  // another launcher may then start the same processes
    rendezvous_->rendezvous()->OnLease([this](absl::Time until) { processes_->KillAllAt(until); });
  }
  BeginJoin();
  while (phase_ != Phase::kOver) {
    const bool patient = phase_ == Phase::kRunning || phase_ == Phase::kJoining;
    const ProcessEvents seen = processes_->Wait(NextDeadline(), monitor_->fd(), patient);
    for (const int signal : seen.signals) OnSignal(signal);
    for (Process* process : seen.ended) OnEnd(process);
    if (seen.woken) {
      for (const AgentEvent& event : monitor_->Take()) OnEvent(event);
    }
    if (phase_ == Phase::kStopping) StopServers();
    OnTime();
    if (stopping() && local_->AllEnded()) OnAllStopped();
  }
  rendezvous_->rendezvous()->OnLease(nullptr);
  processes_->ForgetEnded();
  control_.reset();  // its callback posts to monitor_
  // Before the notice, after which the store may be gone: calls of Tell may still use it.
  monitor_.reset();
  if (round_.has_value() && closed_) rendezvous_->SendShutdownNotice(*round_);
  return exit_code_;
}

absl::Status NodeAgent::StartControl() {
  TANDEM_ASSIGN_OR_RETURN(agent_store_, cluster::StoreServer::Start(sockets_->Address(kAgentSocket),
                                                                    Clock::Real(), cluster::StoreGate(key_)));
  control_ = std::make_unique<LauncherControl>(agent_store_->store());
  control_->OnPeerFailure([this](const LauncherControl::PeerFailure& failure) {
    monitor_->Post({.kind = AgentEvent::Kind::kPeerFailure,
                    .status = absl::UnavailableError(failure.reason),
                    .process = failure.process,
                    .epoch = failure.number});
  });
  return absl::OkStatus();
}

absl::Time NodeAgent::NextDeadline() const {
  absl::Time next = std::min(deadline_, tick_at_);
  if (phase_ == Phase::kRunning || phase_ == Phase::kJoining) next = std::min(next, end_by_);
  if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) next = std::min(next, local_->NextRestart());
  if (phase_ == Phase::kRunning) next = std::min(next, look_for_copies_at_);
  return next;
}

void NodeAgent::BeginJoin() {
  phase_ = Phase::kJoining;
  deadline_ = absl::InfiniteFuture();
  round_over_ = finish_told_ = false;
  job_failure_.clear();
  if (const Process* lost = local_->FindLost(); lost != nullptr) {
    const std::string reason =
        absl::StrCat(lost->name(), " (pid ", lost->pid(), ") does not end after SIGKILL, on ",
                     rendezvous_->host(), ", and a second one must not run beside it");
    processes_->console().Say(absl::StrCat("this node cannot take part: ", reason));
    if (!plan().IsReplaceable()) CloseJob(reason, /*exit_code=*/1);
    return Stop(Next::kEnd, 1, grace_);
  }
  local_->PrepareRound();
  // Members that survive the round learn of its end from LauncherControl.
  monitor_->Abandon(/*failed=*/control_ == nullptr, "the round is over");

  Node node{.id = node_id_, .host = rendezvous_->master_addr(), .node_rank = rendezvous_->node_rank()};
  if (const absl::Status status =
          services_.Renew(rendezvous_->host(), rendezvous_->outward() ? nullptr : sockets_.get(), &node);
      !status.ok()) {
    processes_->console().Say(status.message());
    // The job may go on without a replaceable node.
    if (!plan().IsReplaceable()) CloseJob(std::string(status.message()), /*exit_code=*/1);
    return Stop(Next::kEnd, 1, grace_);
  }
  node.processes = local_->CountByRole();
  node.commands = local_->CommandsByRole();
  node.replaceable = plan().IsReplaceable();
  node.has_work = plan().HasWork();
  if (!rendezvous_->alone()) {
    processes_->console().Say(
        absl::StrCat("waiting for a round of ", rendezvous_->NodesText(), " at ", rendezvous_->ToString()));
  }
  monitor_->Join(node);
}

void NodeAgent::OnRound(const AgentEvent& event) {
  if (phase_ != Phase::kJoining) return;  // it was stopped meanwhile
  if (!event.status.ok()) {
    processes_->console().Say(absl::StrCat("this node cannot take part: ", event.status.message()));
    return Stop(Next::kEnd, exit_code_ != 0 ? exit_code_ : 1, grace_);
  }
  // A round took place without this node. Its processes' state is older than that of the other nodes, and
  // must not count as the newest if those die.
  const bool stale = round_.has_value() && event.round.epoch != round_->epoch + 1 && !local_->AllEnded();
  round_ = event.round;
  round_->nodes[0].store = StoreOf(*round_);
  reported_.reset();
  services_.EnterRound(*round_, event.membership);
  ++assignment_;
  local_->SetRound({.round = *round_,
                    .assignment = assignment_,
                    .agent = agent_store_ == nullptr ? "" : sockets_->Address(kAgentSocket)});
  if (!stale) return BeginRound();
  processes_->console().Say("the job has gone on without this node; starting its processes anew");
  Stop(Next::kStart, 1, absl::ZeroDuration());
}

void NodeAgent::BeginRound() {
  exit_code_ = 0;
  phase_ = Phase::kRunning;
  deadline_ = absl::InfiniteFuture();
  if (absl::Status started = StartRound(); !started.ok()) {
    processes_->console().Say(started.message());
    // The round goes on without a node that has only taken the place of another one.
    if (round_->process_restarts == 0) {
      CloseJob(absl::StrCat(started.message(), ", on ", rendezvous_->host()), /*exit_code=*/1);
    }
    return Stop(Next::kEnd, 1, grace_);
  }
  FinishIfDone();
}

absl::Status NodeAgent::StartRound() {
  TANDEM_RETURN_IF_ERROR(CheckFollowers(*round_));
  if (const std::string warning = CopiesWarning(*round_); round_->group_rank == 0 && !warning.empty()) {
    processes_->console().Say(warning);
  }
  if (const auto& members = services_.membership(); members != nullptr) {
    members->Tick(local_->options().lease / 2);
    for (const RolePlan& role : plan().roles) {
      // Servers with followers say by themselves that they may be silent. If the last copy of a shard is
      // lost, its process reports that, and the job ends.
      if (role.restart == Restart::kAlone && role.followers == 0) members->AllowRestart(role.name);
    }
    // All roles of replaceable nodes are restarted alone, and this launcher's plan need not have them.
    for (const Node& node : round_->nodes) {
      for (const auto& [role, count] : node.processes) {
        if (node.replaceable && role != "ps") members->AllowRestart(role);
      }
    }
    monitor_->Watch(members, round_->epoch);
  }
  // `tandem status`, `tandem top` and others read it, on any node.
  const NodeOptions& options = local_->options();
  TANDEM_RETURN_IF_ERROR(WriteJobFile(options.log_dir, {.store = round_->nodes[0].store,
                                                        .rendezvous = rendezvous_->address(),
                                                        .run_id = options.run_id,
                                                        .num_servers = round_->WorldSize("ps"),
                                                        .key_file = options.key_file}));
  processes_->console().Say(
      absl::StrCat(rendezvous_->alone() ? CountsText(plan()) : PlaceText(plan(), *round_),
                   round_->process_restarts > 0 ? ", in the place of a node that was absent" : "",
                   "; logs in ", options.log_dir));
  if (control_ != nullptr) TANDEM_RETURN_IF_ERROR(control_->Announce(local_->Reassign()));
  return local_->StartAll();
}

void NodeAgent::OnSignal(int signal) {
  if (stopping() && next_ == Next::kEnd) {
    if (signal == SIGTERM && MonotonicNow() - signalled_at_ < kSameRequest) return;
    // The launcher of another node has got the first one.
    const bool first = asked_to_stop_ && signalled_at_ == absl::InfinitePast();
    signalled_at_ = MonotonicNow();
    if (exit_code_ != 0 && !first) {  // the second signal ends the grace period
      await_others_ = false;
      deadline_ = MonotonicNow();
    }
    return;
  }
  processes_->console().Say(absl::StrCat("stopping on ", SignalName(signal)));
  if (phase_ == Phase::kJoining || rendezvous_->elastic()) {
    // The other nodes continue without this one if they are enough. A replaceable node leaves when its
    // processes have ended (the destructor of RoundMonitor), because another one may then take its place.
    if (phase_ == Phase::kJoining || !plan().IsReplaceable()) monitor_->Leave();
  } else {
    closed_ = true;
    monitor_->Tell([reason = absl::StrCat("the launcher on ", rendezvous_->host(), " was stopped by ",
                                          SignalName(signal)),
                    signal](Rendezvous& rendezvous) { return rendezvous.Stop(reason, 128 + signal); });
  }
  asked_to_stop_ = true;
  signalled_at_ = MonotonicNow();
  Stop(Next::kEnd, 128 + signal, grace_, signal);
}

void NodeAgent::OnEnd(Process* process) {
  RoundProcesses::Slot* const slot = local_->TakeEnded(process);
  if (slot == nullptr) return;
  if (round_.has_value()) services_.EndLife(*round_, process->name(), process->pid());
  // A role that serves may not end before the others, not even with exit code 0.
  const bool good = process->succeeded() && !slot->planned.role->serves;
  switch (phase_) {
    case Phase::kRunning:
    case Phase::kSettling:
      if (good) {
        slot->done = true;
        if (local_->OnlyLostLeft()) return FailBecauseOfLost();
        return FinishIfDone();
      }
      // Ctrl-C went to the process that has the terminal, instead of the launcher.
      if (process->spec().terminal && process->killed() &&
          (process->exit_code() == 128 + SIGINT || process->exit_code() == 128 + SIGQUIT)) {
        return OnSignal(process->exit_code() - 128);
      }
      if (process->succeeded() && slot->planned.role->followers > 0) {
        processes_->console().Say(
            absl::StrCat(process->name(),
                         " has left its shard (tandem ps drain); it is not started again. `tandem ps --index "
                         "N --copy K` adds a copy"));
        return;
      }
      if (local_->PlanRestart(*slot, *process)) return void(MayStart());
      local_->AddFailed(process);
      return NoteFailure(IsConsequence(*process) ? ConsequenceSettle()
                         : process->killed()     ? absl::ZeroDuration()
                                                 : kSettle);
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
      return NoteStopped(*slot, *process);
  }
}

void NodeAgent::OnEvent(const AgentEvent& event) {
  switch (event.kind) {
    case AgentEvent::Kind::kRound:
      return OnRound(event);
    case AgentEvent::Kind::kRoundOver:
      return OnRoundOver(event);
    case AgentEvent::Kind::kNodes:
      return OnNodes(event);
    case AgentEvent::Kind::kTold:
      // FailedPrecondition: the limit of restarts is reached. The rendezvous then closes the job, which gives
      // an event of its own.
      if (!absl::IsFailedPrecondition(event.status)) {
        processes_->console().Say(absl::StrCat("the rendezvous does not answer: ", event.status.message()));
      }
      return;
    case AgentEvent::Kind::kJobState:
      if (!event.state.failed || !round_.has_value() || event.epoch != round_->epoch) return;
      reported_ = event.state.reason;
      return NoteReported();
    case AgentEvent::Kind::kMembers:
      return OnMembers(event);
    case AgentEvent::Kind::kWorkersEnded:
      return OnWorkersEnded(event);
    case AgentEvent::Kind::kPeerFailure: {
      // A report about an earlier round, or about a failure that is being handled already.
      if (event.epoch != assignment_ || phase_ != Phase::kRunning) return;
      // LauncherControl names processes by local rank, Process::name by rank.
      const Process* const process = local_->Find(event.process);
      job_failure_ =
          absl::StrCat(process == nullptr ? event.process : process->name(), ": ", event.status.message());
      return NoteFailure(kSettle);
    }
  }
}

bool NodeAgent::MayStart() {
  const int restarts = plan().IsReplaceable() ? local_->MostRestarts() : 0;
  if (rendezvous_->rendezvous()->MayStart(round_->epoch, restarts)) return true;
  if (restarts == 0 || recording_.exchange(true)) return false;
  monitor_->Tell([this, epoch = round_->epoch, restarts](Rendezvous& rendezvous) {
    absl::Status recorded = rendezvous.RecordRestarts(epoch, restarts);
    recording_ = false;
    return recorded;
  });
  return false;
}

void NodeAgent::OnRoundOver(const AgentEvent& over) {
  if (!round_.has_value() || over.epoch != round_->epoch) return;
  Console& console = processes_->console();
  const bool ending = stopping() && next_ == Next::kEnd;
  if (!over.status.ok()) {
    if (ending) return;
    if (plan().reform && absl::IsUnavailable(over.status) &&
        (phase_ == Phase::kRunning || phase_ == Phase::kSettling || phase_ == Phase::kWaiting)) {
      // The processes cannot complete a step now. But if no round takes place without them (the store failed
      // for all nodes), the job continues from their state.
      console.Say(absl::StrCat("this node is no longer part of the round: ", over.status.message(),
                               "; its processes wait for the next"));
      return FormAgain(std::string(over.status.message()));
    }
    // The other nodes have continued without this one, so its processes must not do any more.
    console.Say(absl::StrCat("this node is no longer part of the job: ", over.status.message(),
                             "; stopping its processes"));
    round_over_ = true;
    // Under a new id it may take its place again, and nothing late that concerns the old one affects it.
    if (plan().IsReplaceable()) node_id_ = FreshNodeId(rendezvous_->host());
    return Stop(Next::kJoin, 1, absl::ZeroDuration());
  }
  const RendezvousEvent& event = over.event;
  round_over_ = true;
  // The rendezvous has let this node, or another one that takes part, end the round.
  const bool goes_on = plan().reform && event.kind == RendezvousEvent::Kind::kRestart;
  if (InEtcd() && event.failed && !event.stopped && !goes_on) EndForMembers(event.exit_code, event.reason);
  if (event.kind == RendezvousEvent::Kind::kClosed) {
    closed_ = true;
    // Another node's failure came first, and the one here may be its consequence.
    if (failed_here_ && event.failed) exit_code_ = event.exit_code;
    if (ending) return;
    if (!event.failed) {
      monitor_->Unwatch(/*failed=*/false, "all workers have finished");
      return Stop(Next::kEnd, 0, grace_);
    }
    if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) {
      console.Say(absl::StrCat("the job failed: ", event.reason, "; stopping it here"));
    } else {
      console.Say(absl::StrCat("the job is over: ", event.reason));
    }
    asked_to_stop_ = event.stopped;  // the launcher of another node, by a signal
    if (!asked_to_stop_) EndForMembers(event.exit_code, event.reason);
    return Stop(Next::kEnd, event.exit_code, grace_);
  }
  switch (phase_) {
    case Phase::kRunning:
    case Phase::kSettling:
    case Phase::kWaiting:
      if (phase_ != Phase::kWaiting) {
        console.Say(absl::StrCat(plan().reform ? "the job forms again: " : "starting again: ", event.reason));
      }
      if (plan().reform) return FormAgain(event.reason);
      if (event.failed) EndForMembers(event.exit_code, event.reason);
      if (local_->AllEnded()) return BeginJoin();
      return Stop(Next::kJoin, 1, grace_);
    default:
      return;  // OnAllStopped continues when all processes have ended
  }
}

void NodeAgent::OnTime() {
  const absl::Time now = MonotonicNow();
  Console& console = processes_->console();
  if ((phase_ == Phase::kRunning || phase_ == Phase::kJoining) && now >= end_by_) {
    const std::string what = absl::StrCat("the job did not end within ", absl::FormatDuration(timeout_));
    console.Say(absl::StrCat(what, "; stopping it"));
    CloseJob(what, kTimedOut);
    return Stop(Next::kEnd, kTimedOut, grace_);
  }
  if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) {
    if (now >= local_->NextRestart() && !MayStart()) local_->PutOffRestarts(now + kMayStartPause);
    if (const absl::Status started = local_->StartDue(now); !started.ok()) {
      job_failure_ = std::string(started.message());
      NoteFailure(absl::ZeroDuration());
    }
  }
  if (phase_ == Phase::kRunning && now >= look_for_copies_at_) LookForCopies();
  if (now >= tick_at_) OnTick(now);
  if (now < deadline_) return;
  switch (phase_) {
    case Phase::kSettling:
      return AnnounceFailure();
    case Phase::kStopping:
      if (std::exchange(await_others_, false) && local_->TerminateServing()) {
        deadline_ = now + stop_grace_;
        return;
      }
      phase_ = Phase::kKilling;
      deadline_ = now + AfterKill();
      return local_->Kill();
    case Phase::kKilling:
      return LoseUnkilled();
    case Phase::kWaiting:
      console.Say("the rendezvous has not ended the round in time; stopping");
      return Stop(Next::kEnd, exit_code_ != 0 ? exit_code_ : 1, grace_);
    default:
      return;
  }
}

void NodeAgent::OnAllStopped() {
  if (next_ == Next::kEnd) {
    if (await_others_ && phase_ == Phase::kStopping) return;
    phase_ = Phase::kOver;
    if (saved_ && !unsaved_) {
      exit_code_ = kRunAgain;
      processes_->console().Say(absl::StrCat("the workers have saved their state and ended with code ",
                                             kRunAgain, ": the job can be run again"));
    }
  } else if (round_over_) {
    BeginJoin();
  } else if (next_ == Next::kStart) {
    BeginRound();
  } else {
    phase_ = Phase::kWaiting;
    deadline_ = MonotonicNow() + kRoundEndTimeout;
  }
}

void NodeAgent::FinishIfDone() {
  if (finish_told_ || phase_ != Phase::kRunning || !HasWork(*round_) || !local_->AllDone()) return;
  finish_told_ = true;
  SayWhatIsMissing();
  const int64_t epoch = round_->epoch;
  monitor_->Tell([epoch](Rendezvous& rendezvous) { return rendezvous.Finish(epoch); });
}

void NodeAgent::NoteFailure(absl::Duration settle) {
  const absl::Time until = MonotonicNow() + settle;
  deadline_ = phase_ == Phase::kSettling ? std::min(deadline_, until) : until;
  phase_ = Phase::kSettling;
}

void NodeAgent::NoteReport(const std::string& reason) {
  job_failure_ = reason;
  const Process* const speaker = NamedProcess(reason, local_->failed(), local_->Running());
  NoteFailure(speaker != nullptr && IsConsequence(*speaker) ? ConsequenceSettle() : kSettle);
}

absl::Duration NodeAgent::ConsequenceSettle() const {
  // The process that is the cause is on this node or another one.
  return rendezvous_->alone() && local_->Running().empty() ? kSettle : kSettleConsequence;
}

void NodeAgent::AnnounceFailure() {
  const RootCause cause = FindRootCause(local_->failed(), local_->Running(), job_failure_);
  // A process that wishes to be run again has been told to make way; starting it here would not.
  const bool again =
      round_->restarts < plan().max_restarts && cause.exit_code != kRunAgain && local_->FindLost() == nullptr;
  processes_->console().Say(
      absl::StrCat(cause.line, again ? absl::StrCat("; starting the job again (restart ",
                                                    round_->restarts + 1, " of ", plan().max_restarts, ")")
                                     : "; stopping the job"));
  // The launchers of the other nodes are told on which node it happened, and the last line of the output.
  std::string reason =
      absl::StrCat(cause.line, rendezvous_->alone() ? "" : absl::StrCat(", on ", rendezvous_->host()));
  if (cause.process != nullptr && !cause.explained) {
    reason += SayLastWords(*cause.process, services_.master_port(), processes_->console());
  }
  const int exit_code = cause.exit_code;
  job_failure_.clear();
  // If the store is in etcd, OnRoundOver does that: the others go on if this node has lost its place.
  if (!plan().reform && !InEtcd()) EndForMembers(exit_code, reason);
  if (!again) {
    failed_here_ = true;
    CloseJob(reason, exit_code);
    return Stop(Next::kEnd, exit_code, grace_);
  }
  const int64_t epoch = round_->epoch;
  monitor_->Tell([epoch, reason, exit_code](Rendezvous& rendezvous) {
    return rendezvous.RequestRestart(epoch, reason, exit_code);
  });
  if (!plan().reform) return Stop(Next::kJoin, exit_code, grace_);
  exit_code_ = exit_code;
  phase_ = Phase::kWaiting;
  deadline_ = MonotonicNow() + kRoundEndTimeout;
}

void NodeAgent::FormAgain(const std::string& reason) {
  if (std::function<void()> left = services_.EndRound(*round_); left != nullptr) {
    monitor_->Tell([left = std::move(left)](Rendezvous&) {
      left();
      return absl::OkStatus();
    });
  }
  if (absl::Status told = control_->RoundOver(assignment_, reason); !told.ok()) {
    processes_->console().Say(told.message());
  }
  BeginJoin();
}

void NodeAgent::EndForMembers(int exit_code, const std::string& reason) {
  // A process that wishes to be run again has saved its state, and the others are doing the same.
  if (exit_code != kRunAgain) monitor_->Unwatch(/*failed=*/true, reason);
}

void NodeAgent::CloseJob(const std::string& reason, int exit_code) {
  closed_ = true;
  monitor_->Tell([reason, exit_code](Rendezvous& rendezvous) {
    return rendezvous.Close(/*failed=*/true, reason, exit_code);
  });
}

}  // namespace tandem::launcher
