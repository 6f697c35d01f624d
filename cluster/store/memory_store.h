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
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "cluster/store/limits.h"
#include "cluster/store/store.h"

namespace tandem::cluster {

// Gets the changes of a MemoryStore, in their order, each before it is made.
class StoreJournal {
 public:
  virtual ~StoreJournal() = default;
  // Writes a change down. `kind` and `fields` are those of a record (record.h), `request_id` is that of the
  // call, or empty. Called under the store's lock, so it must not call the store. After an error the store
  // does not make the change, and its caller gets the error.
  virtual absl::Status Write(char kind, absl::Span<const absl::string_view> fields,
                             absl::string_view request_id) = 0;
};

// The content of a MemoryStore at one moment.
struct StoreContents {
  std::vector<std::pair<std::string, std::string>> values;   // key, value; in the order of the keys
  std::vector<std::pair<std::string, std::string>> items;    // queue, item; oldest item of a queue first
  std::vector<std::pair<std::string, std::string>> answers;  // request id, answer; oldest first
};

// Thread-safe. No thread may be waiting in it when it is destroyed. A write that would exceed `limits`
// returns ResourceExhausted.
//
// Changes may carry the id of a client's request. The store remembers the answers to the latest 32,768
// requests, at most 256 MiB of them: a change with a known id is not made again, and returns the first
// answer. A client repeats a call within its time-out, so a bounded memory suffices. InvalidArgument for an
// id of more than 64 bytes, or one that has answered a call of another kind. An empty id is no id.
class MemoryStore final : public Store {
 public:
  explicit MemoryStore(const StoreLimits& limits = {}) : limits_(limits) {}
  const StoreLimits& limits() const { return limits_; }
  // From now on changes are made only once `journal`, which is borrowed, has them. nullptr: no journal.
  void SetJournal(StoreJournal* journal);

  // The changes of a Store, for the request `request_id`.
  absl::Status Set(absl::string_view key, absl::string_view value, absl::string_view request_id);
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, absl::string_view request_id);
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired, absl::string_view request_id);
  absl::StatusOr<int64_t> Append(absl::string_view key, absl::string_view value,
                                 absl::string_view request_id);
  absl::Status MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values,
                        absl::string_view request_id);
  absl::StatusOr<bool> Delete(absl::string_view key, absl::string_view request_id);
  absl::Status Push(absl::string_view queue, absl::string_view value, absl::string_view request_id);

  absl::Status Set(absl::string_view key, absl::string_view value) override { return Set(key, value, {}); }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override { return Add(key, delta, {}); }
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    return CompareSet(key, expected, desired, {});
  }
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<int64_t> Append(absl::string_view key, absl::string_view value) override {
    return Append(key, value, {});
  }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) override {
    return MultiSet(keys, values, {});
  }
  absl::StatusOr<bool> Delete(absl::string_view key) override { return Delete(key, {}); }
  absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) override;
  absl::StatusOr<int64_t> NumKeys() override;
  absl::Status Push(absl::string_view queue, absl::string_view value) override {
    return Push(queue, value, {});
  }
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
  // store. While it returns false, items go to later poppers instead. The item becomes the answer to the
  // request `request_id`; StartPop does not look whether it has an answer already. Errors are those of the
  // journal; then the item stays, and nothing waits.
  struct Popper {
    std::function<bool()> present;
    std::function<void(std::string)> ready;
    std::string request_id;
  };
  absl::StatusOr<absl::optional<std::string>> StartPop(absl::string_view queue, Popper popper, uint64_t* id);
  // Cancels the wait with this number. Returns false if an item has been chosen for it: `ready` then runs or
  // has run.
  bool CancelPop(uint64_t id);

  // These do not wait.
  absl::optional<std::string> TryGet(absl::string_view key) const;
  absl::StatusOr<absl::optional<std::string>> TryPop(absl::string_view queue,
                                                     absl::string_view request_id = {});
  absl::optional<std::string> Front(absl::string_view queue) const;  // the item stays in the queue
  // Returns the values of the first `wanted` keys if all keys exist; otherwise nullopt, and `*missing` holds
  // the keys that do not exist.
  absl::optional<std::vector<std::string>> TryValues(absl::Span<const std::string> keys, size_t wanted,
                                                     std::vector<std::string>* missing) const;
  // Returns the answer to a request; nullopt if there was none, or if it is forgotten. InvalidArgument as
  // above.
  absl::StatusOr<absl::optional<std::string>> AnswerTo(absl::string_view request_id) const;
  // Remembers an answer that the store gave before it was restarted.
  void RestoreAnswer(absl::string_view request_id, absl::string_view answer);
  // Returns the whole content. Calls `same_moment` under the store's lock: what the journal got before that
  // is in the content, what it gets later is not.
  StoreContents Contents(const std::function<void()>& same_moment) const;
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
  // Takes the first item of a queue as the answer to `request_id`.
  absl::StatusOr<absl::optional<std::string>> TakeItem(absl::string_view queue, absl::string_view request_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Journal(char kind, absl::Span<const absl::string_view> fields, absl::string_view request_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return journal_ == nullptr ? absl::OkStatus() : journal_->Write(kind, fields, request_id);
  }
  // Returns the answer to the request, or nullptr. InvalidArgument for a long id.
  absl::StatusOr<const std::string*> Known(absl::string_view request_id) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Remember(absl::string_view request_id, absl::string_view answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  StoreJournal* journal_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::flat_hash_map<std::string, std::string> answers_ ABSL_GUARDED_BY(mutex_);  // by request id
  std::deque<std::string> answered_ ABSL_GUARDED_BY(mutex_);  // request ids, oldest first
  size_t answer_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_MEMORY_STORE_H_
