// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_MEMORY_STORE_H_
#define TANDEM_CLUSTER_STORE_MEMORY_STORE_H_

// A store in the memory of this process. Threads of this process share it directly; other processes reach it
// through StoreService and RemoteStore.

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "cluster/store/limits.h"
#include "cluster/store/store.h"

namespace tandem::cluster {

// Thread-safe. No thread may be waiting in it when it is destroyed. A write that would exceed `limits`
// returns ResourceExhausted.
class MemoryStore final : public Store {
 public:
  explicit MemoryStore(const StoreLimits& limits = {}) : limits_(limits) {}
  const StoreLimits& limits() const { return limits_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<int64_t> Append(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) override;
  absl::StatusOr<int64_t> NumKeys() override;
  absl::Status Push(absl::string_view queue, absl::string_view value) override;
  absl::StatusOr<std::string> Pop(absl::string_view queue, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Length(absl::string_view queue) override;

  // Waits without a thread, for servers. Calls `ready(values of the first `wanted` keys)` once all keys exist
  // at the same time. If they exist already, `ready` runs before StartWait returns, in this thread, and
  // StartWait returns 0. Otherwise `ready` runs later, in the thread that creates the last missing key;
  // StartWait returns the wait's number. `ready` runs without the store's lock. `keys` must not be empty.
  using Ready = std::function<void(std::vector<std::string>)>;
  uint64_t StartWait(std::vector<std::string> keys, size_t wanted, Ready ready);
  // Cancels the wait with this number. `ready` may be running, or may have run, when this returns.
  void CancelWait(uint64_t id);

  // Waits for an item of a queue in the same way. Returns an item at once if there is one. Otherwise `*id`
  // becomes the wait's number, and `ready(item)` runs once, without the store's lock, in the thread that
  // pushes, unless CancelPop comes first.
  //
  // `present` (empty: always true) is called under the store's lock, so it must neither block nor call the
  // store. While it returns false, items go to later poppers instead.
  struct Popper {
    std::function<bool()> present;
    std::function<void(std::string)> ready;
  };
  absl::optional<std::string> StartPop(absl::string_view queue, Popper popper, uint64_t* id);
  // Cancels the wait with this number. Returns false if an item has been chosen for it: `ready` then runs or
  // has run.
  bool CancelPop(uint64_t id);

  // These do not wait.
  absl::optional<std::string> TryGet(absl::string_view key) const;
  absl::optional<std::string> TryPop(absl::string_view queue);
  absl::optional<std::string> Front(absl::string_view queue) const;  // the item stays in the queue
  // Returns the values of the first `wanted` keys if all keys exist; otherwise nullopt, and `*missing` holds
  // the keys that do not exist.
  absl::optional<std::vector<std::string>> TryValues(absl::Span<const std::string> keys, size_t wanted,
                                                     std::vector<std::string>* missing) const;
  // Removes all keys and queues. Waits stay.
  void Clear();

 private:
  struct Waiter {
    std::vector<std::string> keys;
    size_t wanted = 0;
    size_t next = 0;  // registered under keys[next], which is missing
    Ready ready;
  };
  struct Fired {
    Ready ready;
    std::vector<std::string> values;
  };
  struct Queue {
    std::deque<std::string> items;
    std::list<uint64_t> waiting;  // in the order in which they came
  };
  struct WaitingPopper {
    std::string queue;
    std::list<uint64_t>::iterator place;
    Popper popper;
  };

  // Returns ResourceExhausted if the store has no space for a value of `bytes` bytes under `key`.
  absl::Status Admit(absl::string_view key, size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the same for a MultiSet, whose keys may repeat.
  absl::Status AdmitAll(absl::Span<const std::string> keys, absl::Span<const std::string> values) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the key. Adds the waits that this fulfils to `fired`, which the caller runs after it released the
  // lock.
  void Put(absl::string_view key, std::string value, std::vector<Fired>* fired)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Run(std::vector<Fired> fired);
  // Registers the waiter under its next missing key; returns false if there is none.
  bool Advance(Waiter* waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::string> Values(absl::Span<const std::string> keys, size_t wanted) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::optional<std::string> TakeItem(absl::string_view queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropPopper(absl::flat_hash_map<uint64_t, WaitingPopper>::iterator popper)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Blocks until all keys exist, at most `timeout`; DeadlineExceeded names the keys that are still missing.
  absl::StatusOr<std::vector<std::string>> BlockingWait(absl::Span<const std::string> keys, size_t wanted,
                                                        absl::Duration timeout);

  const StoreLimits limits_;
  mutable absl::Mutex mutex_;
  size_t items_ ABSL_GUARDED_BY(mutex_) = 0;  // of all queues
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // keys and values; items with the names of their queues
  std::map<std::string, std::string, std::less<>> values_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  // Waiters by the missing key under which they are registered. A waiter is registered under one key at a
  // time, so that waiting for n keys costs n steps.
  absl::flat_hash_map<std::string, std::vector<uint64_t>> by_key_ ABSL_GUARDED_BY(mutex_);
  // Contains only queues that have items or poppers.
  absl::flat_hash_map<std::string, Queue> queues_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, WaitingPopper> poppers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_MEMORY_STORE_H_
