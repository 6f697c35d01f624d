#ifndef TANDEM_PS_STORAGE_SPILL_COLD_TIER_H_
#define TANDEM_PS_STORAGE_SPILL_COLD_TIER_H_

// Where the rows of a table lie that its memory has no room for.
//
// A cold tier is scratch memory behind memory, not storage that outlives its server: checkpoints are taken
// from tables, and hold the rows of both. A tier knows rows as bytes under (bucket, id); what they mean, and
// which of them are superseded by a row in memory, its table knows (ps/storage/bucketed_storage.h).

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::ps {

// The cold rows of one table. Thread-safe; calls block on the disk. Every error names table, directory and
// cause: ResourceExhausted (no space left), Unavailable (the disk does not answer; may pass), DataLoss (what
// is read is not what was written).
class ColdTier {
 public:
  struct Key {
    uint32_t bucket;
    uint64_t id;
  };

  virtual ~ColdTier() = default;  // forgets its rows

  // Keeps rows[i * row_bytes, (i + 1) * row_bytes) under (bucket, ids[i]), in place of what was there. After
  // an error each id has either what it had or what it was given.
  virtual absl::Status Put(uint32_t bucket, absl::Span<const uint64_t> ids, size_t row_bytes,
                           const char* rows) = 0;
  // found[i] is 1 when there is a row of keys[i], else 0; it is written to rows[i * row_bytes, ...), and has
  // been put with the same row_bytes. Keys may repeat, in any order. Does not change the tier.
  virtual absl::Status Get(absl::Span<const Key> keys, size_t row_bytes, char* rows, uint8_t* found) = 0;
  // Calls visit(id, row) for each row of `bucket`, in ascending order of id.
  using Visitor = absl::FunctionRef<void(uint64_t id, const char* row)>;
  virtual absl::Status VisitBucket(uint32_t bucket, size_t row_bytes, Visitor visit) = 0;
  // Forgets all rows. Not while another call is under way.
  virtual void Clear() = 0;
  // Held, superseded rows included; an estimate.
  virtual uint64_t bytes() const = 0;
};

// Makes the tiers of a server's tables. Thread-safe. Outlives its tiers.
class ColdStore {
 public:
  virtual ~ColdStore() = default;
  // An empty tier; `table` is for messages, and may have several (a table that is loaded has its old and its
  // new rows for a moment). FailedPrecondition says what is missing on this machine; else as ColdTier's
  // calls.
  virtual absl::StatusOr<std::unique_ptr<ColdTier>> NewTier(absl::string_view table) = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_SPILL_COLD_TIER_H_
