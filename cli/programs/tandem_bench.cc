// SPDX-License-Identifier: Apache-2.0
// The program `tandem-bench`, the companion for measuring: `tandem bench`.

#include "bench/suites/commands.h"
#include "cli/commands/commands.h"
#include "cli/programs/program.h"

int main(int argc, char** argv) {
  using namespace tandem::cli;
  return RunCompanion({tandem::bench::AddBench}, argc, argv);
}
