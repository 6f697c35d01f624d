// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_FUTURE_H_
#define TANDEM_RPC_REMOTE_CALL_FUTURE_H_

// The result of an asynchronous call (Future), and the object that delivers it (Promise).

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "rpc/remote/call/function.h"

namespace tandem::rpc::remote {

namespace internal {

// Receives on behalf of a waiting thread until `over` returns true or `deadline` (rpc::Channel::InlinePoll).
using InlinePoller = std::function<void(absl::FunctionRef<bool()> over, absl::Time deadline)>;

template <typename R>
class FutureState {
 public:
  using Result = ResultOf<R>;
  using Callback = absl::AnyInvocable<void(const Result&) &&>;

  // Stores the first result and runs the callbacks. Later results are ignored.
  void Set(Result result) {
    std::vector<Callback> callbacks;
    {
      absl::MutexLock lock(&mutex_);
      if (result_.has_value()) return;
      result_.emplace(std::move(result));
      callbacks.swap(callbacks_);
      inline_poller_ = nullptr;
      over_.store(true, std::memory_order_release);
    }
    for (Callback& callback : callbacks) std::move(callback)(*result_);
  }
  bool over() const { return over_.load(std::memory_order_acquire); }
  // Runs `callback` when the result exists: now, in this thread, if it exists already.
  void OnSet(Callback callback) {
    {
      absl::MutexLock lock(&mutex_);
      if (!result_.has_value()) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    std::move(callback)(*result_);
  }
  // Returns false if `deadline` passes first.
  bool WaitUntil(absl::Time deadline) {
    if (over()) return true;
    InlinePoller inline_poller;
    {
      absl::MutexLock lock(&mutex_);
      inline_poller = inline_poller_;
    }
    if (inline_poller) inline_poller([this] { return over(); }, deadline);
    absl::MutexLock lock(&mutex_);
    const auto set = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return result_.has_value(); };
    return AwaitUntil(&mutex_, absl::Condition(&set), deadline);
  }
  // Requires over().
  const Result& result() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return *result_; }

  void SetInlinePoller(InlinePoller inline_poller) {
    absl::MutexLock lock(&mutex_);
    if (!result_.has_value()) inline_poller_ = std::move(inline_poller);
  }
  std::stop_source& stop() { return stop_; }

 private:
  std::stop_source stop_;
  std::atomic<bool> over_{false};
  absl::Mutex mutex_;
  std::optional<Result> result_;  // guarded by mutex_ until it is set, then constant
  std::vector<Callback> callbacks_ ABSL_GUARDED_BY(mutex_);
  InlinePoller inline_poller_ ABSL_GUARDED_BY(mutex_);
};

template <typename T>
struct StripResult {
  using type = T;
};
template <typename T>
struct StripResult<absl::StatusOr<T>> {
  using type = T;
};
template <>
struct StripResult<absl::Status> {
  using type = void;
};

}  // namespace internal

template <typename R>
class Promise;

// The result of an asynchronous call. Copies are the same future. Dropping a future has no effect on the
// call. R must be copyable. Thread-safe.
template <typename R>
class Future {
 public:
  using Result = ResultOf<R>;

  // Constructs an invalid future: valid() returns false and no other method may be called.
  Future() = default;
  // Returns a future that has `result` already.
  static Future Ready(Result result) {
    Future future(std::make_shared<internal::FutureState<R>>());
    future.state_->Set(std::move(result));
    return future;
  }

  bool valid() const { return state_ != nullptr; }
  bool ready() const { return state_->over(); }
  // Returns the result. Blocks until it exists. DeadlineExceeded after `timeout`; the call then goes on.
  // Every call ends at its own deadline, so the default waits no longer than that. Must not be called on an
  // RPC thread.
  Result Wait(absl::Duration timeout = absl::InfiniteDuration()) const {
    if (!state_->WaitUntil(MonotonicNow() + timeout)) {
      return absl::DeadlineExceededError(
          absl::StrCat("there is no result after ", absl::FormatDuration(timeout), "; the call goes on"));
    }
    return state_->result();
  }
  // Runs `then(result)` when the result exists: now, in this thread, if it exists already, else in the thread
  // that delivers it, so `then` must not block. Returns a future of what `then` returns. Cancelling that
  // future cancels this one.
  template <typename Body>
  auto Then(Body then) const;
  // Ends the call with Cancelled and notifies the callee. No effect on a call that has ended.
  void Cancel() const { state_->stop().request_stop(); }

 private:
  friend class Promise<R>;
  explicit Future(std::shared_ptr<internal::FutureState<R>> state) : state_(std::move(state)) {}
  std::shared_ptr<internal::FutureState<R>> state_;
};

// Delivers the result of a future. Copies are the same promise. If the last copy is destroyed without a
// result, the result is an Internal error. Thread-safe.
template <typename R>
class Promise {
 public:
  Promise() : guard_(std::make_shared<Guard>()) {}
  Future<R> future() const { return Future<R>(guard_->state); }
  // Sets the result. Later results are ignored.
  void Set(ResultOf<R> result) const { guard_->state->Set(std::move(result)); }
  // Returns a token that is stopped when the future is cancelled.
  std::stop_token cancelled() const { return guard_->state->stop().get_token(); }
  void SetInlinePoller(internal::InlinePoller inline_poller) const {
    guard_->state->SetInlinePoller(std::move(inline_poller));
  }
  // Returns the source of the token that cancelled() returns.
  std::stop_source stop() const { return guard_->state->stop(); }

 private:
  struct Guard {
    ~Guard() {
      if (!state->over()) state->Set(absl::InternalError("the promise was dropped without a result"));
    }
    const std::shared_ptr<internal::FutureState<R>> state = std::make_shared<internal::FutureState<R>>();
  };
  std::shared_ptr<Guard> guard_;
};

template <typename R>
template <typename Body>
auto Future<R>::Then(Body then) const {
  using Given = std::invoke_result_t<Body, const Result&>;
  using Next = typename internal::StripResult<Given>::type;
  Promise<Next> promise;
  Future<Next> next = promise.future();
  // Cancelling the returned future cancels this one's call.
  auto forward = std::make_shared<std::stop_callback<std::function<void()>>>(
      promise.cancelled(), [state = std::weak_ptr(state_)] {
        if (const auto alive = state.lock()) alive->stop().request_stop();
      });
  state_->OnSet([promise, forward, then = std::move(then)](const Result& result) mutable {
    if constexpr (std::is_void_v<Given>) {
      then(result);
      promise.Set(absl::OkStatus());
    } else {
      promise.Set(then(result));
    }
  });
  return next;
}

// Waits for all futures, at most `timeout` in total. Returns the first error in their order, or OK.
template <typename R>
absl::Status WaitAll(const std::vector<Future<R>>& futures,
                     absl::Duration timeout = absl::InfiniteDuration()) {
  const absl::Time deadline = MonotonicNow() + timeout;
  absl::Status first;
  for (const Future<R>& future : futures) {
    const ResultOf<R> result = future.Wait(deadline - MonotonicNow());
    if (const absl::Status& status = ::tandem::internal::AsStatus(result); first.ok()) first = status;
  }
  return first;
}

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_FUTURE_H_
