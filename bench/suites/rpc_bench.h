// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_RPC_BENCH_H_
#define TANDEM_BENCH_SUITES_RPC_BENCH_H_

// The work of the two processes of `tandem bench rpc`: the second serves, the first calls, measures and
// prints.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bench/harness/rpc_flags.h"

namespace tandem::bench {

struct RpcBenchOptions {
  absl::Duration time_per_case;
  bool json = false;
  std::string socket_directory;  // for the server's unix socket
};

// Does the work of this process, which its rank selects, and returns when it is done. Call it only in a
// process that RunRanks started.
absl::Status RunRpcBench(const std::vector<RpcCase>& cases, const RpcBenchOptions& options);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_RPC_BENCH_H_
