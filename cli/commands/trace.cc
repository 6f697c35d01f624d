// SPDX-License-Identifier: Apache-2.0
// tandem trace: records what all processes of a running job do for a few seconds, and writes one timeline.

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/local_path.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_flags.h"
#include "cli/monitor/find_job.h"
#include "cli/monitor/members.h"
#include "cli/profiling/chrome_json.h"
#include "cli/profiling/collect.h"
#include "cli/profiling/overlap.h"
#include "cli/profiling/timeline.h"

namespace tandem::cli {
namespace {

struct TraceFlags {
  JobFlags job;
  double seconds = 5;
  std::string out = "trace.json";
  uint64_t max_events = 200'000;
};

absl::Status Trace(const TraceFlags& flags) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(flags.out).parent_path();
  if (!parent.empty() && !std::filesystem::is_directory(parent, error)) {
    return absl::NotFoundError(absl::StrCat("-o ", flags.out, ": there is no directory ", parent.string()));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string store, FindStore(flags.job));
  const absl::Duration timeout = absl::Seconds(flags.job.timeout_seconds);
  TANDEM_ASSIGN_OR_RETURN(const JobMembers job, AskMembers(store, timeout));
  if (job.members.empty()) {
    return absl::NotFoundError(absl::StrCat("the job whose store is at ", store, " has no members (yet)"));
  }
  const std::vector<CollectedTrace> collected = CollectTraces(
      job.members,
      {.length = absl::Seconds(flags.seconds), .timeout = timeout, .max_events = flags.max_events});
  for (const CollectedTrace& from : collected) {
    if (from.status.ok()) continue;
    std::fprintf(stderr, "tandem trace: %s is not in the trace (host %s, pid %lld, %s): %s\n",
                 from.member.name.c_str(), from.member.host.c_str(), static_cast<long long>(from.member.pid),
                 from.member.Liveness(), std::string(from.status.message()).c_str());
  }
  const Timeline timeline = MakeTimeline(collected);
  if (timeline.processes.empty()) return absl::UnavailableError("no process of the job could be traced");
  TANDEM_RETURN_IF_ERROR(WriteChromeJson(flags.out, timeline, collected));
  uint64_t lost = 0, events = 0;
  for (const TimelineProcess& process : timeline.processes) {
    lost += process.lost + process.from->trace.unplaced;
    for (const TimelineTrack& track : process.tracks) events += track.events.size();
  }
  std::printf("%s: %d events of %d process%s, %d calls joined; clocks agree within %.1f us\n",
              flags.out.c_str(), static_cast<int>(events), static_cast<int>(timeline.processes.size()),
              timeline.processes.size() == 1 ? "" : "es", static_cast<int>(timeline.joined),
              static_cast<double>(timeline.error_ns) / 1e3);
  if (lost > 0) {
    std::printf("%d older events had no room: trace for a shorter time, or raise --max-events\n",
                static_cast<int>(lost));
  }
  std::fputs(OverlapToText(MeasureOverlap(timeline)).c_str(), stdout);
  std::printf("Open it in https://ui.perfetto.dev or chrome://tracing\n");
  return absl::OkStatus();
}

}  // namespace

void AddTrace(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<TraceFlags>();
  CLI::App* trace = app.add_subcommand(
      "trace", "What all processes of a running job do, for a few seconds, as a Perfetto trace");
  trace->footer(
      "Calls with both of their halves, pulls, pushes, collectives, training steps. The processes record "
      "into\n"
      "memory of a fixed size only while they are asked to. Of processes on other machines the clocks are "
      "set\n"
      "against ours as NTP does; the line at the end says how far they may be off.");
  AddJobFlags(trace, &flags->job);
  trace->add_option("--seconds", flags->seconds, "How long to record")
      ->check(CLI::Range(0.01, 600.0))
      ->capture_default_str();
  LocalPath(trace->add_option("-o,--output", flags->out, "The file to write"))->capture_default_str();
  trace
      ->add_option("--max-events", flags->max_events,
                   "Of each process, the newest; 32768 of each thread are kept")
      ->check(CLI::Range(uint64_t{1}, uint64_t{400'000}))
      ->capture_default_str();
  trace->callback([flags, context] { context->exit_code = Report("trace", Trace(*flags)); });
}

}  // namespace tandem::cli
