// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_CANCEL_HOOK_H_
#define TANDEM_RPC_CANCEL_HOOK_H_

// Stores, for a transport, whether a call was cancelled and the function that its handler wants to run then.

#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace tandem::rpc {

// Thread-safe. The hook runs at most once.
class CancelHook {
 public:
  using Hook = absl::AnyInvocable<void() &&>;

  // Implements ServerCall::OnCancel.
  void Set(Hook hook) {
    {
      absl::MutexLock lock(&mutex_);
      if (over_) return;
      if (!cancelled_.load(std::memory_order_relaxed)) {
        hook_ = std::move(hook);
        set_.store(true, std::memory_order_relaxed);
        return;
      }
    }
    std::move(hook)();
  }

  // Marks the call as cancelled. Returns the hook, or nullptr; the caller must run it without holding locks.
  Hook Cancel() {
    absl::MutexLock lock(&mutex_);
    cancelled_.store(true);
    return std::exchange(hook_, nullptr);
  }

  // Discards the hook: the call has its response.
  void Drop() {
    if (!set_.load(std::memory_order_relaxed)) return;
    Hook unused;  // destroyed after the lock is released
    absl::MutexLock lock(&mutex_);
    over_ = true;
    unused = std::exchange(hook_, nullptr);
  }

  // Returns true once Cancel has been called.
  bool cancelled() const { return cancelled_.load(); }

 private:
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> set_{false};
  absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  Hook hook_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_CANCEL_HOOK_H_
