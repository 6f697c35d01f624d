// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_SPILL_SPILL_STORE_H_
#define TANDEM_PS_STORAGE_SPILL_SPILL_STORE_H_

// SpillStore keeps cold rows in RocksDB, in a directory that only this server uses.
//
// One database holds the rows of all tables of the server, so that they share one block cache and one set of
// write buffers. A key is [tier: u32 | bucket: u32 | id: u64], big-endian, so that a bucket is a range of
// keys. The write-ahead log is off, because the rows need not outlive the process.

#include <cstddef>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "ps/storage/spill/cold_tier.h"
#include "ps/storage/spill/spill_directory.h"

namespace tandem::ps {

class RocksDatabase;

struct SpillOptions {
  std::string directory;
  // Memory for all tables: cached blocks, filters, and rows that are not written yet.
  size_t cache_bytes = size_t{64} << 20;
};

// Thread-safe. A store must outlive its tiers.
class SpillStore : public ColdStore {
 public:
  // Does not touch the disk; Claim or the first NewTier does.
  explicit SpillStore(SpillOptions options);
  // Removes the rows, and the directory if it is then empty.
  ~SpillStore() override;

  // Claims the directory. Call it when the server starts, to learn early that the directory is in use or
  // cannot be written, and to remove at once what a killed server left. Idempotent. Errors are those of
  // SpillDirectory::Claim.
  absl::Status Claim();

  // Claims the directory and opens the database if that has not happened, and returns an empty tier.
  // FailedPrecondition: this program was built without RocksDB; the message says what to install.
  absl::StatusOr<std::unique_ptr<ColdTier>> NewTier(absl::string_view table) override;

 private:
  absl::Status ClaimLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SpillOptions options_;
  absl::Mutex mutex_;
  std::unique_ptr<SpillDirectory> directory_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<RocksDatabase> database_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_SPILL_SPILL_STORE_H_
