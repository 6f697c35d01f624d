// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_PEERS_PEER_FLAGS_H_
#define TANDEM_BENCH_PEERS_PEER_FLAGS_H_

// The command line of all peer programs: PROGRAM OP [the flags of `tandem bench OP`].

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

// An additional flag of one program, before OP.
struct ExtraFlag {
  std::string name, help;
  std::variant<int*, std::string*> value;  // must outlive the parsing
  bool required = true;
  std::vector<std::string> one_of = {};  // allowed values; empty: any
};

// Fills `flags` and the values of `own`. Returns the exit code if the program must end: after --help, or
// after it has printed an error.
std::optional<int> ParsePeerFlags(const char* description, int argc, char** argv, PeerFlags* flags,
                                  const std::vector<ExtraFlag>& own = {});

// Measures the cases that the flags select and returns the exit code; errors go to stderr.
int MeasurePeer(BenchTarget* bench_target, const PeerFlags& flags, int ranks);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_PEERS_PEER_FLAGS_H_
