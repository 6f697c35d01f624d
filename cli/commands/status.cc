// SPDX-License-Identifier: Apache-2.0
// tandem status: lists the processes of a running job, with their steps and their last heartbeats.

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/json.h"
#include "base/logging.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_flags.h"
#include "cli/monitor/find_job.h"
#include "cli/monitor/members.h"
#include "cli/monitor/rounds.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;

struct StatusFlags {
  JobFlags job;
  double interval_seconds = 0;
  bool json = false;
};

// Prints the job's status once. Returns whether the job has ended.
absl::StatusOr<bool> ShowStatus(const StatusFlags& flags) {
  const absl::Duration timeout = absl::Seconds(flags.job.timeout_seconds);
  TANDEM_ASSIGN_OR_RETURN(const launcher::JobAddress where, FindJob(flags.job));
  std::string store = where.store;
  std::optional<JobRounds> rounds;
  if (!where.rendezvous.empty()) {
    absl::StatusOr<JobRounds> asked = AskRounds(where.rendezvous, where.run_id, timeout);
    if (asked.ok()) {
      rounds = *std::move(asked);
      store = rounds->store();
    } else if (store.empty()) {
      return asked.status();
    } else {
      LogWarning(asked.status().message());
    }
  }
  JobMembers members;
  if (!store.empty()) {
    absl::StatusOr<JobMembers> asked = AskMembers(store, timeout);
    if (asked.ok()) {
      members = *std::move(asked);
    } else if (rounds.has_value()) {
      LogWarning(absl::StrCat("the processes of the round are not known: ", asked.status().message()));
    } else {
      return asked.status();
    }
  }
  std::string text;
  if (flags.json) {
    Json json = ParseOrderedJson(MembersToJson(members));
    if (rounds.has_value()) json["rounds"] = ParseOrderedJson(RoundsToJson(*rounds));
    text = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  } else {
    if (rounds.has_value()) text = RoundsToText(*rounds) + "\n";
    if (!store.empty()) text += MembersToText(members);
  }
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  return rounds.has_value() ? rounds->state.phase() == cluster::RendezvousState::CLOSED : members.ended;
}

absl::Status ShowStatusUntilTheEnd(const StatusFlags& flags) {
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const bool ended, ShowStatus(flags));
    if (ended || flags.interval_seconds <= 0) return absl::OkStatus();
    absl::SleepFor(absl::Seconds(flags.interval_seconds));
  }
}

}  // namespace

void AddStatus(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* status =
      app.add_subcommand("status", "Who is in a running job: host, pid, step, last heartbeat, state");
  status->footer(
      "As the job's store knows it from heartbeats, of which a member sends one each quarter of its lease. "
      "EPOCH\n"
      "is the round of the rendezvous, PASS the pass over the data. A member is silent when half its lease "
      "has\n"
      "passed without a heartbeat, dead when all of it has. Of a job of several launchers the nodes, the "
      "round and\n"
      "the restarts come first, as its rendezvous knows them: also --store etcd://HOST:PORT/PREFIX/ID, from "
      "anywhere.");
  AddJobFlags(status, &flags->job);
  status
      ->add_option("--interval", flags->interval_seconds,
                   "Seconds between two looks, until the job has ended; 0: look once")
      ->check(CLI::Range(0.0, 3600.0));
  status->add_flag("--json", flags->json, "Print one JSON object (a line) for each look");
  status->callback(
      [flags, context] { context->exit_code = Report("status", ShowStatusUntilTheEnd(*flags)); });
}

}  // namespace tandem::cli
