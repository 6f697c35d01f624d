// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/spill/spill_store.h"

#include <utility>

#include "base/status.h"
#include "ps/storage/spill/rocks_database.h"

namespace tandem::ps {

SpillStore::SpillStore(SpillOptions options) : options_(std::move(options)) {}

SpillStore::~SpillStore() {
  absl::MutexLock lock(&mutex_);
  database_.reset();  // before directory_ removes its files
}

absl::Status SpillStore::Claim() {
  absl::MutexLock lock(&mutex_);
  return ClaimLocked();
}

absl::Status SpillStore::ClaimLocked() {
  if (directory_ != nullptr) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(directory_, SpillDirectory::Claim(options_.directory));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ColdTier>> SpillStore::NewTier(absl::string_view table) {
  absl::MutexLock lock(&mutex_);
  TANDEM_RETURN_IF_ERROR(ClaimLocked());
  if (database_ == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(
        database_, RocksDatabase::Open(directory_->rows_path(), directory_->path(), options_.cache_bytes));
  }
  return database_->NewTier(table);
}

}  // namespace tandem::ps
