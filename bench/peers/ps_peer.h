// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_PEERS_PS_PEER_H_
#define TANDEM_BENCH_PEERS_PS_PEER_H_

// Shared parts of the peers of `tandem bench ps`: flags, ids, output.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/harness/ps_case.h"

namespace tandem::bench {

using IdBatches = std::vector<std::vector<uint64_t>>;

// A client of another system. Used by one thread.
class PsPeer {
 public:
  virtual ~PsPeer() = default;
  // Makes calls of `c`, with `c.in_flight` in flight, on the batches from `next` on, until Now() is `end`
  // (seconds), and waits for their responses. Returns one latency (microseconds) per call; empty, with a
  // message on stderr, if a call fails or returns wrong rows.
  virtual std::vector<double> Run(const PsCase& c, const IdBatches& batches, size_t next, double end) = 0;
};

// Returns the time of a steady clock in seconds.
double Now();

// Returns the first number of row `id` before any push.
inline float FirstValue(uint64_t id) { return static_cast<float>(id % 1000) * 0.001f; }

// Returns a port of the loopback interface that was free a moment ago, for servers that cannot let the kernel
// choose (Redis, ps-lite's scheduler). -1: there is none.
int FreePort();

struct PsPeerSetup {
  std::string transport;  // tcp or unix
  uint64_t rows = 0;
  uint32_t dim = 0;
};

// Parses the flags of `tandem bench ps` that peers support (one dim, one transport, one server and one
// worker), starts the server, connects, measures, and returns the exit code.
//
// - `serve` runs the server in a child process, which dies with this process. It passes the server's address
//   to its second argument.
// - `connect` returns a client in this process, with the table filled; nullptr: it failed.
int RunPsPeer(int argc, char** argv, const char* name,
              const std::function<int(const PsPeerSetup& setup,
                                      const std::function<void(std::string)>& announce)>& serve,
              const std::function<PsPeer*(const PsPeerSetup& setup, const std::string& address)>& connect);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_PEERS_PS_PEER_H_
