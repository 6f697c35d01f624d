// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_DEFERRED_CALLS_H_
#define TANDEM_RPC_DEFERRED_CALLS_H_

// Stores calls that wait for other workers, each with a deadline. A deferred call occupies no thread; one
// timer thread expires the calls whose deadline has passed.

#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace tandem::rpc {

// A set of deferred calls. Thread-safe. Exactly one of two things happens to each: one thread gets `true`
// from Resume and responds to it, or its `expire` function runs.
class DeferredCalls {
 public:
  // Why `expire` runs: the deadline passed, or ExpireAll or Stop was called.
  enum class Reason { kDeadline, kStopped };
  using Expire = std::function<void(Reason)>;

  // `clock` must outlive this object.
  explicit DeferredCalls(Clock* clock);
  ~DeferredCalls();

  // Returns a number that identifies one call. Never returns the same number twice.
  uint64_t NewTicket();
  // Stores a call until `deadline`. If Resume does not take it before, `expire` runs once, without locks: on
  // the timer thread, in ExpireAll or Stop, or in this call if Stop has already been called. `expire` must
  // not block.
  void Defer(uint64_t ticket, absl::Time deadline, Expire expire);
  // Returns true if the call was still stored, and removes it: the caller of Resume must now respond to it.
  bool Resume(uint64_t ticket);
  // Returns true if the call is stored.
  bool Contains(uint64_t ticket) const;
  // Expires all stored calls with kStopped. Later ones are stored as before.
  void ExpireAll();
  // Expires all stored calls, and all that are deferred later, with kStopped. Joins the timer thread.
  // Idempotent. Must not be called from an `expire` function.
  void Stop();

  // Returns the number of stored calls.
  size_t size() const;

 private:
  struct Entry {
    absl::Time deadline;
    Expire expire;
  };
  void Run();
  bool Woken() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || earlier_; }

  Clock* const clock_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // A deadline earlier than the one that the timer sleeps for was added.
  bool earlier_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::multimap<absl::Time, uint64_t> by_deadline_ ABSL_GUARDED_BY(mutex_);
  std::thread timer_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_DEFERRED_CALLS_H_
