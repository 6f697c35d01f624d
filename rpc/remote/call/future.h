#ifndef TANDEM_RPC_REMOTE_CALL_FUTURE_H_
#define TANDEM_RPC_REMOTE_CALL_FUTURE_H_

// A result that is on its way.

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
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "rpc/remote/call/function.h"

namespace tandem::rpc::remote {

namespace internal {

// Receives on behalf of a thread that waits (rpc::Channel::Help).
using Helper = std::function<void(absl::FunctionRef<bool()> over, absl::Time deadline)>;

template <typename R>
class FutureState {
 public:
  using Result = ResultOf<R>;
  using Callback = absl::AnyInvocable<void(const Result&) &&>;

  // The first result counts.
  void Set(Result result) {
    std::vector<Callback> callbacks;
    {
      absl::MutexLock lock(&mutex_);
      if (result_.has_value()) return;
      result_.emplace(std::move(result));
      callbacks.swap(callbacks_);
      helper_ = nullptr;
      over_.store(true, std::memory_order_release);
    }
    for (Callback& callback : callbacks) std::move(callback)(*result_);
  }
  bool over() const { return over_.load(std::memory_order_acquire); }
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
  bool WaitUntil(absl::Time deadline) {
    if (over()) return true;
    Helper helper;
    {
      absl::MutexLock lock(&mutex_);
      helper = helper_;
    }
    if (helper) helper([this] { return over(); }, deadline);
    absl::MutexLock lock(&mutex_);
    const auto set = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return result_.has_value(); };
    return mutex_.AwaitWithDeadline(absl::Condition(&set), deadline);
  }
  // Once over().
  const Result& result() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return *result_; }

  void SetHelper(Helper helper) {
    absl::MutexLock lock(&mutex_);
    if (!result_.has_value()) helper_ = std::move(helper);
  }
  std::stop_source& stop() { return stop_; }

 private:
  std::stop_source stop_;
  std::atomic<bool> over_{false};
  absl::Mutex mutex_;
  std::optional<Result> result_;  // guarded by mutex_ until it is set, then constant
  std::vector<Callback> callbacks_ ABSL_GUARDED_BY(mutex_);
  Helper helper_ ABSL_GUARDED_BY(mutex_);
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

// Copies are the same future. Thread-safe. R must be copyable. Dropping it changes nothing: the call goes on.
template <typename R>
class Future {
 public:
  using Result = ResultOf<R>;

  // Of nothing: valid() is false, and that is all to ask.
  Future() = default;
  static Future Ready(Result result) {
    Future future(std::make_shared<internal::FutureState<R>>());
    future.state_->Set(std::move(result));
    return future;
  }

  bool valid() const { return state_ != nullptr; }
  bool ready() const { return state_->over(); }
  // Blocks until there is a result. DeadlineExceeded after `timeout`: the call goes on then. A call ends by
  // its own deadline, so the default waits no longer than that. Not on an RPC thread.
  Result Wait(absl::Duration timeout = absl::InfiniteDuration()) const {
    if (!state_->WaitUntil(absl::Now() + timeout)) {
      return absl::DeadlineExceededError(
          absl::StrCat("there is no result after ", absl::FormatDuration(timeout), "; the call goes on"));
    }
    return state_->result();
  }
  // Runs `then(result)` once there is one, here and now if it is there, else on the thread that brings it: it
  // must not block. Its value is the new future's. Cancelling that cancels this.
  template <typename Body>
  auto Then(Body then) const;
  // Ends the call with Cancelled, unless it is over; its callee is told.
  void Cancel() const { state_->stop().request_stop(); }

 private:
  friend class Promise<R>;
  explicit Future(std::shared_ptr<internal::FutureState<R>> state) : state_(std::move(state)) {}
  std::shared_ptr<internal::FutureState<R>> state_;
};

// The other end. A promise of which the last copy goes without a result gives Internal.
template <typename R>
class Promise {
 public:
  Promise() : guard_(std::make_shared<Guard>()) {}
  Future<R> future() const { return Future<R>(guard_->state); }
  // The first counts.
  void Set(ResultOf<R> result) const { guard_->state->Set(std::move(result)); }
  // Requested when the future is cancelled.
  std::stop_token cancelled() const { return guard_->state->stop().get_token(); }
  void SetHelper(internal::Helper helper) const { guard_->state->SetHelper(std::move(helper)); }
  // Its token is cancelled().
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
  // Cancelling the next reaches this one's call.
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

// Waits for all, at most `timeout` together; the first error there is.
template <typename R>
absl::Status WaitAll(const std::vector<Future<R>>& futures,
                     absl::Duration timeout = absl::InfiniteDuration()) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::Status first;
  for (const Future<R>& future : futures) {
    const ResultOf<R> result = future.Wait(deadline - absl::Now());
    if (const absl::Status& status = ::tandem::internal::AsStatus(result); first.ok()) first = status;
  }
  return first;
}

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_FUTURE_H_
