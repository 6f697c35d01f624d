// SPDX-License-Identifier: Apache-2.0
// This file replaces rocks_database.cc in builds without RocksDB.

#include "absl/status/status.h"
#include "ps/storage/spill/rocks_database.h"

namespace tandem::ps {

absl::StatusOr<std::unique_ptr<RocksDatabase>> RocksDatabase::Open(const std::string&, const std::string&,
                                                                   size_t) {
  return absl::FailedPreconditionError(
      "this program was built without RocksDB, which spilled rows need: install librocksdb-dev and build "
      "again, or leave `spill` out");
}

}  // namespace tandem::ps
