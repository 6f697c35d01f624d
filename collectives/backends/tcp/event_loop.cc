// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/trace/trace.h"

namespace tandem::collectives::tcp {
namespace {

absl::Status KernelError(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Start() {
  ipc::Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return KernelError("epoll_create1");
  ipc::Descriptor wakeup(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup.valid()) return KernelError("eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;  // the wakeup has no handler
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wakeup.get(), &event) != 0) return KernelError("epoll_ctl");
  std::unique_ptr<EventLoop> loop(new EventLoop(std::move(epoll), std::move(wakeup)));
  try {
    loop->thread_ = std::thread([&loop = *loop] { loop.Run(); });
  } catch (const std::system_error& error) {
    return absl::UnavailableError(absl::StrCat("a thread could not be started: ", error.what()));
  }
  return loop;
}

EventLoop::EventLoop(ipc::Descriptor epoll, ipc::Descriptor wakeup)
    : epoll_(std::move(epoll)), wakeup_(std::move(wakeup)) {}

EventLoop::~EventLoop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
}

absl::Status EventLoop::Watch(int fd, uint32_t events, Handler* handler) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = handler;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return absl::OkStatus();
  if (errno == ENOENT && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return KernelError("epoll_ctl");
}

void EventLoop::Unwatch(int fd, Handler* handler) {
  epoll_event unused{};
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, &unused);
  if (std::this_thread::get_id() == thread_.get_id()) {
    for (epoll_event* event = next_; event != end_; ++event) {
      if (event->data.ptr == handler) event->data.ptr = nullptr;
    }
    return;
  }
  uint64_t mine;
  {
    absl::MutexLock lock(&mutex_);
    mine = ++requested_;
  }
  Wake();
  absl::MutexLock lock(&mutex_);
  auto served = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return served_ >= mine; };
  mutex_.Await(absl::Condition(&served));
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  (void)!write(wakeup_.get(), &one, sizeof(one));  // fails only if a wakeup is pending already
}

bool EventLoop::BeginTurn() {
  absl::MutexLock lock(&mutex_);
  served_ = requested_;
  return !stopping_;
}

void EventLoop::Run() {
  trace::NameThread("tcp");
  std::array<epoll_event, 64> events;
  while (BeginTurn()) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    next_ = events.data();
    end_ = next_ + (count > 0 ? count : 0);  // EINTR is the only error that an open epoll descriptor gives
    while (next_ != end_) {
      const epoll_event event = *next_++;
      if (event.data.ptr != nullptr) {
        static_cast<Handler*>(event.data.ptr)->HandleEvents(event.events);
        continue;
      }
      uint64_t wakeups;
      (void)!read(wakeup_.get(), &wakeups, sizeof(wakeups));
    }
  }
}

}  // namespace tandem::collectives::tcp
