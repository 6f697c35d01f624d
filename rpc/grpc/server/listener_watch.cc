// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/server/listener_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"

namespace tandem::rpc {
namespace {

// How long to wait for a descriptor while there is none.
constexpr absl::Duration kNoDescriptor = absl::Milliseconds(100);

}  // namespace

ListenerWatch::ListenerWatch(std::vector<ipc::Descriptor> listeners, std::string server,
                             std::function<void(size_t listener, int fd)> take, absl::Duration patience)
    : listeners_(std::move(listeners)),
      server_(std::move(server)),
      take_(std::move(take)),
      patience_(patience),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      deaf_(listeners_.size()),
      thread_([this] { Run(); }) {}

ListenerWatch::~ListenerWatch() { Stop(); }

void ListenerWatch::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
  listeners_.clear();
}

bool ListenerWatch::Pause(absl::Duration duration) const {
  const absl::Time end = MonotonicNow() + duration;
  while (true) {
    pollfd stop = {stop_.get(), POLLIN, 0};
    const absl::Duration left = end - MonotonicNow();
    const int64_t ms = left <= absl::ZeroDuration() ? 0 : absl::ToInt64Milliseconds(left) + 1;
    if (::poll(&stop, 1, static_cast<int>(ms)) > 0) return false;
    if (MonotonicNow() >= end) return true;
  }
}

bool ListenerWatch::AcceptAll(size_t i) {
  while (true) {
    const int fd = ::accept4(listeners_[i].get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      if (!deaf_[i]) {
        LogWarning(absl::StrCat("the server at ", server_, " left a client waiting for ",
                                absl::FormatDuration(patience_),
                                ": gRPC accepts none there any more, as after a lack of descriptors; Tandem "
                                "accepts clients in its place"));
      }
      deaf_[i] = true;
      take_(i, fd);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK;
  }
}

void ListenerWatch::Run() {
  if (!stop_.valid()) return;  // no descriptor is left: clients are refused anyway
  while (true) {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
    for (const ipc::Descriptor& listener : listeners_) polled.push_back({listener.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), -1) < 0) {
      if (errno != EINTR && !Pause(kNoDescriptor)) return;  // no memory
      continue;
    }
    if (polled[0].revents != 0) return;
    bool new_client = false, out_of_descriptors = false;
    for (size_t i = 0; i < listeners_.size(); ++i) {
      const short events = polled[i + 1].revents;
      if ((events & ~POLLIN) != 0) {
        listeners_[i].Reset();  // gRPC could not use it
      } else if (events != 0 && deaf_[i]) {
        out_of_descriptors = !AcceptAll(i) || out_of_descriptors;
      } else if (events != 0) {
        new_client = true;
      }
    }
    if (out_of_descriptors && !Pause(kNoDescriptor)) return;
    if (!new_client) continue;
    if (!Pause(patience_)) return;
    for (size_t i = 0; i < listeners_.size(); ++i) {
      pollfd one = {listeners_[i].get(), POLLIN, 0};
      if (!deaf_[i] && listeners_[i].valid() && ::poll(&one, 1, 0) > 0 && one.revents == POLLIN) AcceptAll(i);
    }
  }
}

}  // namespace tandem::rpc
