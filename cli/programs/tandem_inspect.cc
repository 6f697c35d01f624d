// SPDX-License-Identifier: Apache-2.0
// The program `tandem-inspect`, the companion that looks at running jobs and at this machine.

#include "cli/commands/commands.h"
#include "cli/programs/program.h"

int main(int argc, char** argv) {
  using namespace tandem::cli;
  return RunCompanion({AddTop, AddStatus, AddTrace, AddTable, AddDoctor}, argc, argv);
}
