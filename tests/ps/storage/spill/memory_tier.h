// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_STORAGE_SPILL_MEMORY_TIER_H_
#define TANDEM_TESTS_PS_STORAGE_SPILL_MEMORY_TIER_H_

// MemoryTier is a cold tier for tests. It keeps rows in a map and returns errors on request.

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "ps/storage/spill/cold_tier.h"

namespace tandem::ps::testing {

// The disk of a MemoryTier, which the test controls and observes. Thread-safe. Must outlive the tiers.
struct MemoryDisk {
  absl::Mutex mutex;
  absl::Status put_error ABSL_GUARDED_BY(mutex);  // returned by every Put, which then keeps half of its rows
  absl::Status get_error ABSL_GUARDED_BY(mutex);  // returned by every Get and VisitBucket
  std::function<void()> before_put ABSL_GUARDED_BY(mutex);
  std::function<void()> before_get ABSL_GUARDED_BY(mutex);
  uint64_t asked ABSL_GUARDED_BY(mutex) = 0;  // keys of all calls of Get
  uint64_t gets ABSL_GUARDED_BY(mutex) = 0;   // calls of Get

  void FailPuts(absl::Status error) {
    absl::MutexLock lock(&mutex);
    put_error = std::move(error);
  }
  void FailGets(absl::Status error) {
    absl::MutexLock lock(&mutex);
    get_error = std::move(error);
  }
};

class MemoryTier : public ColdTier {
 public:
  explicit MemoryTier(MemoryDisk* disk) : disk_(disk) {}

  absl::Status Put(uint32_t bucket, absl::Span<const uint64_t> ids, size_t row_bytes,
                   const char* rows) override {
    Run(&MemoryDisk::before_put);
    absl::MutexLock lock(&disk_->mutex);
    const size_t kept = disk_->put_error.ok() ? ids.size() : ids.size() / 2;
    for (size_t i = 0; i < kept; ++i) {
      rows_[{bucket, ids[i]}].assign(rows + i * row_bytes, row_bytes);
    }
    return disk_->put_error;
  }
  absl::Status Get(absl::Span<const Key> keys, size_t row_bytes, char* rows, uint8_t* found) override {
    Run(&MemoryDisk::before_get);
    absl::MutexLock lock(&disk_->mutex);
    if (!disk_->get_error.ok()) return disk_->get_error;
    ++disk_->gets;
    disk_->asked += keys.size();
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto row = rows_.find({keys[i].bucket, keys[i].id});
      found[i] = row != rows_.end() ? 1 : 0;
      if (found[i] != 0) std::memcpy(rows + i * row_bytes, row->second.data(), row_bytes);
    }
    return absl::OkStatus();
  }
  absl::Status VisitBucket(uint32_t bucket, uint64_t first_id, size_t, Visitor visit) override {
    std::map<std::pair<uint32_t, uint64_t>, std::string> rows;  // so that `visit` may use other tiers
    {
      absl::MutexLock lock(&disk_->mutex);
      if (!disk_->get_error.ok()) return disk_->get_error;
      rows.insert(rows_.lower_bound({bucket, first_id}), rows_.lower_bound({bucket + 1, 0}));
    }
    for (const auto& [key, row] : rows) {
      if (!visit(key.second, row.data())) break;
    }
    return absl::OkStatus();
  }
  void Clear() override {
    absl::MutexLock lock(&disk_->mutex);
    rows_.clear();
  }
  uint64_t bytes() const override {
    absl::MutexLock lock(&disk_->mutex);
    uint64_t bytes = 0;
    for (const auto& [key, row] : rows_) bytes += sizeof(key) + row.size();
    return bytes;
  }
  // Removes a row, as a faulty disk would.
  void Lose(uint32_t bucket, uint64_t id) {
    absl::MutexLock lock(&disk_->mutex);
    rows_.erase({bucket, id});
  }

 private:
  void Run(std::function<void()> MemoryDisk::*hook) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::function<void()> run;
    {
      absl::MutexLock lock(&disk_->mutex);
      run = disk_->*hook;
    }
    if (run) run();
  }

  MemoryDisk* const disk_;
  std::map<std::pair<uint32_t, uint64_t>, std::string> rows_;  // guarded by the disk's mutex
};

// A store of tiers on one disk, which the test owns.
class MemoryStore : public ColdStore {
 public:
  explicit MemoryStore(MemoryDisk* disk) : disk_(disk) {}
  absl::StatusOr<std::unique_ptr<ColdTier>> NewTier(absl::string_view) override {
    return std::make_unique<MemoryTier>(disk_);
  }

 private:
  MemoryDisk* const disk_;
};

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_STORAGE_SPILL_MEMORY_TIER_H_
