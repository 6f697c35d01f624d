// tandem status: who is in a running job, how far each is, and when it was last heard of.

#include <cstdio>
#include <memory>
#include <string>

#include "base/status.h"
#include "cli/commands.h"
#include "cli/profiling/members.h"
#include "cli/servers/find_servers.h"

namespace tandem::cli {
namespace {

struct StatusFlags {
  ServersFlags job;
  bool json = false;
};

absl::Status ShowStatus(const StatusFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::string store, FindStore(flags.job));
  TANDEM_ASSIGN_OR_RETURN(const JobMembers job, AskMembers(store, absl::Seconds(flags.job.timeout_seconds)));
  const std::string text = flags.json ? MembersToJson(job) + "\n" : MembersToText(job);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
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
      "passed without a heartbeat, dead when all of it has.");
  AddJobFlags(status, &flags->job);
  status->add_flag("--json", flags->json, "Print one JSON object");
  status->callback([flags, context] { context->exit_code = Report("status", ShowStatus(*flags)); });
}

}  // namespace tandem::cli
