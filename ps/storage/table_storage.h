// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_TABLE_STORAGE_H_
#define TANDEM_PS_STORAGE_TABLE_STORAGE_H_

// TableStorage holds the rows of one table on one server. It does not know workers, steps or the wire format.
//
// A table is divided into buckets (ps/shard_map.h). Each bucket is an open-addressing index from id to a row
// in memory that is allocated in large runs, never row by row. A row is
//
//   [ embedding: dim numbers | optimizer state ]
//
// Buckets share a few reader-writer locks. Reads take them shared; creating, updating and evicting rows takes
// them exclusively. Every call takes many ids. Its effect on one row is atomic, its effect on several rows is
// not.
//
// Time is counted in updates: the clock is the number of calls of Apply.
//
// Only tables that also keep rows on disk (TableConfig.spill, ps/storage/spill) ever return an error. The
// error names the table, the directory and the cause. Calls on other tables always return OK.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

// The metadata of a row; checkpoints contain it.
struct RowHistory {
  uint32_t version = 0;  // the low 32 bits of the clock when the row was last updated, or created
  uint32_t count = 0;    // Eviction::Counted at that update, in tables that evict by it, else 0
};

// Idle threads that may take part in a call. Thread-safe.
class Helpers {
 public:
  virtual ~Helpers() = default;
  // Calls `work` on this thread and, concurrently, on idle ones. Blocks until every call of `work` that was
  // begun has returned.
  virtual void Share(absl::FunctionRef<void()> work) = 0;
};

// Optional arguments of Apply.
struct ApplyOptions {
  float learning_rate_factor = 1.0f;  // multiplies the optimizer's learning rate; finite, >= 0
  float batch_share = 1.0f;           // multiplies the optimizer's regularization; in (0, 1]
  // [ids.size()], or nullptr: a further factor for each id. If an id repeats, its first entry counts.
  const float* row_factors = nullptr;
  // [ids.size()], or nullptr: how often each entry's id occurred in the pushes, at least once; nullptr stands
  // for 1 each. The occurrences of an id that repeats add up. Only tables whose eviction counts them use
  // them.
  const uint32_t* occurrences = nullptr;
  // Threads that share large updates of tables without `spill`, or nullptr. The resulting bits are the same.
  Helpers* helpers = nullptr;
};

struct StorageStatistics {
  uint64_t rows = 0;         // rows in memory
  uint64_t bytes = 0;        // all memory the table holds: rows, indexes, unused space
  uint64_t budget_rows = 0;  // rows that the byte budget allows, an equal share in each bucket; 0: no budget
  uint64_t admitted_rows = 0;  // rows created by Gather and Apply since the table was created
  uint64_t refused_rows = 0;   // entries of Apply whose id was not admitted
  uint64_t evicted_rows = 0;
  double longest_pause_us = 0;  // the longest time that one lock was held exclusively
  // Tables that spill to disk.
  uint64_t spilled_rows = 0;   // rows on disk and not in memory
  uint64_t spilled_bytes = 0;  // bytes on disk, including rows superseded by memory; an estimate
  uint64_t spill_reads = 0;    // rows brought back to memory
  uint64_t spill_writes = 0;
  uint64_t failed_spills = 0;  // failed writes, each of which left rows in memory beyond the budget
};

// How a bucket differs from what it was at the last cut, besides the rows that exist (VisitChanges).
struct BucketChanges {
  // True: the rows visited are all rows of the bucket, and `filter` is all of its admission counters.
  bool whole = false;
  // The ids of rows that have left the table since the cut, in ascending order. Those that came back are
  // among the rows visited, too. Empty if `whole`.
  std::vector<uint64_t> removed;
  // Changes of the bucket's admission counters, for PatchFilter.
  std::string filter;
  uint64_t filter_bytes = 0;  // of all counters of the bucket; 0: it has none
};

// The result of VisitNewer, which tells more about a bucket than the rows that it visits.
struct NewerRows {
  // True: the rows visited, in this call and those that go on from it, are all rows of the bucket.
  bool whole = false;
  // The ids of rows that have left the table and did not come back. Empty if `whole` or if the call goes on.
  std::vector<uint64_t> removed;
  bool more = false;  // there are rows with greater ids to visit
};

// Says what creates the rows of an EMBEDDING table.
enum class RowsComeFrom {
  // As the table's admission says: pulls create rows if it admits every id, otherwise pushes do.
  kAdmission,
  // Pushes only, of the ids that are admitted. A server that logs pushes and not pulls then has the same rows
  // after a restart, and no gradient of a row that only a pull had created is lost.
  kPushes,
};

// The rows of one table. Thread-safe. Calls block for locks and, in tables with `spill`, for the disk.
class TableStorage {
 public:
  // Creates a table. Requires a `config` that has passed ValidateTableConfig and a `num_buckets` that is a
  // power of two. A DENSE table's rows are created at once, those of buckets for which `owns` returns true;
  // an EMBEDDING table starts empty. A table with `spill` requires an empty `tier`, others require nullptr.
  // Rows that eviction removes from memory go to the tier and come back when they are touched, so that the
  // table behaves as if its memory were unlimited.
  static std::unique_ptr<TableStorage> Create(const v1::TableConfig& config, uint32_t num_buckets,
                                              absl::FunctionRef<bool(uint32_t bucket)> owns,
                                              std::unique_ptr<ColdTier> tier = nullptr,
                                              RowsComeFrom rows_come_from = RowsComeFrom::kAdmission);
  virtual ~TableStorage() = default;

  // Reads embeddings: writes row ids[i] to out[i * dim, (i+1) * dim). Ids may repeat.
  //
  // An absent row (never created, not admitted, or evicted) reads as its initial value, a function of
  // (seed, id), rounded as it would be when stored. With `create` the row is also created, if the table is an
  // EMBEDDING table that admits every id at its first pull. A DENSE id out of range reads as zeros. No row's
  // history changes. After an error `out` is unspecified and the table's contents are unchanged.
  virtual absl::Status Gather(absl::Span<const uint64_t> ids, bool create, float* out) = 0;
  // As Gather, but writes `out` with stores that bypass the caches where that is possible. Intended for
  // memory that another core has read before and will read next (base/copy_choice.h).
  virtual absl::Status GatherAround(absl::Span<const uint64_t> ids, bool create, float* out) {
    return Gather(ids, create, out);
  }
  // The number format of stored embeddings (TableConfig.row_type).
  virtual DType row_type() const = 0;
  // As Gather, but writes the stored bits without conversion: row i is at out + i * dim * SizeOf(row_type()).
  // `out` must be aligned to 2 bytes (4 for f32).
  virtual absl::Status GatherStored(absl::Span<const uint64_t> ids, bool create, char* out) = 0;

  // Reads only the rows of which the caller's cached copy is missing or too old. cached[i] is the low 32 bits
  // of the table's clock when the copy of ids[i] was read; 0 means that there is no copy. Row i is sent if
  //
  //   - there is no copy, or
  //   - the clock has advanced by more than `max_age` since, and the row was updated since or is absent.
  //
  // The rows that are sent lie one after the other in `out`, in the order of ids. Bit i % 8 of sent[i / 8]
  // says whether row i is among them; `sent` has (ids.size() + 7) / 8 bytes. Returns the number of rows sent.
  // In all other respects as Gather.
  virtual absl::StatusOr<size_t> GatherNewer(absl::Span<const uint64_t> ids, const uint32_t* cached,
                                             uint64_t max_age, bool create, float* out, uint8_t* sent) = 0;

  // Applies the optimizer once to each distinct id, with the sum of its gradients added in the order given,
  // and advances the clock by one. `gradients` is [ids.size() x dim].
  //
  // An id without a row gets one if admission accepts it now; otherwise its entries are skipped. Afterwards
  // rows that eviction selects leave memory. Returns the number of entries that were skipped.
  //
  // DataLoss: some rows could not be read, and this update of them is lost. From then on every Gather*, Apply
  // and VisitBucket returns that error, until Clear.
  virtual absl::StatusOr<uint64_t> Apply(absl::Span<const uint64_t> ids, const float* gradients,
                                         const ApplyOptions& options) = 0;

  // Returns the error after which the table is damaged, if there was one (Apply). Does not block.
  virtual absl::Status CheckWhole() const { return absl::OkStatus(); }

  // The following calls move rows to a worker that updates replicas of them, and back. A row is as in
  // checkpoints: [dim embedding floats, then the optimizer state], row_floats() floats in all.
  //
  // Reads whole rows: writes row ids[i] to out[i * row_floats(), (i+1) * row_floats()) and whether it exists
  // to exists[i]. An absent row reads as it would be created, and is not created. Ids may repeat. A DENSE id
  // out of range reads as zeros. After an error the outputs are unspecified.
  virtual absl::Status ReadRows(absl::Span<const uint64_t> ids, float* out, uint8_t* exists) = 0;
  // Creates or replaces the rows of `ids`, whatever admission says. `rows` is [ids.size() x row_floats()];
  // embeddings are rounded to nearest. GatherNewer finds the rows newer than any copy that was read before.
  // The clock does not advance, and no row leaves memory except to the cold tier. Ignores DENSE ids out of
  // range. After an error some rows may have been written.
  virtual absl::Status WriteRows(absl::Span<const uint64_t> ids, const float* rows) = 0;

  // Returns the number of rows in memory and on disk.
  virtual uint64_t rows() const = 0;
  virtual StorageStatistics Statistics() const = 0;

  // The following calls serve checkpoints. A checkpointed row is [dim embedding floats, then the optimizer
  // state], row_floats() floats in all. (A step count that the optimizer keeps for each row is one of the
  // state floats.)
  virtual uint32_t row_floats() const = 0;
  // Calls visit(id, row, history) for each row of `bucket`, with the bucket's lock held, in ascending order
  // of id, so that files do not depend on the order of arrival. `row` is [row_floats()]. After an error some
  // rows have not been visited.
  using RowVisitor = absl::FunctionRef<void(uint64_t id, const float* row, const RowHistory& history)>;
  virtual absl::Status VisitBucket(uint32_t bucket, RowVisitor visit) = 0;
  // As VisitBucket, but visits only the first `limit` rows with ids of at least `first_id`; the others are
  // neither sorted nor read. Returns whether there are rows with greater ids.
  virtual absl::StatusOr<bool> VisitRows(uint32_t bucket, uint64_t first_id, size_t limit,
                                         RowVisitor visit) = 0;
  // The following two serve incremental checkpoints.
  //
  // Makes this moment the table's cut: from now on VisitChanges tells what has changed since. Requires that
  // no Apply and no WriteRows is in progress. Pulls may be: a row that they create at this moment counts as
  // changed. Takes memory for ids of rows that are evicted, and for a copy of the admission counters.
  virtual void MarkCut() {}
  // As VisitBucket, but visits only the rows that were created or changed since the cut, and possibly some
  // whose last change is the last one before it. The bucket is visited as a whole if there was no cut, if the
  // cut is 2^31 updates old, or if too many rows were evicted. Requires that no Apply and no WriteRows is in
  // progress, and that neither Restore nor RestoreFilter was called since the cut.
  virtual absl::StatusOr<BucketChanges> VisitChanges(uint32_t bucket, RowVisitor visit);
  // The following three visit the rows of one moment while updates go on. At most one thread at a time makes
  // these calls and those above.
  //
  // Makes this moment the one that VisitCut visits. From now on a row is copied before it is first changed or
  // removed. Requires that no Apply and no WriteRows is in progress. Pulls may be: a row that they create at
  // this moment may belong to the cut or not. Takes time in proportion to the buckets, not to the rows.
  virtual void BeginCut() {}
  // As VisitChanges, or as VisitBucket and SaveFilter if `whole` is true, but of the moment of BeginCut, and
  // while Apply and WriteRows may be in progress. Each bucket can be visited once; its copies are then freed.
  // Holds the bucket's lock for some hundred rows at a time; in tables with `spill`, during the whole call.
  // FailedPrecondition: there is no cut, or the bucket was visited.
  virtual absl::StatusOr<BucketChanges> VisitCut(uint32_t bucket, bool whole, RowVisitor visit);
  // Ends the cut and frees its copies. `keep`: from now on VisitChanges and VisitCut tell what has changed
  // since that cut; requires that all buckets which have rows were visited. Otherwise they still tell what
  // has changed since the one before. No effect without a cut.
  virtual void EndCut(bool keep) { (void)keep; }
  // Returns the memory of the rows that were copied for the cut and not visited yet. Thread-safe.
  virtual uint64_t cut_bytes() const { return 0; }
  // The following two serve subscribers, and do not depend on cuts.
  //
  // Begins to record the rows that eviction removes. No effect if they are recorded already. Takes memory for
  // the ids, at most half as many as there are rows. Thread-safe.
  virtual void BeginRemovalLog() {}
  // As VisitRows, but visits only the rows that were created or changed by updates numbered `since` and
  // later, while updates go on. Requires BeginRemovalLog before the moment of which `since` is the clock. The
  // bucket is visited as a whole if `whole`, if `since` is 2^31 updates ago, or if too many rows were
  // removed. A call that goes on, with `first_id` > 0, passes in `whole` what the first call has returned.
  // Thread-safe.
  virtual absl::StatusOr<NewerRows> VisitNewer(uint32_t bucket, uint64_t since, bool whole, uint64_t first_id,
                                               size_t limit, RowVisitor visit);
  // Creates or replaces the row of `id`. `row` is [row_floats()]; its embedding is rounded to nearest. A
  // DENSE table ignores ids out of range. After an error the id's row is unchanged.
  virtual absl::Status Restore(uint64_t id, const float* row, const RowHistory& history) = 0;
  // Returns the admission counters of `bucket`; empty if there are none.
  virtual std::string SaveFilter(uint32_t bucket) const = 0;
  // Replaces the admission counters of `bucket` with those that SaveFilter returned for the same bucket of a
  // table with the same admission policy. Returns false, and changes nothing, if their size does not fit.
  virtual bool RestoreFilter(uint32_t bucket, absl::string_view counters) = 0;
  virtual uint64_t clock() const = 0;
  virtual void SetClock(uint64_t clock) = 0;
  // Removes all rows and admission counters, and forgets the cuts. A DENSE table's rows are removed too;
  // Restore recreates them.
  virtual void Clear() = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_TABLE_STORAGE_H_
