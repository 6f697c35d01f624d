// The beginning of a round: NodeAgent joins it and starts its processes.

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "launcher/job_file.h"
#include "launcher/node_agent.h"
#include "launcher/plan/cluster_file.h"

namespace tandem::launcher {

using collectives::Node;
using collectives::Rendezvous;
using collectives::Round;

namespace {

std::string FreshNodeId(const std::string& host) {
  std::random_device random;
  return absl::StrCat(host, "-", ::getpid(), "-", absl::Hex(random(), absl::kZeroPad8));
}

// Returns whether some node of the round has processes that end by themselves.
bool HasWork(const Round& round, const LaunchPlan& plan) {
  for (const Node& node : round.nodes) {
    for (const auto& [name, count] : node.processes) {
      const RolePlan* mine = plan.Find(name);
      if (count > 0 && !(mine != nullptr ? mine->serves : DefaultRole(name).serves)) return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeAgent>> NodeAgent::Create(NodeAgentOptions options, Processes* processes,
                                                             RendezvousHandler* meeting) {
  std::unique_ptr<NodeAgent> agent(new NodeAgent(std::move(options), processes, meeting));
  TANDEM_RETURN_IF_ERROR(agent->PrepareSlots());
  return agent;
}

NodeAgent::NodeAgent(NodeAgentOptions options, Processes* processes, RendezvousHandler* meeting)
    : options_(std::move(options)),
      processes_(processes),
      rendezvous_(meeting),
      own_(OwnVariables()),
      node_id_(FreshNodeId(meeting->host())) {}

NodeAgent::~NodeAgent() = default;

absl::Status NodeAgent::PrepareSlots() {
  for (const RolePlan& role : options_.plan.roles) {
    std::string program = options_.self;
    if (!role.command.empty() && role.command[0] != "tandem") {
      TANDEM_ASSIGN_OR_RETURN(program, FindProgram(role.command[0]));
    }
    for (int i = 0; i < role.count; ++i)
      slots_.push_back({.role = &role, .local_rank = i, .program = program});
  }
  // Processes with the same `bind` share the processors.
  for (const Bind bind : {Bind::kCore, Bind::kNuma}) {
    std::vector<Slot*> bound;
    for (Slot& slot : slots_) {
      if (slot.role->bind == bind) bound.push_back(&slot);
    }
    if (bound.empty()) continue;
    const CpuTopology topology = ReadCpuTopology("/sys/devices/system", AllowedProcessors());
    for (size_t i = 0; i < bound.size(); ++i) {
      bound[i]->cpus = ProcessorsOf(topology, bind, static_cast<int>(i), static_cast<int>(bound.size()));
    }
  }
  return absl::OkStatus();
}

void NodeAgent::BeginJoin() {
  phase_ = Phase::kJoining;
  deadline_ = absl::InfiniteFuture();
  round_over_ = finish_told_ = false;
  failed_.clear();
  job_failure_.clear();
  processes_->ForgetEnded();
  // Members that survive the round learn of its end from LauncherControl.
  watch_->Unwatch(/*failed=*/control_ == nullptr, "the round is over");
  old_store_ = std::move(store_);

  const std::string here = rendezvous_->alone() ? "127.0.0.1" : rendezvous_->host();
  Node node{.id = node_id_, .host = rendezvous_->master_addr(), .node_rank = rendezvous_->node_rank()};
  absl::Status status;
  store_gate_ = std::make_shared<rpc::EpochGate>(
      rpc::Caller{.run_id = options_.run_id, .member = absl::StrCat("the store of node ", node_id_)});
  if (auto store = collectives::StoreServer::Start(rpc::IsLoopbackHost(here) ? "127.0.0.1:0" : "0.0.0.0:0",
                                                   Clock::Real(), store_gate_);
      store.ok()) {
    store_ = *std::move(store);
    node.store = absl::StrCat(here, ":", store_->port());
  } else {
    status = Annotate(store.status(), "cannot serve the job's store");
  }
  // A port that the user has chosen stays reserved from round to round.
  if (status.ok() && (port_ == nullptr || options_.master_port == 0)) {
    absl::StatusOr<std::unique_ptr<PortReservation>> kept = PortReservation::Keep(options_.master_port);
    if (kept.ok()) port_ = *std::move(kept);
    status = kept.status();
  }
  if (!status.ok()) {
    processes_->console().Say(status.message());
    CloseJob(std::string(status.message()), /*exit_code=*/1);
    return Stop(Next::kEnd, 1, options_.grace);
  }
  node.master_port = port_->port();
  for (Slot& slot : slots_) {
    // A process that had finished is needed as well, to hand over or repeat the failed round's work.
    slot.done = false;
    ++node.processes[slot.role->name];
  }
  if (!rendezvous_->alone()) {
    processes_->console().Say(
        absl::StrCat("waiting for a round of ", rendezvous_->NodesText(), " at ", rendezvous_->ToString()));
  }
  watch_->Join(node);
}

void NodeAgent::OnRound(const AgentEvent& event) {
  if (phase_ != Phase::kJoining) return;  // it was stopped meanwhile
  if (!event.status.ok()) {
    processes_->console().Say(absl::StrCat("this node cannot take part: ", event.status.message()));
    return Stop(Next::kEnd, exit_code_ != 0 ? exit_code_ : 1, options_.grace);
  }
  // A round took place without this node. Its processes' state is older than that of the other nodes, and
  // must not count as the newest if those die.
  const bool stale = round_.has_value() && event.round.epoch != round_->epoch + 1 && !processes_->AllEnded();
  round_ = event.round;
  store_gate_->Enter(round_->epoch);
  ++assignment_;
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
    CloseJob(absl::StrCat(started.message(), ", on ", rendezvous_->host()), /*exit_code=*/1);
    return Stop(Next::kEnd, 1, options_.grace);
  }
  FinishIfDone();
}

absl::Status NodeAgent::StartRound() {
  if (round_->group_rank == 0) {
    for (const RolePlan& role : options_.plan.roles) {
      if (role.restart == Restart::kAlone) store_->membership()->LetRestart(role.name);
    }
    watch_->Watch(store_->membership(), round_->epoch);
  }
  // `tandem status`, `tandem top` and others read it, on any node.
  TANDEM_RETURN_IF_ERROR(WriteJobFile(options_.log_dir, {.store = round_->nodes[0].store,
                                                         .rendezvous = rendezvous_->address(),
                                                         .run_id = options_.run_id,
                                                         .num_servers = round_->WorldSize("ps")}));
  SayRound();
  if (control_ != nullptr) TANDEM_RETURN_IF_ERROR(TellNewPlaces());
  for (Slot& slot : slots_) {
    if (slot.process == nullptr) TANDEM_RETURN_IF_ERROR(StartSlot(slot));
  }
  return absl::OkStatus();
}

absl::Status NodeAgent::TellNewPlaces() {
  std::map<std::string, collectives::Assignment> places;
  const Node& first = round_->nodes[0];
  for (Slot& slot : slots_) {
    const RolePlan& role = *slot.role;
    const int rank = round_->FirstRank(role.name) + slot.local_rank;
    places[absl::StrCat(role.name, "/", slot.local_rank)] = {.number = assignment_,
                                                             .epoch = round_->epoch,
                                                             .rank = rank,
                                                             .world_size = round_->WorldSize(role.name),
                                                             .local_rank = slot.local_rank,
                                                             .local_world_size = role.count,
                                                             .group_rank = round_->group_rank,
                                                             .restarts = round_->restarts,
                                                             .store = first.store,
                                                             .master_addr = first.host,
                                                             .master_port = first.master_port};
    if (slot.process != nullptr) slot.process->Rename(absl::StrCat(role.name, "/", rank));
  }
  return control_->Announce(places);
}

void NodeAgent::SayRound() {
  std::string what;
  if (rendezvous_->alone()) {
    std::vector<std::string> parts;
    for (const RolePlan& role : options_.plan.roles) {
      const std::string& name = role.name;
      const std::string kind = name == "ps" ? "parameter server" : name;
      const bool many =
          role.count > 1 && (name == "ps" || name == "worker" || name == "learner" || name == "actor");
      parts.push_back(absl::StrCat(role.count, " ", kind, many ? "s" : ""));
    }
    what = absl::StrJoin(parts, ", ");
  } else {
    std::vector<std::string> parts;
    for (const RolePlan& role : options_.plan.roles) {
      const int first = round_->FirstRank(role.name);
      parts.push_back(absl::StrCat(role.name, "/", first,
                                   role.count > 1 ? absl::StrCat(" to ", first + role.count - 1) : "", " of ",
                                   round_->WorldSize(role.name)));
    }
    what = absl::StrCat("node ", round_->group_rank, " of ", round_->nodes.size(), " in round ",
                        round_->epoch, ": ", absl::StrJoin(parts, ", "));
  }
  processes_->console().Say(absl::StrCat(what, "; logs in ", options_.log_dir));
}

absl::Status NodeAgent::StartSlot(Slot& slot) {
  if (failed_.empty()) processes_->ForgetEnded();
  // A new round may start a process before its restart was due.
  slot.restart_at = absl::InfiniteFuture();
  TANDEM_ASSIGN_OR_RETURN(ProcessSpec spec, SpecOf(slot));
  TANDEM_ASSIGN_OR_RETURN(slot.process, processes_->Start(std::move(spec)));
  return absl::OkStatus();
}

absl::StatusOr<ProcessSpec> NodeAgent::SpecOf(Slot& slot) {
  const RolePlan& role = *slot.role;
  ProcessSlot place{.plan = &options_.plan,
                    .role = &role,
                    .round = &*round_,
                    .local_rank = slot.local_rank,
                    .run_id = options_.run_id,
                    .assignment = assignment_,
                    .restarts_alone = slot.restarts_alone};
  ProcessSpec spec{.name = absl::StrCat(role.name, "/", place.role_rank()), .program = slot.program};
  if (role.command.empty()) {
    const std::string index = absl::StrCat(place.role_rank());
    spec.args = {"tandem", "ps", "--index", index, "--num-servers", absl::StrCat(round_->WorldSize("ps"))};
    if (!rendezvous_->alone()) {
      const std::string listen = rpc::IsLoopbackHost(rendezvous_->host()) ? "127.0.0.1:0" : "0.0.0.0:0";
      spec.args.insert(spec.args.end(), {"--listen", listen, "--advertise", rendezvous_->host()});
    }
    if (options_.metrics_port >= 0) {
      // With 0 the kernel picks a port for each server, which its log names.
      const int port = options_.metrics_port == 0 ? 0 : options_.metrics_port + slot.local_rank;
      spec.args.insert(spec.args.end(), {"--metrics-port", absl::StrCat(port)});
    }
    place.spill_dir = absl::StrCat(options_.spill_dir, "/ps-", slot.local_rank);
  } else {
    spec.args = role.command;
  }
  if (agent_store_ != nullptr) place.agent = absl::StrCat("127.0.0.1:", agent_store_->port());
  spec.front = place.is_main() && place.role_rank() == 0;
  // Rank 0 writes to a pipe, but may draw as on a terminal, because its output is passed on unchanged.
  place.terminal = spec.front && processes_->console().sink(Console::kOut).is_terminal();
  spec.cpus = slot.cpus;

  // Absolute, because a program may change its directory.
  std::error_code error;
  const std::string attempt = absl::StrCat(
      std::filesystem::absolute(options_.attempts_dir, error).string(), "/attempt_", round_->restarts, "/",
      place.is_main() ? "" : absl::StrCat(role.name, "-"), slot.local_rank);
  std::filesystem::create_directories(attempt, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot make the log directory '", attempt,
                                               "': ", error.message(), "; choose another --log-dir"));
  }
  place.error_file = spec.error_file = absl::StrCat(attempt, "/error.json");
  std::filesystem::remove(spec.error_file, error);  // an earlier job of this name may have left one
  spec.files.log = absl::StrCat(options_.log_dir, "/", absl::StrReplaceAll(spec.name, {{"/", "-"}}), ".log");
  spec.files.append = !logs_.insert(spec.files.log).second;
  if (place.is_main()) {
    const int tee = options_.tee.Of(slot.local_rank), redirect = options_.redirects.Of(slot.local_rank);
    const bool shown = !options_.shown.has_value() || options_.shown->contains(slot.local_rank);
    for (const Console::Stream stream : {Console::kOut, Console::kErr}) {
      const int bit = stream == Console::kOut ? StreamChoice::kOut : StreamChoice::kErr;
      if (((tee | redirect) & bit) != 0) {
        spec.files.streams[stream] =
            absl::StrCat(attempt, stream == Console::kOut ? "/stdout.log" : "/stderr.log");
      }
      spec.files.console[stream] = shown && ((redirect & ~tee) & bit) == 0;
    }
  }
  spec.environment = ToStrings(VariablesOf(own_, place));
  return spec;
}

void NodeAgent::FinishIfDone() {
  if (finish_told_ || phase_ != Phase::kRunning || !HasWork(*round_, options_.plan)) return;
  if (!absl::c_all_of(slots_, [](const Slot& slot) { return slot.done || slot.role->serves; })) return;
  finish_told_ = true;
  const int64_t epoch = round_->epoch;
  watch_->Tell([epoch](Rendezvous& rendezvous) { return rendezvous.Finish(epoch); });
}

}  // namespace tandem::launcher
