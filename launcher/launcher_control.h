// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_LAUNCHER_CONTROL_H_
#define TANDEM_LAUNCHER_LAUNCHER_CONTROL_H_

// The launcher's side of `--on-failure reform`: it tells this node's processes which round is over and which
// ranks they have in the next one, and receives their reports of peers that do not respond. The processes'
// side is collectives/elastic/launcher_client.h.

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "cluster/store/memory_store.h"
#include "collectives/elastic/assignment.h"

namespace tandem::launcher {

// Exchanges these messages through the MemoryStore of a StoreServer, which the launcher serves to its own
// processes for its whole life (TANDEM_AGENT=host:port). Thread-safe. The store is borrowed and must outlive
// this. A process is named by role and local rank: "worker/1".
class LauncherControl {
 public:
  explicit LauncherControl(cluster::MemoryStore* store) : store_(store) {}
  // Blocks until a running callback of OnPeerFailure has returned; none runs after that.
  ~LauncherControl();

  // Publishes each process's assignment in a new round. All assignments have the same `number`, which grows
  // by one with each round of this launcher. Assignments that are two rounds old are deleted.
  absl::Status Announce(const std::map<std::string, collectives::Assignment>& places);
  // Ends the round for this node's processes: their collectives fail with `reason`, and they wait for the
  // next assignment.
  absl::Status RoundOver(int64_t number, absl::string_view reason);
  // Announces that there will be no further round: processes that wait for an assignment get an error with
  // `reason`.
  absl::Status Close(absl::string_view reason);

  // A process's report: its collectives failed although its round is not known to be over.
  struct PeerFailure {
    int64_t number = 0;  // of the round, as in Announce
    std::string process, reason;
  };
  // Sets the callback for reports, which usually leads to Rendezvous::RequestRestart. Call it once. Reports
  // that came earlier are delivered within this call, later ones on an RPC thread. The callback must not
  // block.
  void OnPeerFailure(std::function<void(PeerFailure)> on_peer_failure);

 private:
  void Listen();
  void Tell(const std::string& item);

  cluster::MemoryStore* const store_;
  absl::Mutex mutex_;
  std::function<void(PeerFailure)> on_peer_failure_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t wait_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_LAUNCHER_CONTROL_H_
