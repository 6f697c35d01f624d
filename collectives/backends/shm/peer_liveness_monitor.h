// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_PEER_LIVENESS_MONITOR_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_PEER_LIVENESS_MONITOR_H_

// PeerLivenessMonitor detects that the process of another rank has ended, for any reason, and fails the
// group, which wakes all waits.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/backends/shm/segment.h"
#include "collectives/backends/shm/segment_setup.h"
#include "collectives/backends/shm/shared_failure_state.h"

namespace tandem::collectives::shm {

// Owns the connections, and a thread that sleeps on them (none if there are no connections). The kernel
// closes a dead process's end of a connection at once, unless a child that it forked still has it; so the
// thread also waits for the processes themselves, through pidfds. A rank that has left (RankState) does not
// count as dead.
class PeerLivenessMonitor {
 public:
  // `failures` must outlive this object. FailedPrecondition if the process has no descriptor or thread left.
  static absl::StatusOr<std::unique_ptr<PeerLivenessMonitor>> Start(std::shared_ptr<Segment> segment,
                                                                    SharedFailureState* failures,
                                                                    std::string group,
                                                                    std::vector<Watched> watched);
  // Stops the thread and closes the connections.
  ~PeerLivenessMonitor();

 private:
  PeerLivenessMonitor(std::shared_ptr<Segment> segment, SharedFailureState* failures, std::string group,
                      std::vector<Watched> watched, int stop)
      : segment_(std::move(segment)),
        failures_(failures),
        group_(std::move(group)),
        watched_(std::move(watched)),
        stop_(stop) {}
  void Run();
  // Fails the group because the process of watched_[index] has ended, unless that rank has left.
  void ReportDeath(size_t index);

  const std::shared_ptr<Segment> segment_;
  SharedFailureState* const failures_;
  const std::string group_;
  std::vector<Watched> watched_;
  std::vector<ipc::Descriptor> processes_;  // pidfds, as watched_; invalid where the kernel gives none
  const ipc::Descriptor stop_;              // an eventfd
  std::thread thread_;
};

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_PEER_LIVENESS_MONITOR_H_
