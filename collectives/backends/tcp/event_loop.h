// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_TCP_EVENT_LOOP_H_
#define TANDEM_COLLECTIVES_BACKENDS_TCP_EVENT_LOOP_H_

// A thread that waits for events of descriptors (epoll, level-triggered) and calls their handlers.

#include <cstdint>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/ipc/descriptor.h"

struct epoll_event;

namespace tandem::collectives::tcp {

// Watch and Unwatch are thread-safe and may be called by handlers. The loop sleeps while there are no events.
class EventLoop {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // `events` are EPOLLIN, EPOLLOUT, EPOLLERR and EPOLLHUP. Called by the loop's thread, for one handler at
    // a time, again and again while the descriptor is ready: it must not block. An error or the end of a
    // connection is an event like any other; the handler finds it when it reads.
    virtual void HandleEvents(uint32_t events) = 0;
  };

  // Starts the thread. Errors: Unavailable if the kernel has no more descriptors or threads.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Start();
  // Stops and joins the thread; no handler is called afterwards. The loop does not close the descriptors that
  // are still watched. Must not be called by a handler.
  ~EventLoop();

  // Calls `handler` whenever one of `events` (EPOLLIN, EPOLLOUT) is ready at `fd`; a later call with the same
  // `fd` replaces both. One handler watches one descriptor. `handler` is borrowed until Unwatch. Errors:
  // Unavailable with the kernel's reason; a descriptor that was watched before remains so.
  absl::Status Watch(int fd, uint32_t events, Handler* handler);

  // Ends the calls of `handler` for `fd`; no effect if `fd` is not watched. When it has returned, `handler`
  // is not running and will not be called, unless the caller is a handler itself: that call is not waited
  // for. Other callers wait for the handlers whose events the loop has already taken, so they must not hold a
  // lock for which a handler waits. Call it before `fd` is closed.
  void Unwatch(int fd, Handler* handler);

 private:
  EventLoop(ipc::Descriptor epoll, ipc::Descriptor wakeup);

  void Run();
  void Wake();
  // Between two turns: lets the callers of Unwatch return whose descriptors cannot be among the next events.
  // Returns false when the loop is to stop.
  bool BeginTurn() ABSL_LOCKS_EXCLUDED(mutex_);

  const ipc::Descriptor epoll_;
  const ipc::Descriptor wakeup_;  // an eventfd: ends the loop's sleep

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t requested_ ABSL_GUARDED_BY(mutex_) = 0;  // calls of Unwatch that wait for the turn to end
  uint64_t served_ ABSL_GUARDED_BY(mutex_) = 0;     // those of them that may return

  // The events of this turn that are still to be handled. Only the loop's thread uses them.
  epoll_event* next_ = nullptr;
  epoll_event* end_ = nullptr;

  std::thread thread_;  // the last member: Run uses all others
};

}  // namespace tandem::collectives::tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_TCP_EVENT_LOOP_H_
