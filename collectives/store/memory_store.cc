#include "collectives/store/memory_store.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "collectives/store/limits.h"

namespace tandem::collectives {

bool MemoryStore::Advance(Waiter* waiter) {
  // Starts where it stood, and goes round once: a key seen earlier may have been deleted since.
  for (size_t step = 0; step < waiter->keys.size(); ++step) {
    const size_t i = (waiter->next + step) % waiter->keys.size();
    if (values_.find(waiter->keys[i]) == values_.end()) {
      waiter->next = i;
      return true;
    }
  }
  return false;
}

std::vector<MemoryStore::Fired> MemoryStore::Put(absl::string_view key, std::string value) {
  auto it = values_.find(key);
  if (it != values_.end()) {
    it->second = std::move(value);
    return {};  // the key existed: nobody waits for it
  }
  values_.emplace(std::string(key), std::move(value));
  auto waiting = by_key_.find(key);
  if (waiting == by_key_.end()) return {};
  const std::vector<uint64_t> ids = std::move(waiting->second);
  by_key_.erase(waiting);
  std::vector<Fired> fired;
  for (uint64_t id : ids) {
    auto found = waiters_.find(id);
    if (found == waiters_.end()) continue;
    Waiter& waiter = found->second;
    if (Advance(&waiter)) {
      by_key_[waiter.keys[waiter.next]].push_back(id);
    } else {
      fired.push_back({std::move(waiter.ready), values_.find(waiter.keys[0])->second});
      waiters_.erase(found);
    }
  }
  return fired;
}

absl::Status MemoryStore::Set(absl::string_view key, absl::string_view value) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, value));
  std::vector<Fired> fired;
  {
    absl::MutexLock lock(&mutex_);
    fired = Put(key, std::string(value));
  }
  for (Fired& one : fired) one.ready(std::move(one.value));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> MemoryStore::Add(absl::string_view key, int64_t delta) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  std::vector<Fired> fired;
  int64_t sum = 0;
  {
    absl::MutexLock lock(&mutex_);
    auto it = values_.find(key);
    if (it != values_.end() && !absl::SimpleAtoi(it->second, &sum)) {
      return absl::InvalidArgumentError(absl::StrCat("store key ", QuoteKey(key), " holds ",
                                                     QuoteKey(it->second), ", which is no number to add to"));
    }
    if (__builtin_add_overflow(sum, delta, &sum)) {
      return absl::InvalidArgumentError(absl::StrCat("adding ", delta, " to store key ", QuoteKey(key),
                                                     " leaves the range of 64-bit integers"));
    }
    fired = Put(key, absl::StrCat(sum));
  }
  for (Fired& one : fired) one.ready(std::move(one.value));
  return sum;
}

absl::StatusOr<std::string> MemoryStore::CompareSet(absl::string_view key, absl::string_view expected,
                                                    absl::string_view desired) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, desired));
  std::vector<Fired> fired;
  {
    absl::MutexLock lock(&mutex_);
    auto it = values_.find(key);
    if (it == values_.end() ? !expected.empty() : it->second != expected) {
      return it == values_.end() ? std::string() : it->second;
    }
    fired = Put(key, std::string(desired));
  }
  for (Fired& one : fired) one.ready(std::move(one.value));
  return std::string(desired);
}

absl::StatusOr<bool> MemoryStore::Delete(absl::string_view key) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  absl::MutexLock lock(&mutex_);
  auto it = values_.find(key);
  if (it == values_.end()) return false;
  values_.erase(it);
  return true;
}

absl::StatusOr<std::vector<std::string>> MemoryStore::List(absl::string_view prefix) {
  if (!prefix.empty()) TANDEM_RETURN_IF_ERROR(ValidateStoreKey(prefix));
  std::vector<std::string> keys;
  absl::MutexLock lock(&mutex_);
  for (auto it = values_.lower_bound(prefix); it != values_.end() && absl::StartsWith(it->first, prefix);
       ++it) {
    keys.push_back(it->first);
  }
  return keys;
}

uint64_t MemoryStore::StartWait(std::vector<std::string> keys, Ready ready) {
  TANDEM_CHECK(!keys.empty());
  std::string value;
  {
    absl::MutexLock lock(&mutex_);
    Waiter waiter{std::move(keys), 0, nullptr};
    if (Advance(&waiter)) {
      const uint64_t id = next_id_++;
      waiter.ready = std::move(ready);
      by_key_[waiter.keys[waiter.next]].push_back(id);
      waiters_.emplace(id, std::move(waiter));
      return id;
    }
    value = values_.find(waiter.keys[0])->second;
  }
  ready(std::move(value));
  return 0;
}

void MemoryStore::CancelWait(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  auto found = waiters_.find(id);
  if (found == waiters_.end()) return;
  const std::string& key = found->second.keys[found->second.next];
  auto waiting = by_key_.find(key);
  if (waiting != by_key_.end()) {
    std::vector<uint64_t>& ids = waiting->second;
    ids.erase(std::remove(ids.begin(), ids.end(), id), ids.end());
    if (ids.empty()) by_key_.erase(waiting);
  }
  waiters_.erase(found);
}

absl::optional<std::string> MemoryStore::TryGet(absl::string_view key) const {
  absl::MutexLock lock(&mutex_);
  auto it = values_.find(key);
  if (it == values_.end()) return absl::nullopt;
  return it->second;
}

std::vector<std::string> MemoryStore::Missing(absl::Span<const std::string> keys) const {
  std::vector<std::string> missing;
  absl::MutexLock lock(&mutex_);
  for (const std::string& key : keys) {
    if (values_.find(key) == values_.end()) missing.push_back(key);
  }
  return missing;
}

absl::optional<std::string> MemoryStore::BlockingWait(std::vector<std::string> keys, absl::Duration timeout) {
  struct State {
    std::string value;
    absl::Notification done;
  };
  auto state = std::make_shared<State>();  // `ready` may still be running after a time-out
  const uint64_t id = StartWait(std::move(keys), [state](std::string value) {
    state->value = std::move(value);
    state->done.Notify();
  });
  if (!state->done.WaitForNotificationWithTimeout(timeout)) {
    CancelWait(id);
    if (!state->done.HasBeenNotified()) return absl::nullopt;
  }
  return std::move(state->value);
}

absl::StatusOr<std::string> MemoryStore::Get(absl::string_view key, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  const std::string name(key);
  absl::optional<std::string> value = BlockingWait({name}, timeout);
  if (!value) return KeysMissing({name}, timeout);
  return *std::move(value);
}

absl::Status MemoryStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  if (keys.empty()) return absl::OkStatus();
  if (BlockingWait({keys.begin(), keys.end()}, timeout)) return absl::OkStatus();
  const std::vector<std::string> missing = Missing(keys);
  if (missing.empty()) return absl::OkStatus();
  return KeysMissing(missing, timeout);
}

}  // namespace tandem::collectives
