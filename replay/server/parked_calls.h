// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SERVER_PARKED_CALLS_H_
#define TANDEM_REPLAY_SERVER_PARKED_CALLS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "base/clock.h"
#include "rpc/deferred_calls.h"
#include "rpc/service.h"

namespace tandem::replay {

// Ends calls that wait in a table when their deadline passes, and counts them. Thread-safe.
class ParkedCalls {
 public:
  // One waiting call. Created before the call is started in a table, because it may end at once on another
  // thread.
  class Entry {
   public:
    // Marks the call as over: it is no longer counted and its timer is dropped. Idempotent.
    void Over();

   private:
    friend class ParkedCalls;
    ParkedCalls* owner = nullptr;
    uint64_t timer = 0;
    uint64_t bytes = 0;
    std::atomic<bool> parked{false};
    std::atomic<bool> over{false};
    std::atomic<bool> counted{false};
  };

  // A call waits at most `max_wait`, whatever its deadline. `clock` must outlive this object.
  ParkedCalls(Clock* clock, absl::Duration max_wait, uint64_t max_bytes)
      : clock_(clock), max_wait_(max_wait), max_bytes_(max_bytes), timers_(clock) {}

  std::shared_ptr<Entry> NewEntry();
  // Counts a call, whose request holds `bytes`, until Entry::Over, and runs `expire` a moment before its
  // caller gives up, so that the caller still gets the error that says why. Returns false, and does nothing,
  // if the waiting calls would hold more than max_bytes. `expire` must not block. No effect if the entry
  // has been parked before.
  bool Park(const std::shared_ptr<Entry>& entry, const rpc::ServerCall& call, uint64_t bytes,
            std::function<void()> expire);
  void Stop() { timers_.Stop(); }

  uint64_t calls() const { return calls_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t max_bytes() const { return max_bytes_; }

 private:
  Clock* const clock_;
  const absl::Duration max_wait_;
  const uint64_t max_bytes_;
  std::atomic<uint64_t> calls_{0}, bytes_{0};
  rpc::DeferredCalls timers_;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SERVER_PARKED_CALLS_H_
