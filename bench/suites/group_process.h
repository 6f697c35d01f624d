// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_GROUP_PROCESS_H_
#define TANDEM_BENCH_SUITES_GROUP_PROCESS_H_

// The work of the processes of one group: servers serve; workers fill the table and measure; the first worker
// prints.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/harness/ps_case.h"
#include "bench/suites/bench_peers.h"
#include "ps/client/client.h"

namespace tandem::bench {

struct GroupOptions {
  uint64_t rows = 0;
  absl::Duration time_per_case;
  bool json = false;
  std::string socket_directory;  // for the servers' unix sockets
  // "log-never" or "log-always": the servers log pushes below `wal_dir`. "follower": each server has one.
  std::string durability = "off";
  std::string wal_dir;
  // ps::ClientOptions::max_lag of the workers; then pulls are read-only, and there are followers.
  absl::Duration max_lag = absl::ZeroDuration();
};

// Does the work of this process, which its rank selects, and returns when it is done. Call it only in a
// process that RunRanks started.
absl::Status RunGroupProcess(const PsGroup& group, const GroupOptions& options);

// Connects a client to all servers over `transport`. `life` is the number of clients that this worker has had
// before. With `max_lag` followers may answer read-only pulls.
absl::StatusOr<std::unique_ptr<ps::Client>> ConnectBenchClient(const std::vector<BenchServer>& servers,
                                                               PsTransport transport, int worker,
                                                               uint64_t life, absl::Duration max_lag);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_GROUP_PROCESS_H_
