// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_SPILL_ROCKS_DATABASE_H_
#define TANDEM_PS_STORAGE_SPILL_ROCKS_DATABASE_H_

// RocksDatabase is the database behind SpillStore. It hides RocksDB's headers. In programs built without
// RocksDB, Open returns FailedPrecondition (no_rocks_database.cc).

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ps/storage/spill/cold_tier.h"

namespace tandem::ps {

// Thread-safe. A database must outlive its tiers.
class RocksDatabase {
 public:
  // Creates an empty database in `path`, which must not exist. `directory` is used in messages. `cache_bytes`
  // bounds the memory for cached blocks, filters and rows that are not written yet.
  static absl::StatusOr<std::unique_ptr<RocksDatabase>> Open(const std::string& path,
                                                             const std::string& directory,
                                                             size_t cache_bytes);
  virtual ~RocksDatabase() = default;
  // Returns an empty tier; `table` is used in messages.
  virtual std::unique_ptr<ColdTier> NewTier(absl::string_view table) = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_SPILL_ROCKS_DATABASE_H_
