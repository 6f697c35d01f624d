// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_BENCH_PEERS_H_
#define TANDEM_BENCH_SUITES_BENCH_PEERS_H_

// Lets the processes of one group find each other and synchronize, over the store that RunRanks serves. Ranks
// below `workers` are workers, then come the servers and, in some benchmarks, a follower of each server.

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/environment.h"

namespace tandem::bench {

// The addresses and the process of a server.
struct BenchServer {
  std::string tcp;          // "127.0.0.1:port"
  std::string unix_socket;  // "unix:/path"
  pid_t pid = 0;
};

// One process of a group. Not thread-safe. Every wait has a deadline: 5 minutes, or 24 hours for
// WaitUntilDone.
class BenchPeers {
 public:
  // Connects to the store. Call it only in a process that RunRanks started.
  static absl::StatusOr<std::unique_ptr<BenchPeers>> Join(int workers, bool followers = false);

  int rank() const { return env_.rank; }
  bool is_leader() const { return env_.rank == 0; }
  bool is_server() const { return env_.rank >= workers_ && !is_follower(); }
  bool is_follower() const { return env_.rank >= workers_ + servers(); }
  int workers() const { return workers_; }
  int servers() const { return (env_.world_size - workers_) / copies_; }
  // The index of this server, or of the one that this process follows.
  int server_index() const { return (env_.rank - workers_) % servers(); }

  // The next four calls are for servers and followers. Announce publishes the addresses of this server;
  // WaitUntilDone blocks until a worker releases the servers.
  absl::Status Announce(const BenchServer& server);
  absl::Status WaitUntilDone();
  // AnnounceFollower publishes the address of the follower of a server, which that server gets from Follower.
  absl::Status AnnounceFollower(const std::string& address);
  absl::StatusOr<std::string> Follower();
  // The calls below are for workers. Servers blocks until all servers have called Announce and returns them
  // in order.
  absl::StatusOr<std::vector<BenchServer>> Servers();
  // Exchanges a value with all workers and returns the values by rank. All workers must make the same calls
  // in the same order; a call returns when all workers have made it.
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view mine);
  absl::Status Barrier() { return AllGather("").status(); }
  // Releases the servers: WaitUntilDone returns on all of them.
  absl::Status ReleaseServers();

 private:
  BenchPeers(const cluster::Environment& env, int workers, int copies,
             std::unique_ptr<cluster::JobStore> store)
      : env_(env), workers_(workers), copies_(copies), store_(std::move(store)) {}

  const cluster::Environment env_;
  const int workers_;
  const int copies_;  // of each server
  const std::unique_ptr<cluster::JobStore> store_;
  int gathers_ = 0;  // number of exchanges so far
};

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_BENCH_PEERS_H_
