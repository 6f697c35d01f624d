// SPDX-License-Identifier: Apache-2.0
// The program `tandem-rl`, the companion for reinforcement learning: `tandem rl`, `tandem replay` and `tandem
// weights`.

#include "cli/commands/commands.h"
#include "cli/programs/program.h"

int main(int argc, char** argv) {
  using namespace tandem::cli;
  return RunCompanion({AddRl, AddReplay, AddWeights}, argc, argv);
}
