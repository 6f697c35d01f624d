#include "bench/peers/peer_flags.h"

#include <cstdio>
#include <string>

#include "base/status.h"

namespace tandem::bench {

void DeclarePeerFlags(CLI::App* app, PeerFlags* flags) {
  app->require_subcommand(1);
  for (const cli::BenchOp op : cli::AllBenchOps()) {
    CLI::App* command = app->add_subcommand(std::string(Name(op)));
    cli::DeclareBenchFlags(op, command, &flags->bench);
    command->callback([op, flags] { flags->op = op; });
  }
}

int ParsePeerFlags(CLI::App* app, int argc, char** argv) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app->exit(e) == 0 ? -1 : 2;
  }
  return 0;
}

int MeasurePeer(cli::Contestant* contestant, const PeerFlags& flags, int ranks) {
  const absl::Status status = [&] {
    TANDEM_ASSIGN_OR_RETURN(const cli::Method method, cli::MethodOf(flags.bench));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<cli::BenchCase> cases,
                            cli::CasesOf(flags.op, flags.bench, ranks));
    return cli::MeasureAndPrint(contestant, cases, method, flags.bench.json);
  }();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace tandem::bench
