// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/peer_flags.h"

#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "base/status.h"

namespace tandem::bench {

std::optional<int> ParsePeerFlags(const char* description, int argc, char** argv, PeerFlags* flags,
                                  const std::vector<ExtraFlag>& own) {
  CLI::App app{description};
  for (const ExtraFlag& flag : own) {
    CLI::Option* const option = std::visit(
        [&](auto* value) { return app.add_option(flag.name, *value, flag.help)->capture_default_str(); },
        flag.value);
    option->required(flag.required);
    if (!flag.one_of.empty()) option->check(CLI::IsMember(flag.one_of));
  }
  app.require_subcommand(1);
  for (const BenchOp op : AllBenchOps()) {
    CLI::App* const command = app.add_subcommand(std::string(Name(op)));
    DeclareBenchFlags(op, command, &flags->bench);
    command->callback([op, flags] { flags->op = op; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

int MeasurePeer(BenchTarget* bench_target, const PeerFlags& flags, int ranks) {
  const absl::Status status = [&] {
    TANDEM_ASSIGN_OR_RETURN(const Method method, MethodOf(flags.bench));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<BenchCase> cases, CasesOf(flags.op, flags.bench, ranks));
    return MeasureAndPrint(bench_target, cases, method, flags.bench.json);
  }();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace tandem::bench
