// SPDX-License-Identifier: Apache-2.0
#include "launcher/round_processes.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "launcher/log_directories.h"
#include "launcher/plan/copies.h"

namespace tandem::launcher {
namespace {

// A process that ran at least this long resets the count of consecutive deaths.
constexpr absl::Duration kHealthy = absl::Minutes(10);
constexpr absl::Duration kFirstPause = absl::Milliseconds(500);
// A durable server that has served, and ran this long, is started again at once: all workers wait for it. So
// is one with followers: until its copy is complete, there is one copy less.
constexpr absl::Duration kServed = absl::Seconds(2);
constexpr absl::Duration kPauseOfServer = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Seconds(30);

absl::Duration PauseBefore(int restart) {
  return std::min(kLongestPause, kFirstPause * (int64_t{1} << std::min(restart - 1, 10)));
}

// Returns the 64-bit FNV-1a hash of a role's command line: the same on every node. Never 0.
uint64_t HashWords(const std::vector<std::string>& words, int min_copies) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](absl::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    hash = (hash ^ 0xFFu) * 0x100000001b3u;  // the end of a word
  };
  for (const std::string& word : words) add(word);
  add(absl::StrCat(min_copies));
  return std::max<uint64_t>(hash, 1);
}

// The name of a process in LauncherControl. It does not change with the rank.
std::string LocalName(const PlannedProcess& planned) {
  return absl::StrCat(planned.role->name, "/", planned.local_rank);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RoundProcesses>> RoundProcesses::Create(NodeOptions options,
                                                                       Processes* processes) {
  std::unique_ptr<RoundProcesses> round(new RoundProcesses(std::move(options), processes));
  TANDEM_ASSIGN_OR_RETURN(std::vector<PlannedProcess> planned, PlanProcesses(round->options_));
  for (PlannedProcess& process : planned) round->slots_.push_back({.planned = std::move(process)});
  return round;
}

RoundProcesses::RoundProcesses(NodeOptions options, Processes* processes)
    : options_(std::move(options)),
      processes_(processes),
      specs_(&options_, processes->console().sink(Console::kOut).is_terminal()) {}

void RoundProcesses::PrepareRound() {
  failed_.clear();
  processes_->ForgetEnded();
  // A process that had finished is needed as well, to hand over or repeat the failed round's work.
  for (Slot& slot : slots_) slot.done = false;
}

std::map<std::string, int> RoundProcesses::CountByRole() const {
  std::map<std::string, int> counts;
  for (const RolePlan& role : options_.plan.roles) {
    counts[role.name] = role.count;
    if (role.followers > 0) counts[kFollowersRole] = role.count * role.followers;
  }
  return counts;
}

std::map<std::string, uint64_t> RoundProcesses::CommandsByRole() const {
  std::map<std::string, uint64_t> commands;
  for (const RolePlan& role : options_.plan.roles) {
    commands[role.name] = HashWords(role.command, role.min_copies);
    if (role.followers > 0) commands[kFollowersRole] = commands[role.name];
  }
  return commands;
}

void RoundProcesses::SetRound(NodeRound round) {
  const bool another = round.round.epoch != round_.round.epoch;
  round_ = std::move(round);
  // A successor counts on from what the rendezvous knows of this round, in which the count begins at 0.
  for (Slot& slot : slots_) {
    slot.restarts_alone = std::max(another ? 0 : slot.restarts_alone, round_.round.process_restarts);
  }
}

int RoundProcesses::MostRestarts() const {
  int most = 0;
  for (const Slot& slot : slots_) most = std::max(most, slot.restarts_alone);
  return most;
}

std::map<std::string, collectives::Assignment> RoundProcesses::Reassign() {
  std::map<std::string, collectives::Assignment> assignments;
  const cluster::Round& round = round_.round;
  const cluster::Node& first = round.nodes[0];
  for (Slot& slot : slots_) {
    const RolePlan& role = *slot.planned.role;
    const int local_rank = slot.planned.local_rank;
    const int rank = round.FirstRank(role.name) + local_rank;
    assignments[LocalName(slot.planned)] = {.number = round_.assignment,
                                            .epoch = round.epoch,
                                            .rank = rank,
                                            .world_size = round.WorldSize(role.name),
                                            .local_rank = local_rank,
                                            .local_world_size = role.count,
                                            .group_rank = round.group_rank,
                                            .restarts = round.restarts,
                                            .store = first.store,
                                            .master_addr = first.host,
                                            .master_port = first.master_port};
    if (slot.process != nullptr) slot.process->Rename(absl::StrCat(role.name, "/", rank));
  }
  return assignments;
}

absl::Status RoundProcesses::StartAll() {
  for (Slot& slot : slots_) {
    if (slot.process == nullptr) TANDEM_RETURN_IF_ERROR(Start(slot));
  }
  return absl::OkStatus();
}

absl::Status RoundProcesses::Start(Slot& slot) {
  if (failed_.empty()) processes_->ForgetEnded();
  // A new round may start a process before its restart was due.
  slot.restart_at = absl::InfiniteFuture();
  // A server with a unix socket is at the same path whenever it starts.
  if (IsDurable(*slot.planned.role) && slot.port == nullptr && !options_.advertise.empty()) {
    TANDEM_ASSIGN_OR_RETURN(slot.port, PortReservation::Keep(0));
  }
  TANDEM_ASSIGN_OR_RETURN(ProcessSpec spec, specs_.Make(slot.planned, round_, slot.restarts_alone,
                                                        slot.port == nullptr ? 0 : slot.port->port()));
  TANDEM_ASSIGN_OR_RETURN(slot.process, processes_->Start(std::move(spec)));
  return absl::OkStatus();
}

RoundProcesses::Slot* RoundProcesses::TakeEnded(Process* process) {
  const auto slot = absl::c_find_if(slots_, [process](const Slot& one) { return one.process == process; });
  if (slot == slots_.end()) return nullptr;
  slot->process = nullptr;
  return &*slot;
}

bool RoundProcesses::AllDone() const {
  return absl::c_all_of(slots_, [](const Slot& slot) { return slot.done || slot.planned.role->serves; });
}

bool RoundProcesses::PlanRestart(Slot& slot, const Process& process) {
  const RolePlan& role = *slot.planned.role;
  Console& console = processes_->console();
  if (role.restart != Restart::kAlone) return false;
  if (role.followers > 0 && process.exit_code() == kExitToComeBack) {
    slot.deaths_in_a_row = 0;
    slot.restart_at = MonotonicNow() + kPauseOfServer;
    ++slot.restarts_alone;
    console.Say(absl::StrCat(process.name(), " has handed its shard over; starting it again as a follower"));
    return true;
  }
  const bool lossless = LosesNothing(role);
  // Replaying a long log, or copying large tables, takes time, and is no sign of health.
  const bool healthy = MonotonicNow() - process.started() >= (lossless ? kServed : kHealthy) &&
                       (!lossless || HasServed(process.spec().serving_dir, process.pid()));
  slot.deaths_in_a_row = healthy ? 1 : slot.deaths_in_a_row + 1;
  const int limit = role.restart_limit;
  if (slot.deaths_in_a_row > limit && role.followers > 0 && SomeServe(role)) {
    // The job has its primaries, and has one copy less. If the last one of a shard is lost, a process says
    // so.
    slot.restart_at = MonotonicNow() + kLongestPause;
    ++slot.restarts_alone;
    console.Say(
        absl::StrCat(process.HowItEnded(), " after ", limit,
                     " restarts in a row; its shard goes on with one copy less; starting it again in ",
                     absl::FormatDuration(kLongestPause)));
    for (const std::string& text : process.output().tail()) console.Say(absl::StrCat("  | ", text));
    return true;
  }
  if (slot.deaths_in_a_row > limit) {
    console.Say(absl::StrCat(process.name(), " has been started again ", limit,
                             " times in a row: that is its limit (--restart ", role.name, "=alone:", limit,
                             ")"));
    return false;
  }
  const absl::Duration pause =
      lossless && slot.deaths_in_a_row == 1 ? kPauseOfServer : PauseBefore(slot.deaths_in_a_row);
  slot.restart_at = MonotonicNow() + pause;
  ++slot.restarts_alone;
  console.Say(absl::StrCat(process.HowItEnded(), "; starting it again in ", absl::FormatDuration(pause), " (",
                           slot.deaths_in_a_row, " of ", limit, ")"));
  for (const std::string& text : process.output().tail()) console.Say(absl::StrCat("  | ", text));
  if (role.followers > 0) {
    console.Say(absl::StrCat(
        process.name(), " comes back as a new copy; if it was its shard's primary, a follower takes over"));
  } else if (IsDurable(role)) {
    console.Say(
        absl::StrCat(process.name(), " comes back with its log, at the same address; workers wait for it"));
  } else if (role.name == "ps" && role.command.empty()) {
    console.Say(absl::StrCat(
        process.name(),
        " comes back with empty tables and at another address: workers that hold the old one will "
        "fail. Without --restart ps=alone the whole job starts again, and `--resume auto` takes "
        "its newest checkpoint"));
  }
  return true;
}

bool RoundProcesses::IsDurable(const RolePlan& role) const {
  return !options_.wal_dir.empty() && role.name == "ps" && role.command.empty();
}

bool RoundProcesses::SomeServe(const RolePlan& role) const {
  return absl::c_any_of(slots_, [&role](const Slot& slot) {
    return slot.planned.role == &role && slot.process != nullptr &&
           HasServed(slot.process->spec().serving_dir, slot.process->pid());
  });
}

absl::Status RoundProcesses::StartDue(absl::Time now) {
  absl::Status result;
  for (Slot& slot : slots_) {
    if (now < slot.restart_at) continue;
    if (absl::Status started = Start(slot); !started.ok()) result = std::move(started);
  }
  return result;
}

void RoundProcesses::PutOffRestarts(absl::Time time) {
  for (Slot& slot : slots_) {
    if (slot.restart_at != absl::InfiniteFuture()) slot.restart_at = std::max(slot.restart_at, time);
  }
}

absl::Time RoundProcesses::NextRestart() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Slot& slot : slots_) next = std::min(next, slot.restart_at);
  return next;
}

const Process* RoundProcesses::Find(absl::string_view role_and_local_rank) const {
  for (const Slot& slot : slots_) {
    if (slot.process != nullptr && role_and_local_rank == LocalName(slot.planned)) return slot.process;
  }
  return nullptr;
}

const Process* RoundProcesses::FindLost() const {
  for (const Slot& slot : slots_) {
    if (slot.process != nullptr && slot.process->lost()) return slot.process;
  }
  return nullptr;
}

bool RoundProcesses::OnlyLostLeft() const {
  const auto lost = [](const Slot& slot) { return slot.process != nullptr && slot.process->lost(); };
  bool some = false;
  for (const Slot& slot : slots_) {
    if (slot.done || slot.planned.role->serves) continue;
    if (!lost(slot)) return false;
    some = true;
  }
  return some;
}

std::vector<const Process*> RoundProcesses::Running() const {
  std::vector<const Process*> running;
  for (const Slot& slot : slots_) {
    if (slot.process != nullptr) running.push_back(slot.process);
  }
  return running;
}

void RoundProcesses::Terminate(int signal) {
  for (Slot& slot : slots_) slot.restart_at = absl::InfiniteFuture();
  serving_told_ = false;
  processes_->Signal(/*serving=*/false, signal);
}

bool RoundProcesses::TerminateServing() {
  if (serving_told_ || !processes_->OnlyServing()) return false;
  serving_told_ = true;
  processes_->Signal(/*serving=*/true, SIGTERM);
  return true;
}

void RoundProcesses::Kill() { processes_->KillAll(); }

}  // namespace tandem::launcher
