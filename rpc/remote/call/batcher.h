// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_BATCHER_H_
#define TANDEM_RPC_REMOTE_CALL_BATCHER_H_

// Dynamic batching: many single calls become one call of the function, on a batch of their arguments, as in
// inference servers (Clipper's adaptive batching, Triton's dynamic batcher).

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "rpc/remote/call/runtime.h"
#include "rpc/remote/call/serve.h"

namespace tandem::rpc::remote {

struct BatchOptions {
  size_t max_batch = 32;  // calls in a batch, at least 1
  // The longest time that a call waits for a batch to fill while fewer than `concurrency` batches run.
  absl::Duration max_delay = absl::Milliseconds(2);
  // The number of batches that run at a time, at least 1. While they run, the next batch grows.
  int concurrency = 1;
  // The number of calls that wait for a batch. Further calls are refused with ResourceExhausted.
  size_t max_queued = 4096;
};

// Batches the calls of one function in one worker. Thread-safe.
template <typename R, typename... Args>
class Batcher : public std::enable_shared_from_this<Batcher<R, Args...>> {
 public:
  using Arguments = std::tuple<Args...>;
  // Returns as many results as arguments, in their order, or one error for all.
  using Body = absl::AnyInvocable<absl::StatusOr<std::vector<absl::StatusOr<R>>>(std::vector<Arguments>)>;

  // `name` is that of the function and must outlive the batcher.
  Batcher(absl::string_view name, Body body, const BatchOptions& options)
      : name_(name), body_(std::move(body)), options_(options) {}

  // Adds a call. Does not block: the batch runs on the runtime's threads.
  void Add(Runtime& runtime, std::shared_ptr<Invocation> call) {
    Item item{std::move(call), {}};
    bool read = false;
    internal::Guarded(item.call, [&] { read = internal::TakeArguments(*item.call, &item.arguments); });
    if (!read) return;
    {
      absl::MutexLock lock(&mutex_);
      if (items_.size() < options_.max_queued) {
        items_.push_back(std::move(item));
        // Posted batches will take this many of the items.
        const size_t taken = posted_ * options_.max_batch;
        if (items_.size() >= taken + options_.max_batch) {
          Start(runtime);
        } else if (items_.size() == taken + 1 && running_ < options_.concurrency) {
          Arm(runtime);
        }
        return;
      }
    }
    // Not under the lock: a caller in this process may call again from its callback.
    item.call->Fail(absl::ResourceExhaustedError(absl::StrCat(
        options_.max_queued, " calls wait to be batched (BatchOptions::max_queued); try again later")));
  }

 private:
  struct Item {
    std::shared_ptr<Invocation> call;
    Arguments arguments;
  };

  // Starts the batch after max_delay.
  void Arm(Runtime& runtime) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    runtime.timers().Schedule(MonotonicNow() + options_.max_delay,
                              [self = this->shared_from_this(), &runtime] {
                                absl::MutexLock lock(&self->mutex_);
                                self->Start(runtime);
                              });
  }

  // Posts a batch if calls wait and fewer than `concurrency` batches run.
  void Start(Runtime& runtime) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (items_.empty() || running_ >= options_.concurrency) return;
    ++running_;
    ++posted_;
    runtime.executor().Post(name_, [self = this->shared_from_this(), &runtime] {
      self->RunOne();
      absl::MutexLock lock(&self->mutex_);
      --self->running_;
      self->Start(runtime);
    });
  }

  void RunOne() {
    std::vector<Item> items;
    {
      absl::MutexLock lock(&mutex_);
      --posted_;
      while (!items_.empty() && items.size() < options_.max_batch) {
        items.push_back(std::move(items_.front()));
        items_.pop_front();
      }
    }
    std::vector<Arguments> arguments;
    std::vector<std::shared_ptr<Invocation>> calls;
    for (Item& item : items) {
      if (item.call->IsCancelled()) {
        item.call->Fail(
            absl::CancelledError("it was cancelled, or its deadline passed, while it waited for its batch"));
        continue;
      }
      calls.push_back(std::move(item.call));
      arguments.push_back(std::move(item.arguments));
    }
    if (calls.empty()) return;
    const size_t count = calls.size();
    absl::StatusOr<std::vector<absl::StatusOr<R>>> results = absl::UnknownError("");
    try {
      results = body_(std::move(arguments));
      if (results.ok() && results->size() != count) {
        results = absl::InternalError(
            absl::StrCat("it gave ", results->size(), " results for a batch of ", count, " calls"));
      }
    } catch (const std::exception& e) {
      results = absl::InternalError(absl::StrCat("it threw an exception: ", e.what()));
    } catch (...) {
      results = absl::InternalError("it threw an exception of an unknown type");
    }
    for (size_t i = 0; i < count; ++i) {
      if (results.ok()) {
        internal::Deliver<R>(calls[i], std::move((*results)[i]));
      } else {
        calls[i]->Fail(results.status());
      }
    }
  }

  const absl::string_view name_;
  Body body_;  // called by up to `concurrency` threads at the same time
  const BatchOptions options_;
  absl::Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  int running_ ABSL_GUARDED_BY(mutex_) = 0;    // batches, including posted ones
  size_t posted_ ABSL_GUARDED_BY(mutex_) = 0;  // batches that have not started
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_BATCHER_H_
