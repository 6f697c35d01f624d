// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_COMMANDS_H_
#define TANDEM_BENCH_SUITES_COMMANDS_H_

// Declares `tandem bench` and its subcommands. The file bench_NAME.cc contains the subcommand NAME.

#include "base/command_context.h"

namespace CLI {
class App;
}

namespace tandem::bench {

// Declares `tandem bench` with all of its subcommands.
void AddBench(CLI::App& app, CommandContext* context);

// The subcommands that time collectives, one for each operation.
void AddBenchCollectives(CLI::App* bench, CommandContext* context);
// `tandem bench checkpoint`.
void AddBenchCheckpoint(CLI::App* bench, CommandContext* context);
// `tandem bench inference`.
void AddBenchInference(CLI::App* bench, CommandContext* context);
// `tandem bench ps`.
void AddBenchPs(CLI::App* bench, CommandContext* context);
// `tandem bench replay`.
void AddBenchReplay(CLI::App* bench, CommandContext* context);
// `tandem bench rpc`.
void AddBenchRpc(CLI::App* bench, CommandContext* context);
// `tandem bench rows`.
void AddBenchRows(CLI::App* bench, CommandContext* context);
// `tandem bench subscription`.
void AddBenchSubscription(CLI::App* bench, CommandContext* context);
// `tandem bench weights`.
void AddBenchWeights(CLI::App* bench, CommandContext* context);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_COMMANDS_H_
