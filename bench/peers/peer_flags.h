#ifndef TANDEM_BENCH_PEERS_PEER_FLAGS_H_
#define TANDEM_BENCH_PEERS_PEER_FLAGS_H_

// The command line that all peer programs have: PROGRAM OP [the flags of `tandem bench OP`].

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "bench/harness/bench_flags.h"
#include "bench/harness/measure.h"

namespace tandem::bench {

struct PeerFlags {
  BenchOp op = BenchOp::kAllReduce;
  BenchFlags bench;
};

// A flag that one program has besides, before OP.
struct OwnFlag {
  std::string name, help;
  std::variant<int*, std::string*> value;  // outlives the parsing
  bool required = true;
  std::vector<std::string> one_of = {};  // empty: anything
};

// Fills `flags` and the values of `own`. The exit code if the program is to end: after --help, or when it has
// said what is wrong.
std::optional<int> ParsePeerFlags(const char* description, int argc, char** argv, PeerFlags* flags,
                                  const std::vector<OwnFlag>& own = {});

// Measures what the flags ask for and returns the exit code; errors go to stderr.
int MeasurePeer(BenchTarget* contestant, const PeerFlags& flags, int ranks);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_PEERS_PEER_FLAGS_H_
