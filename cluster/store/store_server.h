// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_STORE_SERVER_H_
#define TANDEM_CLUSTER_STORE_STORE_SERVER_H_

// The server of a job's store, which any process can embed: a launcher, or rank 0.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/membership/local_membership.h"
#include "cluster/store/limits.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/store_disk.h"
#include "cluster/store/store_service.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/security/job_key.h"
#include "rpc/server.h"

namespace tandem::cluster {

// Where a StoreServer keeps its store.
struct StoreDiskOptions {
  std::string directory;             // empty: in memory only
  std::function<void()> on_failure;  // as in StoreDisk::Open
};

struct StoreServerOptions {
  StoreLimits limits;          // what clients store, and how many wait
  size_t max_connections = 0;  // as rpc::ServerOptions::max_connections
  // Secures TCP connections, as rpc::ServerOptions::key does.
  std::shared_ptr<const rpc::JobKey> key = nullptr;
  // If it names a directory, the server begins with the keys, queues, lives of members and the end of the job
  // that an earlier server had there.
  StoreDiskOptions disk = {};
};

// Returns the gate of a store that serves every job: callers of any epoch, with `key` where a method needs
// it.
std::shared_ptr<rpc::EpochGate> StoreGate(const rpc::JobKey& key);

// Thread-safe. The destructor shuts down at once: clients that still wait get Aborted.
class StoreServer {
 public:
  // Starts to serve at `listen`, "host:port"; port 0 lets the kernel pick. `gate` decides which callers are
  // served; nullptr: StoreGate of this process's key. Errors are those of rpc::ProcessKey, rpc::Server::Start
  // and StoreDisk::Open.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(const std::string& listen,
                                                            Clock* clock = Clock::Real(),
                                                            std::shared_ptr<rpc::EpochGate> gate = nullptr,
                                                            StoreServerOptions options = {});
  ~StoreServer();

  int port() const { return server_->port(); }
  // These give access to the same data and membership without the network. Owned by the server.
  MemoryStore* store() { return &store_; }
  LocalMembership* membership() { return &*membership_; }
  // nullptr if the store is in memory only.
  const StoreDisk* disk() const { return disk_.get(); }
  // Ends deferred waits and lets running calls finish for `grace`. Idempotent.
  void Shutdown(absl::Duration grace);

 private:
  explicit StoreServer(const StoreLimits& limits) : store_(limits) {}

  MemoryStore store_;
  std::optional<LocalMembership> membership_;  // until the end
  std::shared_ptr<rpc::EpochGate> gate_;
  std::unique_ptr<StoreService> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<StoreDisk> disk_;  // ends first: its thread sends replies
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_STORE_SERVER_H_
