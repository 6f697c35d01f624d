#ifndef TANDEM_COLLECTIVES_STORE_MEMORY_STORE_H_
#define TANDEM_COLLECTIVES_STORE_MEMORY_STORE_H_

// The store itself: a map in this process. Threads of one process share it directly; other processes reach it
// through StoreService and RemoteStore.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "collectives/store/store.h"

namespace tandem::collectives {

// Thread-safe. No thread may be waiting in it when it is destroyed.
class MemoryStore final : public Store {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) override;

  // Waiting without a thread, for servers. Calls `ready(value of keys[0])` once all keys exist at the same
  // time: before returning, in this thread, if they do already (then returns 0), else later, in the thread
  // that makes it true. `ready` runs without the store's lock. CancelWait with the returned number gives the
  // wait up; `ready` may be running or have run by then. `keys` must not be empty.
  using Ready = std::function<void(std::string)>;
  uint64_t StartWait(std::vector<std::string> keys, Ready ready);
  void CancelWait(uint64_t id);

  // Without waiting.
  absl::optional<std::string> TryGet(absl::string_view key) const;
  std::vector<std::string> Missing(absl::Span<const std::string> keys) const;

 private:
  struct Waiter {
    std::vector<std::string> keys;
    size_t next = 0;  // registered under keys[next], which is missing
    Ready ready;
  };
  struct Fired {
    Ready ready;
    std::string value;
  };

  // Writes the key; returns the waits that this fulfils, to be run after the lock is released.
  std::vector<Fired> Put(absl::string_view key, std::string value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves the waiter on to a missing key; false if there is none.
  bool Advance(Waiter* waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Blocks until all keys exist or `timeout` is over; the value of keys[0], or nullopt on time-out.
  absl::optional<std::string> BlockingWait(std::vector<std::string> keys, absl::Duration timeout);

  mutable absl::Mutex mutex_;
  std::map<std::string, std::string, std::less<>> values_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  // The waiters registered under a missing key. A waiter waits on one key at a time, so that n keys cost it n
  // steps.
  absl::flat_hash_map<std::string, std::vector<uint64_t>> by_key_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_MEMORY_STORE_H_
