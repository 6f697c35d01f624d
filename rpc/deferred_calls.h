#ifndef TANDEM_RPC_DEFERRED_CALLS_H_
#define TANDEM_RPC_DEFERRED_CALLS_H_

// Calls that wait for other workers, each with a deadline. A waiting call holds no thread; one timer thread
// fails those whose time has come.

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

// Thread-safe. Exactly one of two things happens to a parked call: somebody gets `true` from Resume and
// answers it, or its `give_up` runs.
class DeferredCalls {
 public:
  enum class Reason { kDeadline, kStopped };
  using Expire = std::function<void(Reason)>;

  // `clock` must outlive the lot.
  explicit DeferredCalls(Clock* clock);
  ~DeferredCalls();

  // A number for one call, never given twice.
  uint64_t NewTicket();
  // Parks a call until `deadline`. `give_up` runs once on the timer thread (or in Stop, or right here when
  // the lot has stopped), under no lock, unless the call is unparked before. It must not block.
  void Defer(uint64_t ticket, absl::Time deadline, Expire expire);
  // True if the call was still parked: it is the caller's to answer now.
  bool Resume(uint64_t ticket);
  bool Contains(uint64_t ticket) const;
  // Gives up on all parked calls and on all to come; joins the timer thread. Idempotent; not from a
  // `give_up`.
  void Stop();

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
  bool earlier_ ABSL_GUARDED_BY(mutex_) = false;  // a deadline before the one the timer sleeps for came in
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::multimap<absl::Time, uint64_t> by_deadline_ ABSL_GUARDED_BY(mutex_);
  std::thread timer_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_DEFERRED_CALLS_H_
