// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_MEMORY_BOARD_H_
#define TANDEM_TESTS_TESTING_MEMORY_BOARD_H_

// A board of placement documents in memory, with the faults of a store: it cannot be reached, its answer is
// lost, or a change arrives later than its caller waits. Each process of a test has a MemoryBoard of its own;
// they share the documents.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/timed_wait.h"
#include "ps/failover/board.h"

namespace tandem::testing {

// Thread-safe.
class MemoryDocuments {
 public:
  v1::ShardPlacement Get(uint32_t shard) {
    absl::MutexLock lock(&mutex_);
    return documents_[shard];
  }
  // Returns whether the document was of the expected version, and stores what there is now in `current`.
  bool Replace(uint32_t shard, uint64_t expected_version, const v1::ShardPlacement& desired,
               v1::ShardPlacement* current) {
    absl::MutexLock lock(&mutex_);
    v1::ShardPlacement& document = documents_[shard];
    const bool matches = document.version() == expected_version;
    if (matches) document = desired;
    *current = document;
    return matches;
  }
  // Blocks until the version is another one, `done` becomes true, or the time-out has passed.
  void AwaitOther(uint32_t shard, uint64_t version, const bool* done, absl::Duration timeout) {
    const auto changed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return *done || documents_[shard].version() != version;
    };
    absl::MutexLock lock(&mutex_);
    documents_.try_emplace(shard);
    (void)AwaitFor(&mutex_, absl::Condition(&changed), timeout);
  }
  void Set(bool* flag) {
    absl::MutexLock lock(&mutex_);
    *flag = true;
  }
  bool Is(const bool* flag) {
    absl::MutexLock lock(&mutex_);
    return *flag;
  }

 private:
  absl::Mutex mutex_;
  std::map<uint32_t, v1::ShardPlacement> documents_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe. No call takes time, except AwaitChange.
class MemoryBoard final : public ps::Board {
 public:
  explicit MemoryBoard(std::shared_ptr<MemoryDocuments> documents = std::make_shared<MemoryDocuments>())
      : documents_(std::move(documents)) {}

  // Decides what happens to the next calls of CompareAndSet.
  enum class Fault {
    kNone,
    kNotSent,     // it is never applied; the outcome is unknown
    kAnswerLost,  // it is applied; the outcome is unknown
    kLate,        // the outcome is unknown, and DeliverLate applies it
  };
  void SetFault(Fault fault) {
    absl::MutexLock lock(&mutex_);
    fault_ = fault;
  }
  // Applies the changes that were late, in their order, each if its version still fits.
  void DeliverLate() {
    std::vector<Change> late;
    {
      absl::MutexLock lock(&mutex_);
      late.swap(late_);
    }
    v1::ShardPlacement ignored;
    for (const Change& change : late) {
      (void)documents_->Replace(change.shard, change.expected_version, change.desired, &ignored);
    }
  }
  // While it is unreachable, Read returns Unavailable and CompareAndSet's outcome is unknown, without change.
  void SetReachable(bool reachable) {
    absl::MutexLock lock(&mutex_);
    reachable_ = reachable;
  }

  absl::StatusOr<v1::ShardPlacement> Read(uint32_t shard, absl::Duration /*timeout*/) override {
    if (documents_->Is(&cancelled_)) return absl::CancelledError("the board is closed");
    {
      absl::MutexLock lock(&mutex_);
      if (!reachable_) return absl::UnavailableError("the board cannot be reached");
    }
    return documents_->Get(shard);
  }
  absl::StatusOr<ps::CompareAndSetResult> CompareAndSet(uint32_t shard, uint64_t expected_version,
                                                        const v1::ShardPlacement& desired,
                                                        absl::Duration /*timeout*/) override {
    using Outcome = ps::CompareAndSetResult::Outcome;
    if (documents_->Is(&cancelled_)) return absl::CancelledError("the board is closed");
    if (desired.version() <= expected_version) {
      return absl::InvalidArgumentError(
          absl::StrCat("version ", desired.version(), " cannot follow version ", expected_version));
    }
    ps::CompareAndSetResult result;
    Fault fault;
    {
      absl::MutexLock lock(&mutex_);
      fault = reachable_ ? fault_ : Fault::kNotSent;
      if (fault == Fault::kLate) late_.push_back({shard, expected_version, desired});
    }
    if (fault == Fault::kNone || fault == Fault::kAnswerLost) {
      const bool done = documents_->Replace(shard, expected_version, desired, &result.current);
      result.outcome = done ? Outcome::kDone : Outcome::kChanged;
    }
    if (fault != Fault::kNone) {
      result = {.error = absl::UnavailableError("the board has not answered")};
    } else if (result.outcome == Outcome::kDone) {
      result.current.Clear();
    }
    return result;
  }
  absl::StatusOr<v1::ShardPlacement> AwaitChange(uint32_t shard, uint64_t known_version,
                                                 absl::Duration timeout) override {
    documents_->AwaitOther(shard, known_version, &cancelled_, timeout);
    auto placement = Read(shard, timeout);
    if (placement.ok() && placement->version() == known_version) {
      return absl::DeadlineExceededError("the placement has not changed");
    }
    return placement;
  }
  // Sets what the store knows of the process at an address. At first it knows no process.
  void SetAlive(const std::string& address, bool alive) {
    absl::MutexLock lock(&mutex_);
    alive_[address] = alive;
  }
  absl::StatusOr<bool> IsAlive(const std::string& address, absl::Duration /*timeout*/) override {
    if (documents_->Is(&cancelled_)) return absl::CancelledError("the board is closed");
    absl::MutexLock lock(&mutex_);
    if (!reachable_) return absl::UnavailableError("the board cannot be reached");
    const auto found = alive_.find(address);
    return found != alive_.end() && found->second;
  }
  void Cancel() override { documents_->Set(&cancelled_); }

 private:
  struct Change {
    uint32_t shard;
    uint64_t expected_version;
    v1::ShardPlacement desired;
  };
  const std::shared_ptr<MemoryDocuments> documents_;
  bool cancelled_ = false;  // guarded by the mutex of documents_
  absl::Mutex mutex_;
  Fault fault_ ABSL_GUARDED_BY(mutex_) = Fault::kNone;
  bool reachable_ ABSL_GUARDED_BY(mutex_) = true;
  std::map<std::string, bool> alive_ ABSL_GUARDED_BY(mutex_);
  std::vector<Change> late_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_MEMORY_BOARD_H_
