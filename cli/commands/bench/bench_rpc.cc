// `tandem bench rpc`: how many remote functions a second one process calls in another, and how long a call
// takes, over each transport. It starts its own processes.

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "cli/bench/rank_processes.h"
#include "cli/bench/rpc/rpc_bench.h"
#include "cli/bench/rpc/rpc_flags.h"
#include "cli/commands/commands.h"

namespace tandem::cli {
namespace {

constexpr int kUsageError = 2;

struct Options {
  RpcFlags flags;
  std::string socket_directory;  // set in the processes that it starts
};

absl::StatusOr<int> Run(const Options& options, std::vector<std::string> args) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<RpcCase> cases, RpcCasesOf(options.flags));
  if (!options.socket_directory.empty()) {
    TANDEM_RETURN_IF_ERROR(RunRpcBench(cases, {.time_per_case = absl::Milliseconds(options.flags.time_ms),
                                               .json = options.flags.json,
                                               .socket_directory = options.socket_directory}));
    return 0;
  }
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  std::string directory = absl::StrCat(error ? "/tmp" : parent.string(), "/tandem-bench-XXXXXX");
  if (::mkdtemp(directory.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a directory like ", directory));
  }
  args.insert(args.begin(), {"bench", "rpc", "--socket-directory", directory});
  const absl::StatusOr<int> code = RunRanks(2, args, {"client", "server"});
  std::filesystem::remove_all(directory, error);
  return code;
}

}  // namespace

void AddBenchRpc(CLI::App* bench, CommandContext* context) {
  CLI::App* command =
      bench->add_subcommand("rpc", "Time remote functions between two processes that it starts");
  command->footer(
      "GB/s (gbps with --json): 10^9 bytes of the tensor a second, each way. Echoed tensors are compared "
      "with what was "
      "sent.");
  auto options = std::make_shared<Options>();
  DeclareRpcFlags(command, &options->flags);
  command->add_option("--socket-directory", options->socket_directory)->group("");
  command->callback([options, command, context] {
    // Its own processes get the same flags.
    std::vector<std::string> args;
    for (const CLI::Option* option : command->get_options()) {
      if (option->count() == 0) continue;
      args.push_back("--" + option->get_lnames().front());
      if (option->get_items_expected_max() > 0) args.push_back(option->results().back());
    }
    const absl::StatusOr<int> code = Run(*options, args);
    if (code.ok()) {
      context->exit_code = *code;
      return;
    }
    context->exit_code = Report("bench rpc", code.status());
    if (absl::IsInvalidArgument(code.status())) context->exit_code = kUsageError;
  });
}

}  // namespace tandem::cli
