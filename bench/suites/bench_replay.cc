// SPDX-License-Identifier: Apache-2.0
// `tandem bench replay`: measures inserts, samples and updates of priorities of replay tables.

#include <memory>

#include "CLI/CLI.hpp"
#include "bench/harness/replay_flags.h"
#include "bench/suites/commands.h"
#include "bench/suites/own_processes.h"
#include "bench/suites/replay_bench.h"

namespace tandem::bench {

void AddBenchReplay(CLI::App* bench, CommandContext* context) {
  CLI::App* command = bench->add_subcommand("replay", "Time replay tables in this process and in a server");
  command->footer(
      "An item is one step. Inserts go into a full table, 64 a call, or 16 of more than 8 KiB. Samples are "
      "requested ahead, and their values are looked at. GB/s (gbps with --json): 10^9 bytes of values a "
      "second.");
  auto flags = std::make_shared<ReplayFlags>();
  DeclareReplayFlags(command, flags.get());
  command->callback([flags, context] {
    const absl::Status status = RunReplayBench(*flags);
    context->exit_code = status.ok() ? 0 : ReportBench("bench replay", status);
  });
}

}  // namespace tandem::bench
