// SPDX-License-Identifier: Apache-2.0
// `tandem bench rpc`: measures how many remote functions per second one process calls in another, and how
// long a call takes, over each transport. It starts its own processes.

#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/temporary_directory.h"
#include "bench/harness/rpc_flags.h"
#include "bench/suites/commands.h"
#include "bench/suites/own_processes.h"
#include "bench/suites/rank_processes.h"
#include "bench/suites/rpc_bench.h"

namespace tandem::bench {
namespace {

struct RpcBench {
  RpcFlags flags;
  std::string socket_directory;  // set in the processes that it starts
};

absl::StatusOr<int> Run(const RpcBench& options, std::vector<std::string> args) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<RpcCase> cases, RpcCasesOf(options.flags));
  if (!options.socket_directory.empty()) {
    TANDEM_RETURN_IF_ERROR(RunRpcBench(cases, {.time_per_case = absl::Milliseconds(options.flags.time_ms),
                                               .json = options.flags.json,
                                               .socket_directory = options.socket_directory}));
    return 0;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<TemporaryDirectory> sockets,
                          TemporaryDirectory::Make("tandem-bench"));
  args.insert(args.begin(), {"bench", "rpc", "--socket-directory", sockets->path()});
  return RunRanks(2, args, {"client", "server"});
}

}  // namespace

void AddBenchRpc(CLI::App* bench, CommandContext* context) {
  CLI::App* command =
      bench->add_subcommand("rpc", "Time remote functions between two processes that it starts");
  command->footer(
      "GB/s (gbps with --json): 10^9 bytes of the tensor a second, each way. Echoed tensors are compared "
      "with what was "
      "sent.");
  auto options = std::make_shared<RpcBench>();
  DeclareRpcFlags(command, &options->flags);
  command->add_option("--socket-directory", options->socket_directory)->group("");
  command->callback([options, command, context] {
    const absl::StatusOr<int> code = Run(*options, GivenFlags(*command));
    context->exit_code = code.ok() ? *code : ReportBench("bench rpc", code.status());
  });
}

}  // namespace tandem::bench
