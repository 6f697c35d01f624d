// SPDX-License-Identifier: Apache-2.0
// tandem ps status: shows the copies of a running job's shards.

#include "cli/commands/ps_status.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "cli/commands/job_flags.h"
#include "cli/monitor/find_job.h"
#include "cli/monitor/shards.h"

namespace tandem::cli {
namespace {

struct ShardFlags {
  JobFlags job;
  bool json = false;
};

absl::Status ShowShards(const ShardFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const launcher::JobAddress job, FindJob(flags.job));
  TANDEM_ASSIGN_OR_RETURN(const std::string store, FindStore(flags.job));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ShardReport> shards,
                          AskShards(store, static_cast<uint32_t>(std::clamp(job.num_servers, 0, 1 << 16)),
                                    absl::Seconds(flags.job.timeout_seconds)));
  const std::string text = flags.json ? ShardsToJson(shards) + "\n" : ShardsToText(shards);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  const auto without = std::count_if(shards.begin(), shards.end(),
                                     [](const ShardReport& shard) { return shard.Primary() == nullptr; });
  if (without == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(without, " of ", shards.size(), " shards have no primary; their pulls and pushes wait"));
}

}  // namespace

void AddPsStatus(CLI::App& ps, CommandContext* context) {
  auto flags = std::make_shared<ShardFlags>();
  CLI::App* status = ps.add_subcommand(
      "status", "The copies of a running job's shards: primary, followers in sync, learners");
  status->footer(
      "POSITION counts the records of the shard's log, LAG those that the slowest follower in sync has not "
      "applied. "
      "Ends with 1 if a shard has no primary.");
  AddJobFlags(status, &flags->job);
  status->add_flag("--json", flags->json, "Print one JSON object");
  status->callback([flags, context] { context->exit_code = Report("ps status", ShowShards(*flags)); });
}

}  // namespace tandem::cli
