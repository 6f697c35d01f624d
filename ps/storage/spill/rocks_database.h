#ifndef TANDEM_PS_STORAGE_SPILL_ROCKS_DATABASE_H_
#define TANDEM_PS_STORAGE_SPILL_ROCKS_DATABASE_H_

// The database behind SpillStore. In programs built without RocksDB, Open says so (no_rocks_database.cc).

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ps/storage/spill/cold_tier.h"

namespace tandem::ps {

// Thread-safe. Outlives its tiers.
class RocksDatabase {
 public:
  // Makes an empty database in `path`, which does not exist; `directory` is for messages.
  static absl::StatusOr<std::unique_ptr<RocksDatabase>> Open(const std::string& path,
                                                             const std::string& directory,
                                                             size_t cache_bytes);
  virtual ~RocksDatabase() = default;
  virtual std::unique_ptr<ColdTier> NewTier(absl::string_view table) = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_SPILL_ROCKS_DATABASE_H_
