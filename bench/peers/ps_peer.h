#ifndef TANDEM_BENCH_PEERS_PS_PEER_H_
#define TANDEM_BENCH_PEERS_PS_PEER_H_

// What the peers of `tandem bench ps` have in common: its flags, its ids, its output.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/harness/ps_case.h"

namespace tandem::bench {

using IdBatches = std::vector<std::vector<uint64_t>>;

// One client of a peer. One thread.
class PsPeer {
 public:
  virtual ~PsPeer() = default;
  // Makes calls of `c`, with as many under way as it says, on the batches from `next` on, until now() is
  // `end` seconds; waits for their answers. One latency for each call. Empty, with a message on stderr, when
  // one fails or brings the wrong rows.
  virtual std::vector<double> Run(const PsCase& c, const IdBatches& batches, size_t next,
                                  double end) = 0;
};

// Seconds.
double Now();

// The number that row `id` of the table begins with, before any push.
inline float FirstOf(uint64_t id) { return static_cast<float>(id % 1000) * 0.001f; }

// A port of the loopback interface that was free a moment ago, for servers that take none of the kernel's
// choice (Redis, ps-lite's scheduler). -1: there is none.
int FreePort();

struct PsPeerSetup {
  std::string transport;  // tcp or unix
  uint64_t rows = 0;
  uint32_t dim = 0;
};

// Parses the flags of `tandem bench ps` that peers know (one dim, one transport, one server and worker),
// starts the server by `serve` in a process of its own (it tells where it listens by the function it is
// given, and dies with this process), connects and measures. The exit code. `ready`: fills the table, in the
// client's process, before anything is measured.
int RunPsPeer(
    int argc, char** argv, const char* name,
    const std::function<int(const PsPeerSetup& setup, const std::function<void(std::string)>& tell)>& serve,
    const std::function<PsPeer*(const PsPeerSetup& setup, const std::string& address)>& connect);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_PEERS_PS_PEER_H_
