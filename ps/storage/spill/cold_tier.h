// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_SPILL_COLD_TIER_H_
#define TANDEM_PS_STORAGE_SPILL_COLD_TIER_H_

// A ColdTier stores the rows of one table that exceed its memory budget. A ColdStore creates the tiers of a
// server's tables.
//
// A tier is scratch space behind memory. It does not outlive its server: checkpoints are taken from tables
// and contain the rows of both memory and tier. A tier stores rows as bytes under (bucket, id). Their table
// knows what the bytes mean and which rows are superseded by a row in memory (ps/storage/row_spiller.h).

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::ps {

// The cold rows of one table. Thread-safe. Calls block on the disk. Every error names the table, the
// directory and the cause:
//
//   - ResourceExhausted: no space is left;
//   - Unavailable: the disk does not answer, which may be temporary;
//   - DataLoss: the data read is not the data written.
class ColdTier {
 public:
  struct Key {
    uint32_t bucket;
    uint64_t id;
  };

  // Removes the tier's rows.
  virtual ~ColdTier() = default;

  // Stores rows[i * row_bytes, (i + 1) * row_bytes) under (bucket, ids[i]) and replaces the id's previous
  // row. After an error each id has either its previous or its new row.
  virtual absl::Status Put(uint32_t bucket, absl::Span<const uint64_t> ids, size_t row_bytes,
                           const char* rows) = 0;
  // Reads the rows of `keys`, which may repeat and be in any order. Sets found[i] to 1 and writes the row to
  // rows[i * row_bytes, (i + 1) * row_bytes) if keys[i] has a row; else sets found[i] to 0. Rows must have
  // been put with the same `row_bytes`. Does not change the tier.
  virtual absl::Status Get(absl::Span<const Key> keys, size_t row_bytes, char* rows, uint8_t* found) = 0;
  // Calls visit(id, row) for each row of `bucket` whose id is at least `first_id`, in ascending order of id,
  // until it returns false. `row` has any alignment.
  using Visitor = absl::FunctionRef<bool(uint64_t id, const char* row)>;
  virtual absl::Status VisitBucket(uint32_t bucket, uint64_t first_id, size_t row_bytes, Visitor visit) = 0;
  // Removes all rows. No other call may be in progress.
  virtual void Clear() = 0;
  // Returns an estimate of the bytes held, including superseded rows.
  virtual uint64_t bytes() const = 0;
};

// Creates the tiers of a server's tables. Thread-safe. A store must outlive its tiers.
class ColdStore {
 public:
  virtual ~ColdStore() = default;
  // Returns an empty tier. `table` is used in messages only and may have several tiers: a table that is being
  // loaded has its old and its new rows for a moment. FailedPrecondition names what is missing on this
  // machine; other errors are those of ColdTier.
  virtual absl::StatusOr<std::unique_ptr<ColdTier>> NewTier(absl::string_view table) = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_SPILL_COLD_TIER_H_
