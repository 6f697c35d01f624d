// SPDX-License-Identifier: Apache-2.0
// tandem doctor: checks whether this machine is fit for a job. `tandem doctor trace` shows which rank of a
// job hangs.

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "base/local_path.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/doctor/checks.h"
#include "collectives/diagnostics/trace_analysis.h"

namespace tandem::cli {
namespace {

int Doctor(bool json) {
  const Checks checks = CheckAll(*launcher::ThisMachine());
  std::fputs((json ? ChecksJson(checks) : ChecksText(checks)).c_str(), stdout);
  return AnyFails(checks) ? 1 : 0;
}

absl::Status Trace(const std::string& path, bool json) {
  TANDEM_ASSIGN_OR_RETURN(const collectives::TraceDirectory directory, collectives::ReadTraces(path));
  const collectives::TraceAnalysis analysis = collectives::Analyze(directory);
  std::fputs((json ? collectives::TraceJson(path, directory, analysis)
                   : collectives::TraceText(path, directory, analysis))
                 .c_str(),
             stdout);
  return absl::OkStatus();
}

}  // namespace

void AddDoctor(CLI::App& app, CommandContext* context) {
  CLI::App* doctor = app.add_subcommand(
      "doctor", "Check this machine: network, memory, limits, processor, MPI, GPUs, versions");
  auto json = std::make_shared<bool>(false);
  doctor->add_flag("--json", *json, "Print one JSON object");
  doctor->require_subcommand(0, 1);
  CLI::App* trace =
      doctor->add_subcommand("trace", "Compare what the ranks of a job did last: who is behind, and where");
  auto directory = std::make_shared<std::string>();
  LocalPath(
      trace->add_option("DIR", *directory, "Where the dumps of all ranks lie (TANDEM_TRACE_DIR of the job)"))
      ->required();
  trace->add_flag("--json", *json, "Print one JSON object");
  trace->callback(
      [directory, json, context] { context->exit_code = Report("doctor trace", Trace(*directory, *json)); });
  doctor->callback([doctor, json, context] {
    if (doctor->get_subcommands().empty()) context->exit_code = Doctor(*json);
  });
}

}  // namespace tandem::cli
