#ifndef TANDEM_PS_STORAGE_SPILL_SPILL_STORE_H_
#define TANDEM_PS_STORAGE_SPILL_SPILL_STORE_H_

// Cold rows in RocksDB, in a directory of the server's own.
//
// One database holds the rows of all the server's tables, so that one block cache and one set of write
// buffers is all the memory they take. A key is [tier: u32 | bucket: u32 | id: u64], big-endian: a bucket is
// a range. The log is off: nothing here is meant to outlive the process.

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
  size_t cache_bytes = size_t{64} << 20;  // for all tables: blocks read, filters, and rows not yet written
};

// Thread-safe. Outlives its tiers.
class SpillStore : public ColdStore {
 public:
  // Nothing happens before Claim or the first NewTier.
  explicit SpillStore(SpillOptions options);
  ~SpillStore() override;  // removes the rows, and the directory if it is empty then

  // Takes the directory now, so that one that is in use or cannot be written is known when the server starts,
  // and what a killed server left there goes at once. Errors as SpillDirectory::Claim's; idempotent.
  absl::Status Claim();

  // FailedPrecondition when this program was built without RocksDB, with what to install.
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
