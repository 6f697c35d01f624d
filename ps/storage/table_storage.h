#ifndef TANDEM_PS_STORAGE_TABLE_STORAGE_H_
#define TANDEM_PS_STORAGE_TABLE_STORAGE_H_

// The rows of one table on one server. Knows nothing of workers, steps or the wire.
//
// A table is a set of buckets (ps/partition), each an open-addressing index from id to a row in slabs. A row
// is [embedding: dim numbers | optimizer state]. Rows are never allocated one by one. Buckets share a few
// locks: reads share them; creating, updating and evicting rows takes one alone. A call takes many ids at a
// time: what it does to one row is atomic, what it does to several is not.
//
// Time is counted in updates: the clock is the number of calls of Apply.
//
// Only tables whose rows also lie on disk (TableConfig.spill, ps/tiers) ever return an error: one that names
// table, directory and cause. The other tables' calls return OK.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "ps/storage/spill/cold_tier.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// What is known of a row beside its numbers; part of checkpoints.
struct RowHistory {
  uint32_t version = 0;  // the low half of the clock at its last update, or when it was made
  uint32_t count = 0;    // of its updates, in tables that evict by it; else 0
};

// Threads that take part in a call, if they have nothing else to do. Thread-safe.
class Helpers {
 public:
  virtual ~Helpers() = default;
  // Calls `work` here, and on other threads at the same time; returns when all that began it have returned.
  virtual void Share(absl::FunctionRef<void()> work) = 0;
};

// What an update brings beside ids and gradients.
struct ApplyOptions {
  float learning_rate_factor = 1.0f;  // multiplies the optimizer's learning rate; finite, >= 0
  const float* row_factors =
      nullptr;                 // [ids]: the same for each id (the first entry of an id counts); or none
  Helpers* helpers = nullptr;  // of large updates of tables without `spill`; the same bits come out; or none
};

struct StorageStatistics {
  uint64_t rows = 0;           // in memory
  uint64_t bytes = 0;          // everything held: rows, index, slack
  uint64_t budget_rows = 0;    // that the byte budget allows, an equal part in each bucket; 0: no budget
  uint64_t admitted_rows = 0;  // made by Gather and Apply, ever
  uint64_t refused_rows = 0;   // entries of Apply whose id was not admitted
  uint64_t evicted_rows = 0;
  double longest_pause_us = 0;  // the longest that one lock was held alone
  // Tables with rows on disk.
  uint64_t spilled_rows = 0;   // on disk and not in memory
  uint64_t spilled_bytes = 0;  // held there, rows that memory supersedes included; an estimate
  uint64_t spill_reads = 0;    // rows brought back
  uint64_t spill_writes = 0;
  uint64_t failed_spills = 0;  // attempts that left rows in memory beyond the budget
};

// Thread-safe.
class TableStorage {
 public:
  // `config` has passed ValidateTableConfig. A DENSE table's rows (those of buckets for which `owns` is true)
  // are made at once; an EMBEDDING table starts empty. One with `spill` needs an empty `tier`: rows that
  // eviction takes out of memory go there and come back when they are touched, so that the table behaves as
  // if its memory had no bound. The others have none.
  static std::unique_ptr<TableStorage> Create(const v1::TableConfig& config, uint32_t num_buckets,
                                              absl::FunctionRef<bool(uint32_t bucket)> owns,
                                              std::unique_ptr<ColdTier> tier = nullptr);
  virtual ~TableStorage() = default;

  // out[i * dim, (i+1) * dim) = row ids[i]. An absent row (never made, not admitted, evicted) has its initial
  // value, a function of (seed, id), rounded as it would be when stored; with `create` it also comes into
  // being, if the table admits every id (EMBEDDING only; a DENSE id out of range reads as zeros). Ids may
  // repeat. Changes no history. After an error `out` is unspecified and the table as good as before.
  virtual absl::Status Gather(absl::Span<const uint64_t> ids, bool create, float* out) = 0;
  // The same for memory that another core has read before and will read next (base/copy_choice.h).
  virtual absl::Status GatherAround(absl::Span<const uint64_t> ids, bool create, float* out) {
    return Gather(ids, create, out);
  }
  // The same in the type of the table's rows (TableConfig.row_type), the bits as they are stored: row i is at
  // out + i * dim * SizeOf(row_type()), at any alignment of 2 (4 for f32).
  virtual DType row_type() const = 0;
  virtual absl::Status GatherStored(absl::Span<const uint64_t> ids, bool create, char* out) = 0;

  // The rows of copies that no longer serve: of ids[i], read when the table's clock was cached[i] (its low
  // half; 0: there is no copy), when the row was updated since and the clock has moved on by more than
  // `max_age`, or there is no copy. They are written one after the other; bit i % 8 of sent[i / 8]
  // ((ids.size() + 7) / 8 bytes) says whether row i is among them. Returns how many are. Else as Gather.
  virtual absl::StatusOr<size_t> GatherNewer(absl::Span<const uint64_t> ids, const uint32_t* cached,
                                             uint64_t max_age, bool create, float* out, uint8_t* sent) = 0;

  // Applies the optimizer once to each distinct id, with the sum of its gradients (added in the order given),
  // and moves the clock on by one; gradients is [ids.size() x dim]. An id without a row gets one if admission
  // wants it now, else it is skipped; returns how many entries were. Then rows that eviction wants gone are
  // erased. DataLoss: some of the rows could not be read, and this update of them is lost. A table with such
  // a gap serves no more: Gather, GatherNewer, Apply and VisitBucket return that error until Clear.
  virtual absl::StatusOr<uint64_t> Apply(absl::Span<const uint64_t> ids, const float* gradients,
                                         const ApplyOptions& options) = 0;

  virtual uint64_t rows() const = 0;  // in memory and on disk
  virtual StorageStatistics Statistics() const = 0;

  // For checkpoints. A stored row is [dim embedding floats, then the optimizer state], row_floats in all (a
  // step count the optimizer keeps per row is one of the state floats).
  virtual uint32_t row_floats() const = 0;
  // Calls visit(id, row, history) for each row of `bucket`, under its lock, in ascending order of id (so that
  // files do not depend on arrival order). row is [row_floats]. After an error some were not visited.
  using RowVisitor = absl::FunctionRef<void(uint64_t id, const float* row, const RowHistory& history)>;
  virtual absl::Status VisitBucket(uint32_t bucket, RowVisitor visit) = 0;
  // Puts a row there ([row_floats]; rounded to nearest), replacing what the id had. A DENSE table takes only
  // ids in range; others are ignored. After an error the id has what it had.
  virtual absl::Status Restore(uint64_t id, const float* row, const RowHistory& history) = 0;
  // The admission counters of `bucket`, and their replacement: what SaveFilter returned for the same bucket
  // of a table with the same admission. False, and nothing changed, when that cannot be.
  virtual std::string SaveFilter(uint32_t bucket) const = 0;
  virtual bool RestoreFilter(uint32_t bucket, absl::string_view counters) = 0;
  virtual uint64_t clock() const = 0;
  virtual void SetClock(uint64_t clock) = 0;
  // Forgets all rows (a DENSE table's too; Restore brings them back) and counters.
  virtual void Clear() = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_TABLE_STORAGE_H_
