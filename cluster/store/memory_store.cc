// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/memory_store.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "cluster/store/limits.h"
#include "cluster/store/record.h"

namespace tandem::cluster {
namespace {

// The answer to a Delete of a key that existed.
constexpr char kStoreDeleted[] = "1";

// Returns the answer to an Add or an Append.
absl::StatusOr<int64_t> NumberAnswered(const std::string& answer) {
  int64_t number = 0;
  if (absl::SimpleAtoi(answer, &number)) return number;
  return absl::InvalidArgumentError("the request_id is that of a call of another kind");
}

}  // namespace

bool MemoryStore::Advance(Waiter* waiter) {
  // Starts at the current key and checks every key once: a key seen earlier may have been deleted since.
  for (size_t step = 0; step < waiter->keys.size(); ++step) {
    const size_t i = (waiter->next + step) % waiter->keys.size();
    if (values_.find(waiter->keys[i]) == values_.end()) {
      waiter->next = i;
      return true;
    }
  }
  return false;
}

std::vector<std::string> MemoryStore::Values(absl::Span<const std::string> keys, size_t wanted) const {
  std::vector<std::string> values;
  values.reserve(wanted);
  for (size_t i = 0; i < wanted; ++i) values.push_back(values_.find(keys[i])->second);
  return values;
}

absl::Status MemoryStore::Admit(absl::string_view key, size_t bytes) const {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    return ValidateStoreTotal(key, values_.size() + items_ + 1, bytes_ + key.size() + bytes, limits_);
  }
  if (bytes <= it->second.size()) return absl::OkStatus();
  return ValidateStoreTotal(key, values_.size() + items_, bytes_ - it->second.size() + bytes, limits_);
}

absl::Status MemoryStore::AdmitAll(absl::Span<const std::string> keys,
                                   absl::Span<const std::string> values) const {
  absl::flat_hash_map<absl::string_view, size_t> last;  // the size that stays, of each distinct key
  for (size_t i = 0; i < keys.size(); ++i) last[keys[i]] = values[i].size();
  size_t count = values_.size() + items_, bytes = bytes_;
  for (const auto& [key, size] : last) {
    const auto it = values_.find(key);
    if (it == values_.end()) {
      ++count;
      bytes += key.size() + size;
    } else {
      bytes = bytes - it->second.size() + size;
    }
  }
  if (bytes <= bytes_ && count == values_.size() + items_) return absl::OkStatus();
  return ValidateStoreTotal(keys[0], count, bytes, limits_);
}

void MemoryStore::Put(absl::string_view key, std::string value, std::vector<Fired>* fired) {
  auto it = values_.find(key);
  if (it != values_.end()) {
    bytes_ = bytes_ - it->second.size() + value.size();
    it->second = std::move(value);
    return;  // the key existed: no thread waits for it
  }
  bytes_ += key.size() + value.size();
  values_.emplace(std::string(key), std::move(value));
  auto waiting = by_key_.find(key);
  if (waiting == by_key_.end()) return;
  const std::vector<uint64_t> ids = std::move(waiting->second);
  by_key_.erase(waiting);
  for (uint64_t id : ids) {
    auto found = waiters_.find(id);
    if (found == waiters_.end()) continue;
    Waiter& waiter = found->second;
    if (Advance(&waiter)) {
      by_key_[waiter.keys[waiter.next]].push_back(id);
    } else {
      fired->push_back({std::move(waiter.ready), Values(waiter.keys, waiter.wanted)});
      waiters_.erase(found);
    }
  }
}

void MemoryStore::Run(std::vector<Fired> fired) {
  for (Fired& one : fired) one.ready(std::move(one.values));
}

void MemoryStore::SetJournal(StoreJournal* journal) {
  absl::MutexLock lock(&mutex_);
  journal_ = journal;
}

absl::StatusOr<const std::string*> MemoryStore::Known(absl::string_view request_id) const {
  constexpr size_t kMaxRequestIdBytes = 64;
  if (request_id.size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request_id has at most ", kMaxRequestIdBytes, " bytes, not ", request_id.size()));
  }
  const auto it = request_id.empty() ? answers_.end() : answers_.find(request_id);
  return it == answers_.end() ? nullptr : &it->second;
}

void MemoryStore::Remember(absl::string_view request_id, absl::string_view answer) {
  constexpr size_t kAnswers = 32768, kBytes = 256 << 20;
  if (request_id.empty() || !answers_.try_emplace(request_id, answer).second) return;
  answered_.emplace_back(request_id);
  answer_bytes_ += answer.size();
  while (answered_.size() > kAnswers || (answer_bytes_ > kBytes && answered_.size() > 1)) {
    const auto oldest = answers_.find(answered_.front());
    answer_bytes_ -= oldest->second.size();
    answers_.erase(oldest);
    answered_.pop_front();
  }
}

absl::StatusOr<absl::optional<std::string>> MemoryStore::AnswerTo(absl::string_view request_id) const {
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(const std::string* const known, Known(request_id));
  return known == nullptr ? absl::nullopt : absl::optional<std::string>(*known);
}

void MemoryStore::RestoreAnswer(absl::string_view request_id, absl::string_view answer) {
  absl::MutexLock lock(&mutex_);
  Remember(request_id, answer);
}

StoreContents MemoryStore::Contents(const std::function<void()>& same_moment) const {
  StoreContents contents;
  absl::MutexLock lock(&mutex_);
  contents.values.assign(values_.begin(), values_.end());
  for (const auto& [name, queue] : queues_) {
    for (const std::string& item : queue.items) contents.items.emplace_back(name, item);
  }
  for (const std::string& id : answered_) contents.answers.emplace_back(id, answers_.find(id)->second);
  same_moment();
  return contents;
}

absl::Status MemoryStore::Set(absl::string_view key, absl::string_view value, absl::string_view request_id) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, value));
  std::vector<Fired> fired;
  {
    absl::MutexLock lock(&mutex_);
    TANDEM_ASSIGN_OR_RETURN(const std::string* const known, Known(request_id));
    if (known != nullptr) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(Admit(key, value.size()));
    TANDEM_RETURN_IF_ERROR(Journal(kStoreSet, {key, value}, request_id));
    Put(key, std::string(value), &fired);
    Remember(request_id, "");
  }
  Run(std::move(fired));
  return absl::OkStatus();
}

absl::Status MemoryStore::MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values,
                                   absl::string_view request_id) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreEntries(keys, values));
  std::vector<Fired> fired;
  {
    absl::MutexLock lock(&mutex_);
    TANDEM_ASSIGN_OR_RETURN(const std::string* const known, Known(request_id));
    if (known != nullptr) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(AdmitAll(keys, values));
    std::vector<absl::string_view> fields;
    fields.reserve(2 * keys.size());
    for (size_t i = 0; i < keys.size(); ++i) fields.insert(fields.end(), {keys[i], values[i]});
    TANDEM_RETURN_IF_ERROR(Journal(kStoreSet, fields, request_id));
    for (size_t i = 0; i < keys.size(); ++i) Put(keys[i], values[i], &fired);
    Remember(request_id, "");
  }
  Run(std::move(fired));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> MemoryStore::Add(absl::string_view key, int64_t delta, absl::string_view request_id) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  std::vector<Fired> fired;
  int64_t sum = 0;
  {
    absl::MutexLock lock(&mutex_);
    TANDEM_ASSIGN_OR_RETURN(const std::string* const known, Known(request_id));
    if (known != nullptr) return NumberAnswered(*known);
    auto it = values_.find(key);
    absl::optional<absl::string_view> held;
    if (it != values_.end()) held = it->second;
    TANDEM_ASSIGN_OR_RETURN(sum, StoreSum(key, held, delta));
    std::string value = absl::StrCat(sum);
    TANDEM_RETURN_IF_ERROR(Admit(key, value.size()));
    TANDEM_RETURN_IF_ERROR(Journal(kStoreSetAndAnswer, {key, value}, request_id));
    Remember(request_id, value);
    Put(key, std::move(value), &fired);
  }
  Run(std::move(fired));
  return sum;
}

absl::StatusOr<int64_t> MemoryStore::Append(absl::string_view key, absl::string_view value,
                                            absl::string_view request_id) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, value));
  std::vector<Fired> fired;
  int64_t length = 0;
  {
    absl::MutexLock lock(&mutex_);
    TANDEM_ASSIGN_OR_RETURN(const std::string* const known, Known(request_id));
    if (known != nullptr) return NumberAnswered(*known);
    auto it = values_.find(key);
    const size_t before = it == values_.end() ? 0 : it->second.size();
    length = static_cast<int64_t>(before + value.size());
    TANDEM_RETURN_IF_ERROR(ValidateStoreSize(key, before + value.size()));
    TANDEM_RETURN_IF_ERROR(Admit(key, before + value.size()));
    TANDEM_RETURN_IF_ERROR(Journal(kStoreAppend, {key, value}, request_id));
    if (it == values_.end()) {
      Put(key, std::string(value), &fired);
    } else {
      it->second.append(value.data(), value.size());
      bytes_ += value.size();
    }
    Remember(request_id, absl::StrCat(length));
  }
  Run(std::move(fired));
  return length;
}

absl::StatusOr<std::string> MemoryStore::CompareSet(absl::string_view key, absl::string_view expected,
                                                    absl::string_view desired, absl::string_view request_id) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, desired));
  std::vector<Fired> fired;
  {
    absl::MutexLock lock(&mutex_);
    TANDEM_ASSIGN_OR_RETURN(const std::string* const known, Known(request_id));
    if (known != nullptr) return *known;
    auto it = values_.find(key);
    if (it == values_.end() ? !expected.empty() : it->second != expected) {
      // Not written to the journal: after a restart a repeat may find another value, and that is an answer,
      // too, since nobody has got the first one.
      const std::string found = it == values_.end() ? std::string() : it->second;
      Remember(request_id, found);
      return found;
    }
    TANDEM_RETURN_IF_ERROR(Admit(key, desired.size()));
    TANDEM_RETURN_IF_ERROR(Journal(kStoreSetAndAnswer, {key, desired}, request_id));
    Put(key, std::string(desired), &fired);
    Remember(request_id, desired);
  }
  Run(std::move(fired));
  return std::string(desired);
}

absl::StatusOr<bool> MemoryStore::Delete(absl::string_view key, absl::string_view request_id) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(const std::string* const known, Known(request_id));
  if (known != nullptr) return *known == kStoreDeleted;
  auto it = values_.find(key);
  if (it == values_.end()) {
    Remember(request_id, "0");
    return false;
  }
  TANDEM_RETURN_IF_ERROR(Journal(kStoreDelete, {key}, request_id));
  bytes_ -= it->first.size() + it->second.size();
  values_.erase(it);
  Remember(request_id, kStoreDeleted);
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

absl::StatusOr<int64_t> MemoryStore::NumKeys() {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(values_.size());
}

absl::StatusOr<bool> MemoryStore::Check(absl::Span<const std::string> keys) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  absl::MutexLock lock(&mutex_);
  return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return values_.find(key) != values_.end();
  });
}

uint64_t MemoryStore::StartWait(std::vector<std::string> keys, size_t wanted, Ready ready) {
  TANDEM_CHECK(!keys.empty() && wanted <= keys.size());
  std::vector<std::string> values;
  {
    absl::MutexLock lock(&mutex_);
    Waiter waiter{std::move(keys), wanted, 0, nullptr};
    if (Advance(&waiter)) {
      const uint64_t id = next_id_++;
      waiter.ready = std::move(ready);
      by_key_[waiter.keys[waiter.next]].push_back(id);
      waiters_.emplace(id, std::move(waiter));
      return id;
    }
    values = Values(waiter.keys, wanted);
  }
  ready(std::move(values));
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

absl::optional<std::vector<std::string>> MemoryStore::TryValues(absl::Span<const std::string> keys,
                                                                size_t wanted,
                                                                std::vector<std::string>* missing) const {
  absl::MutexLock lock(&mutex_);
  for (const std::string& key : keys) {
    if (values_.find(key) == values_.end()) missing->push_back(key);
  }
  if (!missing->empty()) return absl::nullopt;
  return Values(keys, wanted);
}

absl::StatusOr<std::vector<std::string>> MemoryStore::BlockingWait(absl::Span<const std::string> keys,
                                                                   size_t wanted, absl::Duration timeout) {
  struct State {
    std::vector<std::string> values;
    TimedNotification done;
  };
  auto state = std::make_shared<State>();  // `ready` may still be running after a time-out
  const uint64_t id = StartWait({keys.begin(), keys.end()}, wanted, [state](std::vector<std::string> values) {
    state->values = std::move(values);
    state->done.Notify();
  });
  if (!state->done.WaitFor(timeout)) {
    CancelWait(id);
    if (!state->done.HasBeenNotified()) {
      std::vector<std::string> missing;
      // A value that arrived at the last moment counts.
      if (auto values = TryValues(keys, wanted, &missing)) return *std::move(values);
      return KeysMissing(missing, timeout);
    }
  }
  return std::move(state->values);
}

absl::StatusOr<std::string> MemoryStore::Get(absl::string_view key, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> values, BlockingWait({std::string(key)}, 1, timeout));
  return std::move(values[0]);
}

absl::Status MemoryStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  if (keys.empty()) return absl::OkStatus();
  return BlockingWait(keys, 0, timeout).status();
}

absl::StatusOr<std::vector<std::string>> MemoryStore::MultiGet(absl::Span<const std::string> keys,
                                                               absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  if (keys.empty()) return std::vector<std::string>();
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> values, BlockingWait(keys, keys.size(), timeout));
  size_t bytes = 0;
  for (const std::string& value : values) bytes += value.size();
  TANDEM_RETURN_IF_ERROR(ValidateStoreBatch(keys.size(), bytes));
  return values;
}

void MemoryStore::Clear() {
  absl::MutexLock lock(&mutex_);
  values_.clear();
  items_ = bytes_ = 0;
  for (auto it = queues_.begin(); it != queues_.end();) {
    it->second.items.clear();
    if (it->second.waiting.empty()) {
      queues_.erase(it++);
    } else {
      ++it;
    }
  }
}

absl::Status MemoryStore::Push(absl::string_view queue, absl::string_view value,
                               absl::string_view request_id) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(queue, value));
  std::function<void(std::string)> ready;
  {
    absl::MutexLock lock(&mutex_);
    TANDEM_ASSIGN_OR_RETURN(const std::string* const known, Known(request_id));
    if (known != nullptr) return absl::OkStatus();
    if (const auto into = queues_.find(queue); into != queues_.end()) {
      for (uint64_t id : into->second.waiting) {
        auto it = poppers_.find(id);
        if (it->second.popper.present && !it->second.popper.present()) continue;
        const std::string& pop_id = it->second.popper.request_id;
        TANDEM_RETURN_IF_ERROR(Journal(kStoreHandOver, {pop_id, value}, request_id));
        Remember(pop_id, value);
        ready = std::move(it->second.popper.ready);
        DropPopper(it);
        break;
      }
    }
    if (ready == nullptr) {
      const size_t bytes = queue.size() + value.size();
      TANDEM_RETURN_IF_ERROR(ValidateStoreTotal(queue, values_.size() + items_ + 1, bytes_ + bytes, limits_));
      TANDEM_RETURN_IF_ERROR(Journal(kStorePush, {queue, value}, request_id));
      queues_[queue].items.emplace_back(value);
      ++items_;
      bytes_ += bytes;
    }
    Remember(request_id, "");
  }
  if (ready != nullptr) ready(std::string(value));
  return absl::OkStatus();
}

void MemoryStore::DropPopper(absl::flat_hash_map<uint64_t, WaitingPopper>::iterator popper) {
  auto queue = queues_.find(popper->second.queue);
  queue->second.waiting.erase(popper->second.place);
  if (queue->second.waiting.empty() && queue->second.items.empty()) queues_.erase(queue);
  poppers_.erase(popper);
}

absl::StatusOr<absl::optional<std::string>> MemoryStore::TakeItem(absl::string_view queue,
                                                                  absl::string_view request_id) {
  auto it = queues_.find(queue);
  if (it == queues_.end() || it->second.items.empty()) return absl::optional<std::string>();
  TANDEM_RETURN_IF_ERROR(Journal(kStorePop, {queue}, request_id));
  absl::optional<std::string> item = std::move(it->second.items.front());
  it->second.items.pop_front();
  --items_;
  bytes_ -= queue.size() + item->size();
  if (it->second.items.empty() && it->second.waiting.empty()) queues_.erase(it);
  Remember(request_id, *item);
  return item;
}

absl::StatusOr<absl::optional<std::string>> MemoryStore::TryPop(absl::string_view queue,
                                                                absl::string_view request_id) {
  absl::MutexLock lock(&mutex_);
  return TakeItem(queue, request_id);
}

absl::optional<std::string> MemoryStore::Front(absl::string_view queue) const {
  absl::MutexLock lock(&mutex_);
  auto it = queues_.find(queue);
  if (it == queues_.end() || it->second.items.empty()) return absl::nullopt;
  return it->second.items.front();
}

absl::StatusOr<absl::optional<std::string>> MemoryStore::StartPop(absl::string_view queue, Popper popper,
                                                                  uint64_t* id) {
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(absl::optional<std::string> item, TakeItem(queue, popper.request_id));
  if (item) return item;
  *id = next_id_++;
  std::list<uint64_t>& waiting = queues_[queue].waiting;
  waiting.push_back(*id);
  poppers_.emplace(*id, WaitingPopper{std::string(queue), std::prev(waiting.end()), std::move(popper)});
  return item;
}

bool MemoryStore::CancelPop(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  auto it = poppers_.find(id);
  if (it == poppers_.end()) return false;
  DropPopper(it);
  return true;
}

absl::StatusOr<std::string> MemoryStore::Pop(absl::string_view queue, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  struct State {
    std::string item;
    TimedNotification done;
  };
  auto state = std::make_shared<State>();
  uint64_t id = 0;
  Popper popper{nullptr,
                [state](std::string item) {
                  state->item = std::move(item);
                  state->done.Notify();
                },
                {}};
  TANDEM_ASSIGN_OR_RETURN(absl::optional<std::string> item, StartPop(queue, std::move(popper), &id));
  if (item) return *std::move(item);
  if (!state->done.WaitFor(timeout) && CancelPop(id)) {
    return QueueEmpty(queue, timeout);
  }
  state->done.Wait();  // an item was chosen at the last moment: it is about to arrive
  return std::move(state->item);
}

absl::StatusOr<int64_t> MemoryStore::Length(absl::string_view queue) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  absl::MutexLock lock(&mutex_);
  auto it = queues_.find(queue);
  return it == queues_.end() ? int64_t{0} : static_cast<int64_t>(it->second.items.size());
}

}  // namespace tandem::cluster
