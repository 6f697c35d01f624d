#ifndef TANDEM_BENCH_PEERS_PEER_FLAGS_H_
#define TANDEM_BENCH_PEERS_PEER_FLAGS_H_

// The command line that all peer programs have: PROGRAM OP [the flags of `tandem bench OP`].

#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "cli/bench/method/bench_flags.h"
#include "cli/bench/method/measure.h"

namespace tandem::bench {

struct PeerFlags {
  cli::BenchOp op = cli::BenchOp::kAllReduce;
  cli::BenchFlags bench;
};

// Declares a subcommand for each operation on `app`. `flags` outlives the parsing.
void DeclarePeerFlags(CLI::App* app, PeerFlags* flags);

// Parses the command line and returns 0, or says what is wrong and returns the exit code (also of --help:
// -1).
int ParsePeerFlags(CLI::App* app, int argc, char** argv);

// Measures what the flags ask for and returns the exit code; errors go to stderr.
int MeasurePeer(cli::Contestant* contestant, const PeerFlags& flags, int ranks);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_PEERS_PEER_FLAGS_H_
