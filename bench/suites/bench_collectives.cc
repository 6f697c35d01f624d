// SPDX-License-Identifier: Apache-2.0
// `tandem bench allreduce`, `broadcast`, ...: measures collectives on this machine, between ranks that it
// starts itself.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "bench/harness/bench_flags.h"
#include "bench/harness/measure.h"
#include "bench/suites/commands.h"
#include "bench/suites/group_target.h"
#include "bench/suites/own_processes.h"
#include "bench/suites/rank_processes.h"
#include "cluster/environment.h"
#include "collectives/connect/backend_choice.h"

namespace tandem::bench {
namespace {

constexpr int kMaxRanks = 256;

struct CollectivesBench {
  BenchFlags bench;
  std::string backend = "auto";
  int ranks = 2;
  bool as_rank = false;  // set in the rank processes
};

absl::Status Validate(BenchOp op, const CollectivesBench& options) {
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ranks is ", options.ranks, "; it must be from 1 to ", kMaxRanks));
  }
  TANDEM_RETURN_IF_ERROR(MethodOf(options.bench).status());
  TANDEM_ASSIGN_OR_RETURN(const std::vector<BenchCase> cases, CasesOf(op, options.bench, options.ranks));
  if (Reduces(op) && !cases.empty()) {
    TANDEM_RETURN_IF_ERROR(ParseReduceOp(options.bench.reduce, cases[0].dtype).status());
  }
  return absl::OkStatus();
}

// Runs as a rank, in a process that RunRanks started. InvalidArgument: the flags select something impossible.
absl::Status RunAsRank(BenchOp op, const CollectivesBench& options) {
  TANDEM_ASSIGN_OR_RETURN(const Method method, MethodOf(options.bench));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<BenchCase> cases, CasesOf(op, options.bench, options.ranks));
  collectives::ReduceOp reduce = collectives::ReduceOp::kSum;
  if (Reduces(op) && !cases.empty()) {
    TANDEM_ASSIGN_OR_RETURN(reduce, ParseReduceOp(options.bench.reduce, cases[0].dtype));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<collectives::ProcessGroup> group,
                          collectives::InitProcessGroup({.backend = options.backend}));
  TANDEM_RETURN_IF_ERROR(
      MeasureAndPrint(MakeGroupTarget(group.get(), reduce).get(), cases, method, options.bench.json));
  group->Destroy();
  return absl::OkStatus();
}

int Run(BenchOp op, const CollectivesBench& options, std::vector<std::string> args) {
  const std::string command = absl::StrCat("bench ", Name(op));
  if (options.as_rank) return ReportBench(command, RunAsRank(op, options));
  if (const absl::Status status = Validate(op, options); !status.ok()) return ReportBench(command, status);
  args.insert(args.begin(), {"bench", std::string(Name(op)), "--as-rank"});
  const absl::StatusOr<int> code = RunRanks(options.ranks, args);
  return code.ok() ? *code : ReportBench(command, code.status());
}

const char* Help(BenchOp op) {
  switch (op) {
    case BenchOp::kAllReduce:
      return "Time all-reduces among processes that it starts";
    case BenchOp::kBroadcast:
      return "Time broadcasts from rank 0";
    case BenchOp::kAllGather:
      return "Time all-gathers; sizes are of what each rank gets";
    case BenchOp::kReduceScatter:
      return "Time reduce-scatters; sizes are of what each rank gives";
    case BenchOp::kAllToAll:
      return "Time all-to-all exchanges; sizes are of what each rank gives, and gets";
    case BenchOp::kBarrier:
      return "Time barriers";
    case BenchOp::kSendRecv:
      return "Time each rank sending to the next while it receives from the one before";
  }
  return "";
}

// "auto, shm, tcp, ...": the backends of this build for CPU tensors.
std::string BackendHelp() {
  std::string names = "auto";
  for (const collectives::BackendFactory& factory : collectives::BuiltInBackends()) {
    if (factory.device == Device::Kind::kCpu) absl::StrAppend(&names, ", ", factory.name);
  }
  return names;
}

}  // namespace

void AddBenchCollectives(CLI::App* bench, CommandContext* context) {
  for (const BenchOp op : AllBenchOps()) {
    CLI::App* command = bench->add_subcommand(std::string(Name(op)), Help(op));
    auto options = std::make_shared<CollectivesBench>();
    command->add_option("--backend", options->backend, BackendHelp())->capture_default_str();
    LimitTo(Between(1, kMaxRanks),
            command->add_option("--ranks", options->ranks, "Processes")->capture_default_str());
    DeclareBenchFlags(op, command, &options->bench);
    command->add_flag("--as-rank", options->as_rank)->group("");
    command->callback(
        [op, options, command, context] { context->exit_code = Run(op, *options, GivenFlags(*command)); });
  }
}

}  // namespace tandem::bench
