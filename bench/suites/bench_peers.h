#ifndef TANDEM_BENCH_SUITES_BENCH_PEERS_H_
#define TANDEM_BENCH_SUITES_BENCH_PEERS_H_

// How the processes of one group find each other and keep in step: over the store that RunRanks serves.
// Ranks below `workers` are workers, the others servers.

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/environment.h"

namespace tandem::bench {

// Where a server listens, and its process.
struct BenchServer {
  std::string tcp;          // "127.0.0.1:port"
  std::string unix_socket;  // "unix:/path"
  pid_t pid = 0;
};

// Not thread-safe. Every wait ends by a deadline.
class BenchPeers {
 public:
  // In a process of RunRanks.
  static absl::StatusOr<std::unique_ptr<BenchPeers>> Join(int workers);

  int rank() const { return env_.rank; }
  bool is_leader() const { return env_.rank == 0; }
  bool is_server() const { return env_.rank >= workers_; }
  int workers() const { return workers_; }
  int servers() const { return env_.world_size - workers_; }
  int server_index() const { return env_.rank - workers_; }

  // Servers: tells where this one listens; blocks until the workers need it no more.
  absl::Status Announce(const BenchServer& server);
  absl::Status WaitUntilDone();
  // Workers.
  absl::StatusOr<std::vector<BenchServer>> Servers();
  // What each worker shares, by rank. All call it in the same order; none returns before all have called.
  absl::StatusOr<std::vector<std::string>> Share(absl::string_view mine);
  absl::Status Barrier() { return Share("").status(); }
  // Lets the servers go.
  absl::Status Done();

 private:
  BenchPeers(const collectives::Environment& env, int workers, std::unique_ptr<collectives::JobStore> store)
      : env_(env), workers_(workers), store_(std::move(store)) {}

  const collectives::Environment env_;
  const int workers_;
  const std::unique_ptr<collectives::JobStore> store_;
  int shared_ = 0;  // calls of Share
};

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_BENCH_PEERS_H_
