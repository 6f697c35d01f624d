// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/file_store.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "cluster/store/limits.h"
#include "cluster/store/record.h"

namespace tandem::cluster {
namespace {

// The kinds of records beyond those of record.h; they have no fields.
constexpr char kJoin = 'J';
constexpr char kLeave = 'L';

}  // namespace

absl::StatusOr<std::unique_ptr<FileStore>> FileStore::Open(const std::string& path,
                                                           const FileStoreOptions& options) {
  std::unique_ptr<FileStore> store(new FileStore(options));
  TANDEM_ASSIGN_OR_RETURN(store->log_, FileLog::Open(path, MonotonicNow() + options.lock_timeout));
  FileLog& log = *store->log_;
  const absl::Cleanup unlock = [&log] { log.Unlock(); };
  TANDEM_RETURN_IF_ERROR(
      log.Read(/*exclusive=*/true, [&](absl::string_view record) { return store->Apply(record); }));
  if (log.Alone() && options.clear_abandoned && store->joined_ > store->left_) {
    LogWarning(absl::StrCat("store file '", path, "' was left behind by ", store->joined_ - store->left_,
                            " killed process(es): starting anew"));
    TANDEM_RETURN_IF_ERROR(log.Clear());
    store->state_.Clear();
    store->joined_ = store->left_ = 0;
  }
  TANDEM_RETURN_IF_ERROR(store->Write(kJoin, {}));
  return store;
}

FileStore::~FileStore() {
  // If Open failed, or the file is gone, there is nothing to leave.
  if (joined_ == 0) return;
  const absl::Status left = WithFile(true, MonotonicNow() + options_.lock_timeout, [this] {
    if (options_.users > 0 && joined_ >= options_.users && log_->Alone()) {
      log_->Remove();
      return absl::OkStatus();
    }
    return Write(kLeave, {});
  });
  if (!left.ok()) LogWarning(absl::StrCat("leaving a store: ", left.message()));
}

std::string FileStore::address() const { return absl::StrCat("file://", log_->path()); }

absl::Status FileStore::WithFile(bool exclusive, absl::Time deadline,
                                 const std::function<absl::Status()>& body) {
  auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !busy_; };
  {
    absl::ReleasableMutexLock lock(&mutex_);
    const bool mine = AwaitUntil(&mutex_, absl::Condition(&free), deadline);
    if (mine) busy_ = true;
    lock.Release();
    if (!mine) {
      return absl::UnavailableError(
          absl::StrCat("store file '", log_->path(), "' is kept by another thread until the time is up"));
    }
  }
  const absl::Cleanup release = [this] {
    absl::MutexLock lock(&mutex_);
    busy_ = false;
  };
  if (!exclusive && !log_->MayHaveMore()) return body();
  TANDEM_RETURN_IF_ERROR(log_->Lock(exclusive, deadline));
  const absl::Cleanup unlock = [this] { log_->Unlock(); };
  TANDEM_RETURN_IF_ERROR(log_->Read(exclusive, [this](absl::string_view record) { return Apply(record); }));
  return body();
}

absl::Status FileStore::Change(const std::function<absl::Status()>& body) {
  return WithFile(/*exclusive=*/true, MonotonicNow() + options_.lock_timeout, body);
}

absl::Status FileStore::Read() {
  return WithFile(/*exclusive=*/false, MonotonicNow() + options_.lock_timeout,
                  [] { return absl::OkStatus(); });
}

absl::StatusOr<bool> FileStore::Poll(bool exclusive, absl::Duration timeout,
                                     const std::function<absl::StatusOr<bool>()>& check) {
  const absl::Time deadline = MonotonicNow() + timeout;
  // A call with a time-out of zero still waits for the file's lock.
  const absl::Time lock_deadline = std::max(deadline, MonotonicNow() + absl::Seconds(1));
  absl::Duration pause = absl::Microseconds(200);
  while (true) {
    bool found = false;
    TANDEM_RETURN_IF_ERROR(WithFile(exclusive, lock_deadline, [&]() -> absl::Status {
      TANDEM_ASSIGN_OR_RETURN(found, check());
      return absl::OkStatus();
    }));
    if (found) return true;
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) return false;
    absl::SleepFor(std::min(pause, left));
    pause = std::min(pause * 2, absl::Milliseconds(20));
  }
}

absl::Status FileStore::Write(char kind, absl::Span<const absl::string_view> fields) {
  const std::string record = MakeStoreRecord(kind, fields);
  TANDEM_RETURN_IF_ERROR(log_->Append(record));
  return Apply(record);
}

absl::Status FileStore::Apply(absl::string_view record) {
  const absl::StatusOr<ParsedStoreRecord> parsed = ParseStoreRecord(record);
  if (parsed.ok()) {
    TANDEM_ASSIGN_OR_RETURN(const bool known, ApplyStoreRecord(*parsed, /*request_id=*/{}, &state_));
    if (known) return absl::OkStatus();
    if (parsed->fields.empty() && (parsed->kind == kJoin || parsed->kind == kLeave)) {
      ++(parsed->kind == kJoin ? joined_ : left_);
      return absl::OkStatus();
    }
  }
  return absl::DataLossError(absl::StrCat("store file '", log_->path(),
                                          "' holds a record that this version does not know; all ranks must "
                                          "run the same version"));
}

absl::Status FileStore::Set(absl::string_view key, absl::string_view value) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, value));
  return Change([&] { return Write(kStoreSet, {key, value}); });
}

absl::Status FileStore::MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreEntries(keys, values));
  std::vector<absl::string_view> fields;
  for (size_t i = 0; i < keys.size(); ++i) fields.insert(fields.end(), {keys[i], values[i]});
  return Change([&] { return Write(kStoreSet, fields); });
}

absl::StatusOr<int64_t> FileStore::Add(absl::string_view key, int64_t delta) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  int64_t sum = 0;
  TANDEM_RETURN_IF_ERROR(Change([&]() -> absl::Status {
    const absl::optional<std::string> held = state_.TryGet(key);
    TANDEM_ASSIGN_OR_RETURN(sum, StoreSum(key, held, delta));
    return Write(kStoreSet, {key, absl::StrCat(sum)});
  }));
  return sum;
}

absl::StatusOr<int64_t> FileStore::Append(absl::string_view key, absl::string_view value) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, value));
  size_t length = 0;
  TANDEM_RETURN_IF_ERROR(Change([&] {
    length = state_.TryGet(key).value_or("").size() + value.size();
    TANDEM_RETURN_IF_ERROR(ValidateStoreSize(key, length));
    return Write(kStoreAppend, {key, value});
  }));
  return static_cast<int64_t>(length);
}

absl::StatusOr<std::string> FileStore::CompareSet(absl::string_view key, absl::string_view expected,
                                                  absl::string_view desired) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, desired));
  std::string now;
  TANDEM_RETURN_IF_ERROR(Change([&]() -> absl::Status {
    now = state_.TryGet(key).value_or("");  // "" also matches an absent key
    if (now != expected) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(Write(kStoreSet, {key, desired}));
    now = std::string(desired);
    return absl::OkStatus();
  }));
  return now;
}

absl::StatusOr<bool> FileStore::Delete(absl::string_view key) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  bool existed = false;
  TANDEM_RETURN_IF_ERROR(Change([&] {
    existed = state_.TryGet(key).has_value();
    return existed ? Write(kStoreDelete, {key}) : absl::OkStatus();
  }));
  return existed;
}

absl::StatusOr<std::vector<std::string>> FileStore::BlockingWait(absl::Span<const std::string> keys,
                                                                 size_t wanted, absl::Duration timeout) {
  std::vector<std::string> missing;
  absl::optional<std::vector<std::string>> values;
  TANDEM_ASSIGN_OR_RETURN(const bool found, Poll(/*exclusive=*/false, timeout, [&]() -> absl::StatusOr<bool> {
                            missing.clear();
                            values = state_.TryValues(keys, wanted, &missing);
                            return values.has_value();
                          }));
  if (!found) return Annotate(KeysMissing(missing, timeout), address());
  return *std::move(values);
}

absl::StatusOr<std::string> FileStore::Get(absl::string_view key, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> values, BlockingWait({std::string(key)}, 1, timeout));
  return std::move(values[0]);
}

absl::Status FileStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  return BlockingWait(keys, 0, timeout).status();
}

absl::StatusOr<std::vector<std::string>> FileStore::MultiGet(absl::Span<const std::string> keys,
                                                             absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> values, BlockingWait(keys, keys.size(), timeout));
  size_t bytes = 0;
  for (const std::string& value : values) bytes += value.size();
  TANDEM_RETURN_IF_ERROR(ValidateStoreBatch(keys.size(), bytes));
  return values;
}

absl::StatusOr<bool> FileStore::Check(absl::Span<const std::string> keys) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  TANDEM_RETURN_IF_ERROR(Read());
  return state_.Check(keys);
}

absl::StatusOr<std::vector<std::string>> FileStore::List(absl::string_view prefix) {
  TANDEM_RETURN_IF_ERROR(Read());
  return state_.List(prefix);
}

absl::StatusOr<int64_t> FileStore::NumKeys() {
  TANDEM_RETURN_IF_ERROR(Read());
  return state_.NumKeys();
}

absl::Status FileStore::Push(absl::string_view queue, absl::string_view value) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(queue, value));
  return Change([&] { return Write(kStorePush, {queue, value}); });
}

absl::StatusOr<std::string> FileStore::Pop(absl::string_view queue, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  const absl::Time deadline = MonotonicNow() + timeout;
  std::string item;
  while (true) {
    // Take the exclusive lock only if there is an item.
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::ZeroDuration());
    TANDEM_ASSIGN_OR_RETURN(const bool filled, Poll(/*exclusive=*/false, left, [&]() -> absl::StatusOr<bool> {
                              TANDEM_ASSIGN_OR_RETURN(const int64_t length, state_.Length(queue));
                              return length > 0;
                            }));
    if (!filled) return Annotate(QueueEmpty(queue, timeout), address());
    bool popped = false;
    TANDEM_RETURN_IF_ERROR(Change([&]() -> absl::Status {
      absl::optional<std::string> front = state_.Front(queue);
      if (!front) return absl::OkStatus();  // another process was quicker
      TANDEM_RETURN_IF_ERROR(Write(kStorePop, {queue}));
      item = *std::move(front);
      popped = true;
      return absl::OkStatus();
    }));
    if (popped) return item;
  }
}

absl::StatusOr<int64_t> FileStore::Length(absl::string_view queue) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  TANDEM_RETURN_IF_ERROR(Read());
  return state_.Length(queue);
}

}  // namespace tandem::cluster
