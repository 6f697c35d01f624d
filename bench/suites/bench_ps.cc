// SPDX-License-Identifier: Apache-2.0
// `tandem bench ps`: measures how many rows per second the parameter server serves on this machine, over each
// transport, between server and worker processes that it starts itself.

#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/local_path.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "base/temporary_directory.h"
#include "bench/harness/ps_flags.h"
#include "bench/harness/ps_report.h"
#include "bench/suites/commands.h"
#include "bench/suites/group_process.h"
#include "bench/suites/own_processes.h"
#include "bench/suites/rank_processes.h"

namespace tandem::bench {
namespace {

struct PsBench {
  PsFlags flags;
  // Set in the processes that it starts.
  int group = -1;
  std::string socket_directory;
  std::string durability = "off";
  double max_lag_ms = 0;
  std::string wal_dir;  // given by the user; "": a temporary one
  std::string own_wal_dir;
};

bool IsFairness(const PsGroup& group) { return group.cases.front().op == PsOp::kFairness; }

// Makes the pulls read-only, so that followers may answer them.
absl::Status MakeReads(const PsBench& options, std::vector<PsGroup>* groups) {
  if (options.durability != "follower") {
    return absl::InvalidArgumentError("--max-lag needs servers with followers: --durability follower");
  }
  for (PsGroup& group : *groups) {
    for (PsCase& c : group.cases) {
      if (c.op != PsOp::kPull || (c.transport != PsTransport::kTcp && c.transport != PsTransport::kShm)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--max-lag is for pulls over tcp or shm (--op pull --transport tcp,shm), not for ",
                         Name(c.op), " over ", Name(c.transport)));
      }
      c.reads = true;
    }
  }
  return absl::OkStatus();
}

// Starts the processes of each group, one group after the other. Returns the exit code.
absl::StatusOr<int> RunGroups(const std::vector<PsGroup>& groups, bool json, const PsBench& options,
                              const std::vector<std::string>& args) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<TemporaryDirectory> sockets,
                          TemporaryDirectory::Make("tandem-bench"));
  const std::string logs = options.wal_dir.empty() ? absl::StrCat(sockets->path(), "/wal") : options.wal_dir;
  for (size_t g = 0; g < groups.size(); ++g) {
    const PsGroup& group = groups[g];
    if (!json && (g == 0 || IsFairness(groups[g - 1]) != IsFairness(group))) {
      IsFairness(group) ? PrintFairnessHeader() : PrintPsHeader();
    }
    std::vector<std::string> words = {"bench",
                                      "ps",
                                      "--group",
                                      absl::StrCat(g),
                                      "--socket-directory",
                                      sockets->path(),
                                      "--wal",
                                      absl::StrCat(logs, "/group-", g)};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<std::string> names;
    for (int w = 0; w < group.workers; ++w) names.push_back(absl::StrCat("worker/", w));
    for (int s = 0; s < group.servers; ++s) names.push_back(absl::StrCat("server/", s));
    if (options.durability == "follower") {
      for (int s = 0; s < group.servers; ++s) names.push_back(absl::StrCat("follower/", s));
    }
    TANDEM_ASSIGN_OR_RETURN(const int code, RunRanks(static_cast<int>(names.size()), words, names));
    if (code != 0) return code;
  }
  return 0;
}

absl::StatusOr<int> Run(const PsBench& options, const std::vector<std::string>& args) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<PsGroup> groups, PsGroupsOf(options.flags));
  if (options.max_lag_ms > 0) TANDEM_RETURN_IF_ERROR(MakeReads(options, &groups));
  if (options.group < 0) return RunGroups(groups, options.flags.json, options, args);
  if (options.group >= static_cast<int>(groups.size())) return absl::InvalidArgumentError("no such group");
  TANDEM_RETURN_IF_ERROR(
      RunGroupProcess(groups[options.group], {.rows = options.flags.rows,
                                              .time_per_case = absl::Milliseconds(options.flags.time_ms),
                                              .json = options.flags.json,
                                              .socket_directory = options.socket_directory,
                                              .durability = options.durability,
                                              .wal_dir = options.own_wal_dir,
                                              .max_lag = absl::Milliseconds(options.max_lag_ms)}));
  return 0;
}

}  // namespace

void AddBenchPs(CLI::App* bench, CommandContext* context) {
  CLI::App* command =
      bench->add_subcommand("ps", "Time pulls and pushes between servers and workers that it starts");
  command->footer(
      "The table does its real work: ids are looked up in its index, pushes are applied by Adagrad. After "
      "each case rows\nare pulled and compared with what they must be after all pushes: a wrong one ends the "
      "benchmark.");
  auto options = std::make_shared<PsBench>();
  DeclarePsFlags(command, &options->flags);
  command
      ->add_option("--durability", options->durability,
                   "off; log-never, log-always: the servers log pushes, as `tandem ps --wal-sync` says; "
                   "follower: each "
                   "server has a follower, a process of its own, over TCP")
      ->check(CLI::IsMember({"off", "log-never", "log-always", "follower"}))
      ->capture_default_str();
  LimitTo(Between(0, 3600e3),
          command->add_option(
              "--max-lag", options->max_lag_ms,
              "Milliseconds: pulls are read-only, and followers may answer them with rows that lack at "
              "most the updates of this time. Needs --durability follower, --op pull"));
  LocalPath(command->add_option("--wal-dir", options->wal_dir,
                                "New directory for these logs, on a local disk [TMPDIR]"));
  command->add_option("--wal", options->own_wal_dir)->group("");
  command->add_option("--group", options->group)->group("");
  command->add_option("--socket-directory", options->socket_directory)->group("");
  command->callback([options, command, context] {
    const absl::StatusOr<int> code = Run(*options, GivenFlags(*command));
    context->exit_code = code.ok() ? *code : ReportBench("bench ps", code.status());
  });
}

}  // namespace tandem::bench
