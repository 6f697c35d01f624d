// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_OPERATION_GUARD_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_OPERATION_GUARD_H_

// Bounds and ends the waits inside Gloo's algorithms.

#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::collectives::gloo_library {

// The deadline of a group's running operation, and the reason why the group has ended, if it has.
// Thread-safe.
class OperationGuard {
 public:
  // A place where a thread waits for a peer.
  class Waiter {
   public:
    // Ends the wait, and all later ones. Called at most once, while the guard's lock is held: it must not
    // call the guard.
    virtual void Interrupt() = 0;

   protected:
    ~Waiter() = default;
  };

  // An operation begins: waits end at `deadline`. The group's thread calls it, before the operation waits.
  void Begin(absl::Time deadline);
  absl::Time deadline() const;

  // Ends all waits and all later ones, for good. Only the first reason is kept.
  void Stop(const absl::Status& reason);
  // Returns the reason given to Stop; OK before.
  absl::Status stopped() const;
  // Blocks until Stop is called, at most for `grace`; returns stopped().
  absl::Status AwaitStop(absl::Duration grace) const;

  // Adds a waiter, which Stop interrupts until Remove. Returns false if Stop has been called; the waiter is
  // then not added.
  bool Add(Waiter* waiter);
  // After this call `waiter` is not called.
  void Remove(Waiter* waiter);

  // Notes the peers of a wait that ended at the deadline. late() returns those of the running operation.
  void NoteLate(std::vector<int> ranks);
  std::vector<int> late() const;

 private:
  mutable absl::Mutex mutex_;
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  std::set<Waiter*> waiters_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> late_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::collectives::gloo_library

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_OPERATION_GUARD_H_
