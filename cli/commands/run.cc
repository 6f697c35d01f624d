// SPDX-License-Identifier: Apache-2.0
// tandem run: starts a job's processes on this machine, alone or together with the launchers of other
// machines.

#include "launcher/run_job.h"

#include <memory>

#include "CLI/CLI.hpp"
#include "cli/commands/commands.h"
#include "launcher/plan/flags.h"
#include "launcher/plan/variable_options.h"

namespace tandem::cli {

void AddRun(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<launcher::RunFlags>();
  CLI::App* run =
      app.add_subcommand("run", "Start a job's processes: torchrun for any program, with parameter servers");
  run->footer(
      "Usage: tandem run [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n"
      "Takes torchrun's flags, in both spellings (--nproc-per-node, --nproc_per_node), and sets its "
      "variables: RANK,\n"
      "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ... A PROGRAM that ends in .py is run by python3 "
      "-u.\n"
      "When one process fails the others are stopped, and its exit code is passed on.\n"
      "PROGRAM 'tandem' is this program: tandem run --ps 2 --workers 2 -- tandem train jobs/insteval.yaml");
  auto variables = std::make_shared<launcher::VariableOptions>();
  launcher::AddRunFlags(run, flags.get(), variables.get());
  run->callback([flags, variables, context] {
    flags->variables = variables->Read();
    context->exit_code = launcher::RunJob(*flags, context->program);
  });
}

}  // namespace tandem::cli
