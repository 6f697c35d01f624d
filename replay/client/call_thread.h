// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_CALL_THREAD_H_
#define TANDEM_REPLAY_CLIENT_CALL_THREAD_H_

#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/timed_wait.h"

namespace tandem::replay {

// The result of a call that another thread makes. Shared by both: the one that waits may give up before.
struct CallEnd {
  TimedNotification over;
};
template <typename T>
struct CallResult : CallEnd {
  T value;  // may be read once `over` has been notified
};

// A thread that makes blocking calls, one at a time, so that its owner can wait for several of them, and can
// leave one that takes too long. Used by one thread at a time. The destructor waits for the call under way.
class CallThread {
 public:
  CallThread() = default;
  CallThread(const CallThread&) = delete;
  CallThread& operator=(const CallThread&) = delete;
  ~CallThread() {
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

  // Begins `call` and returns its result, which is there later. Waits for the call before it until
  // `deadline`; returns nullptr if that has not ended.
  template <typename T>
  std::shared_ptr<CallResult<T>> Start(absl::AnyInvocable<T() &&> call, absl::Time deadline) {
    auto result = std::make_shared<CallResult<T>>();
    const bool started = Run(
        [call = std::move(call), result]() mutable { result->value = std::move(call)(); }, result, deadline);
    return started ? result : nullptr;
  }

 private:
  bool Run(absl::AnyInvocable<void() &&> call, std::shared_ptr<CallEnd> end, absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    const auto idle = +[](CallThread* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return !self->busy_; };
    if (!AwaitUntil(&mutex_, absl::Condition(idle, this), deadline)) return false;
    next_ = std::move(call);
    end_ = std::move(end);
    busy_ = true;
    if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
    return true;
  }
  void Loop() {
    for (;;) {
      absl::AnyInvocable<void() &&> call;
      std::shared_ptr<CallEnd> end;
      {
        absl::MutexLock lock(&mutex_);
        const auto due = +[](CallThread* self) ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return self->stopped_ || self->next_ != nullptr;
        };
        mutex_.Await(absl::Condition(due, this));
        if (next_ == nullptr) return;
        call = std::exchange(next_, nullptr);
        end = std::move(end_);
      }
      std::move(call)();
      call = nullptr;
      {
        absl::MutexLock lock(&mutex_);
        busy_ = false;  // before the owner hears of the end: it may start another call at once
      }
      end->over.Notify();
    }
  }

  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // a call waits or is under way
  absl::AnyInvocable<void() &&> next_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<CallEnd> end_ ABSL_GUARDED_BY(mutex_);  // of next_
  std::thread thread_;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_CALL_THREAD_H_
