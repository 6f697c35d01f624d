#ifndef TANDEM_LAUNCHER_LAUNCHER_CONTROL_H_
#define TANDEM_LAUNCHER_LAUNCHER_CONTROL_H_

// The launcher's side of a group that re-forms itself: where its processes read which round is over and what
// their place in the next one is, and tell that their peers do not answer.

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "collectives/elastic/assignment.h"
#include "collectives/store/memory_store.h"

namespace tandem::launcher {

// Thread-safe. Over the MemoryStore of a StoreServer that the launcher serves to its own processes for its
// whole life (TANDEM_AGENT=host:port); the store is borrowed. A process's name is role and local rank:
// "worker/1".
class LauncherControl {
 public:
  explicit LauncherControl(collectives::MemoryStore* store) : store_(store) {}
  ~LauncherControl();

  // Gives the processes their places; all of one `number`, which grows by one with each round of this
  // launcher.
  absl::Status Announce(const std::map<std::string, collectives::Assignment>& places);
  // The round is over: collectives of its processes end with `reason`, and they wait for the next assignment.
  absl::Status RoundOver(int64_t number, absl::string_view reason);
  // There will be no further round: who waits for one ends.
  absl::Status Close(absl::string_view reason);

  // A process's collectives failed though its round is not known to be over. `on_trouble` runs on an RPC
  // thread, must not block, and not before this has been called; call it once. Typically leads to
  // Rendezvous::RequestRestart.
  struct PeerFailure {
    int64_t number = 0;
    std::string process, reason;
  };
  void OnPeerFailure(std::function<void(PeerFailure)> on_peer_failure);

 private:
  void Listen();
  void Tell(const std::string& item);

  collectives::MemoryStore* const store_;
  absl::Mutex mutex_;
  std::function<void(PeerFailure)> on_peer_failure_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t wait_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_LAUNCHER_CONTROL_H_
