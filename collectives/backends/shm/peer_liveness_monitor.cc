// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/peer_liveness_monitor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/ipc/unix_socket.h"

namespace tandem::collectives::shm {

absl::StatusOr<std::unique_ptr<PeerLivenessMonitor>> PeerLivenessMonitor::Start(
    std::shared_ptr<Segment> segment, SharedFailureState* failures, std::string group,
    std::vector<Watched> watched) {
  if (watched.empty()) return nullptr;
  const int stop = eventfd(0, EFD_CLOEXEC);
  if (stop < 0) {
    return absl::FailedPreconditionError(absl::StrCat("eventfd failed: ", std::strerror(errno)));
  }
  std::unique_ptr<PeerLivenessMonitor> watch(
      new PeerLivenessMonitor(std::move(segment), failures, std::move(group), std::move(watched), stop));
  for (const Watched& peer : watch->watched_) {
    watch->processes_.push_back(ipc::OpenPeerProcess(peer.socket.get()));
  }
  try {
    watch->thread_ = std::thread([w = watch.get()] { w->Run(); });
  } catch (const std::system_error& error) {
    return absl::FailedPreconditionError(absl::StrCat("a thread could not be started: ", error.what()));
  }
  return watch;
}

PeerLivenessMonitor::~PeerLivenessMonitor() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void PeerLivenessMonitor::Run() {
  const size_t count = watched_.size();
  // The connections follow the event, then the processes. poll ignores negative descriptors.
  std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
  for (const Watched& watched : watched_) polled.push_back({watched.socket.get(), POLLIN, 0});
  for (const ipc::Descriptor& process : processes_) polled.push_back({process.get(), POLLIN, 0});
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    for (size_t i = 0; i < count; ++i) {
      pollfd& connection = polled[1 + i];
      pollfd& process = polled[1 + count + i];
      bool ended = process.revents != 0;
      if (connection.revents != 0) {
        char unexpected[64];
        const ssize_t received = recv(connection.fd, unexpected, sizeof(unexpected), MSG_DONTWAIT);
        ended = ended || received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR);
      }
      if (!ended) continue;
      connection.fd = process.fd = -1;
      connection.revents = process.revents = 0;
      ReportDeath(i);
    }
  }
}

void PeerLivenessMonitor::ReportDeath(size_t index) {
  const int rank = watched_[index].rank;
  std::atomic<uint32_t>& state = segment_->area(rank).state;
  uint32_t was = state.load(std::memory_order_acquire);
  while (was != kLeft && was != kDead && !state.compare_exchange_weak(was, kDead)) {
  }
  if (was != kLeft && was != kDead) {
    (void)failures_->Report(absl::UnavailableError(
        absl::StrCat("rank ", rank, " of group '", group_, "' died: its process has ended")));
  }
}

}  // namespace tandem::collectives::shm
