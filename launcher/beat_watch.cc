// SPDX-License-Identifier: Apache-2.0
#include "launcher/beat_watch.h"

#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/membership/beat.h"
#include "launcher/process/proc_status.h"

namespace tandem::launcher {
namespace {

using Slot = RoundProcesses::Slot;

// The process that beats: the started one, or one that it has started.
pid_t Beating(const Process& process) {
  const pid_t holder = process.beat()->Holder().value_or(0);
  return holder > 0 ? holder : process.pid();
}

SilenceRules::Finding Examine(const Process& process) {
  const std::optional<pid_t> holder = process.beat()->Holder();
  const ProcStatus status = ReadProcStatus(Beating(process));
  return {.joined = holder.has_value(),
          .traced = status.tracer != 0,
          .dumping = status.dumping,
          .exiting = status.exiting};
}

std::string Time(absl::Duration time) {
  return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(100)));
}

// Returns "worker/1 (pid 12)", and the process that beats if it is another one.
std::string Name(const Process& process) {
  const pid_t beating = Beating(process);
  return absl::StrCat(process.name(), " (pid ", process.pid(),
                      beating == process.pid() ? "" : absl::StrCat(", its process ", beating), ")");
}

// Returns "state T (stopped), waiting in do_signal_stop".
std::string State(const Process& process) {
  const ProcStatus status = ReadProcStatus(Beating(process));
  return absl::StrCat("state ", status.state,
                      status.waits.empty() ? "" : absl::StrCat(", waiting in ", status.waits));
}

}  // namespace

void BeatWatch::SayLost(const Process& process) {
  processes_.console().Say(
      absl::StrCat(Name(process), " does not end after SIGKILL: ", State(process),
                   "; it is lost, and no other process is started in its place while it is there"));
}

std::vector<const Slot*> BeatWatch::Look(absl::Time now, const std::vector<Slot>& slots) {
  std::map<int, const Slot*> watched;
  std::vector<SilenceRules::Beat> beats;
  for (const Slot& slot : slots) {
    if (slot.process == nullptr || slot.process->beat() == nullptr) continue;
    watched[slot.process->number()] = &slot;
    beats.push_back({.id = slot.process->number(),
                     .role = slot.planned.role->name,
                     .count = slot.process->beat()->count()});
  }
  const SilenceRules::Verdict verdict =
      rules_.Look(now, beats, [&watched](int id) { return Examine(*watched.at(id)->process); });
  Console& console = processes_.console();
  const std::string lease = absl::FormatDuration(lease_);
  for (const SilenceRules::Silent& one : verdict.traced) {
    const Process& process = *watched.at(one.id)->process;
    console.Say(absl::StrCat(Name(process), " has been silent for ", Time(one.silence), ": process ",
                             ReadProcStatus(Beating(process)).tracer,
                             " debugs it, so it is not taken for hung"));
  }
  for (const SilenceRules::Silent& one : verdict.dumping) {
    console.Say(absl::StrCat(Name(*watched.at(one.id)->process), " has been silent for ", Time(one.silence),
                             ": it writes its core, so it is not taken for hung"));
  }
  if (verdict.stalled > 0) {
    console.Say(absl::StrCat(verdict.stalled, " of ", verdict.joined,
                             " processes of this node have been silent together (lease ", lease,
                             "): the machine stalls, or somebody has stopped them; none is ended for that"));
  }
  for (const SilenceRules::Silent& one : verdict.end) {
    Process* const process = watched.at(one.id)->process;
    console.Say(absl::StrCat(Name(*process), " has been silent for ", Time(one.silence), " (lease ", lease,
                             "): ", State(*process), "; it hangs, and is ended"));
    processes_.Kill(*process, absl::StrCat("was silent for ", Time(one.silence), " (hung; lease ", lease,
                                           "), ended by the launcher"));
  }
  std::vector<const Slot*> lost;
  for (const SilenceRules::Silent& one : verdict.lost) {
    SayLost(*watched.at(one.id)->process);
    lost.push_back(watched.at(one.id));
  }
  return lost;
}

}  // namespace tandem::launcher
