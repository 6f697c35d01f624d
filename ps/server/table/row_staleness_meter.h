// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_ROW_STALENESS_METER_H_
#define TANDEM_PS_SERVER_TABLE_ROW_STALENESS_METER_H_

// Measures the row staleness of a table's gradients (ps/row_staleness.h) and finds the rows that are updated
// often.
//
// The meter has a fixed number of slots. A slot follows one id and has a mask of 64 bits. Bit k says whether
// update u - k of the table changed the row, where u is the slot's last update. The staleness of a gradient
// that is based on version v and applied in update u is the number of bits that stand for updates
// v + 1 .. u - 1. If the gradient is d > 63 updates late, the count over the last 63 updates is multiplied by
// d/63.
//
// The meter measures in periods: kFirstPeriod updates at the start, later kPeriod updates. A pause follows
// each period: kPause times the time that measuring took, times the number of tables that the server
// measures. So all tables of a server together take at most a hundredth of a processor. Where updates are
// rare or small, periods follow each other without a pause. A gradient counts if all updates from its pull on
// (at most the last 63) belong to the period.
//
// An id gets one of kWays slots, whose place is a hash of the id and of the period. A slot becomes free when
// its row was not updated for half as long again as gradients are late on average. An id that finds no free
// slot is not measured in this update. If that happens too often, because pushes have more ids than slots,
// the next period measures half of the ids, chosen by a hash, and the period after it the other half; and so
// on with quarters. Such a sample leaves means and histograms unbiased, and rows that are updated often are
// found within a few periods.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/ticks.h"
#include "ps/row_staleness.h"
#include "ps/server/table/table_push.h"

namespace tandem::ps {

// Thread-safe. Memory: 2 MiB of slots, allocated at the first measured update, and at most 9 MiB for the
// frequent rows that earlier periods have found.
class RowStalenessMeter {
 public:
  static constexpr uint64_t kFirstPeriod = 256;  // updates
  static constexpr uint64_t kPeriod = 128;
  static constexpr int64_t kPause = 100;
  static constexpr size_t kWays = 8;
  static constexpr size_t kSlots = size_t{1} << 16;
  // Frequent answers from a period only after this many updates.
  static constexpr uint64_t kEnoughUpdates = 32;
  // A push from version 0 that is later than this has come without a version. It is not measured.
  static constexpr uint64_t kLatestFirstPush = 1024;

  // `tables` is the number of tables that the server measures; the meter adds itself at its first period.
  // nullptr: it is the only one. `clock` returns nanoseconds.
  explicit RowStalenessMeter(std::shared_ptr<std::atomic<int64_t>> tables = nullptr,
                             int64_t (*clock)() = SteadyNanoseconds)
      : clock_(clock),
        tables_(tables != nullptr ? std::move(tables) : std::make_shared<std::atomic<int64_t>>(0)) {}
  ~RowStalenessMeter();

  // A row that is updated often.
  struct Row {
    uint64_t id = 0;
    double row_staleness = 0;  // expected: update_rate * the table's mean staleness
    double update_rate = 0;    // share of the table's updates in which the row was
  };
  struct FrequentRows {
    std::vector<Row> rows;  // highest row_staleness first; ties in ascending order of id
    double mean_staleness = 0;
    uint64_t updates = 0;  // that the last period measured so far
  };

  // The row staleness of one push, by segment (TablePush::segment_ends); empty if it was not measured.
  using Segments = std::vector<RowStalenessCounts>;

  // Counts the update that has applied `pushes`: increments *version, the number of finished updates. While
  // measuring, also measures the pushes and sets segments[i], unless it is nullptr, to the result for
  // pushes[i]. Updates are counted one after the other, so the measurement is exact whatever the threads do.
  // Returns the version without this update.
  uint64_t CountUpdate(absl::Span<const TablePush* const> pushes, std::atomic<uint64_t>* version,
                       std::vector<Segments>* segments);

  // Begins a new period with the next update, unless the present one has measured less than kEnoughUpdates.
  // Call it when the pushes will change, for example because rows were moved to workers.
  void Restart();
  // As Restart, and forgets the rows found so far, but not the counts. Call it when versions jump (a
  // checkpoint was loaded) or when updates were made that were not counted.
  void Forget();

  // Returns what was measured since the table was created.
  RowStalenessCounts Counts() const;
  // Returns at most `limit` rows whose row_staleness is at least `min_row_staleness`. They are those of the
  // last period, if it has kEnoughUpdates, and those of other samples that earlier periods found with a
  // row_staleness of at least 1/4.
  FrequentRows Frequent(double min_row_staleness, size_t limit) const;

 private:
  static constexpr uint64_t kShortestMemory = 8;  // updates for which a slot is kept at least
  static constexpr uint32_t kMaxSampleBits = 12;
  static constexpr size_t kMaxFound = size_t{1} << 18;
  static constexpr uint64_t kTrial = 16;  // updates after which a period with too few slots is begun anew

  struct Slot {
    uint64_t id;
    uint64_t mask;
    uint32_t last;     // the slot's last update, counted from the period's first, which is 0
    uint32_t period;   // the slot is free if this is not period_
    uint32_t updates;  // of the row in this period, since it has the slot
    uint32_t unused;
  };
  static_assert(sizeof(Slot) == 32);
  struct FreeMemory {
    void operator()(char* memory) const { std::free(memory); }
  };

  // Returns whether the update belongs to a period; begins one if it is time.
  bool InPeriodLocked(uint64_t update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasTooFewSlotsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return untaken_ * 64 > entries_; }
  void AllocateSlotsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginPeriodLocked(uint64_t update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the frequent rows of the period that ends to found_.
  void KeepFoundLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MeasureLocked(uint64_t update, const TablePush& push, Segments* segments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the slot of the id, a free one that now belongs to it, or nullptr.
  Slot* FindLocked(uint64_t id, size_t place, uint32_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t PlaceLocked(uint64_t hash) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SampledLocked(uint64_t hash) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double MeanDelayLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  int64_t (*const clock_)();
  const std::shared_ptr<std::atomic<int64_t>> tables_;
  mutable absl::Mutex mutex_;
  std::unique_ptr<char, FreeMemory> memory_ ABSL_GUARDED_BY(mutex_);
  Slot* slots_ ABSL_GUARDED_BY(mutex_) = nullptr;  // [kSlots] in memory_, at a multiple of 64 bytes
  RowStalenessCounts counts_ ABSL_GUARDED_BY(mutex_);

  // The period, which is over when update end_ is counted. Updates before begin_ are not in it.
  uint32_t period_ ABSL_GUARDED_BY(mutex_) = 0;  // number of the period, from 1; 0: none yet
  uint64_t begin_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t end_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t updates_ ABSL_GUARDED_BY(mutex_) = 0;                 // that the period has measured
  bool restart_ ABSL_GUARDED_BY(mutex_) = true;                  // the next update begins a period
  uint64_t next_length_ ABSL_GUARDED_BY(mutex_) = kFirstPeriod;  // updates of the next period
  int64_t begin_ns_ ABSL_GUARDED_BY(mutex_) = 0;                 // when the period began
  int64_t spent_ns_ ABSL_GUARDED_BY(mutex_) = 0;                 // the time that it took
  // The delay of this period's pushes: updates of the table between pull and update.
  uint64_t delays_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t delay_sum_ ABSL_GUARDED_BY(mutex_) = 0;
  double earlier_mean_delay_ ABSL_GUARDED_BY(mutex_) = 0;  // of the period before; 0: unknown
  // A slot whose row was not updated for this long is free. Enough for pushes half as late again as the mean.
  uint64_t kept_updates_ ABSL_GUARDED_BY(mutex_) = kShortestMemory;
  // The ids whose hash ends in the `sample_bits_` bits of `period_` are measured.
  uint32_t sample_bits_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t entries_ ABSL_GUARDED_BY(mutex_) = 0;  // sampled gradients of this period
  uint64_t untaken_ ABSL_GUARDED_BY(mutex_) = 0;  // those that found no slot
  uint64_t slots_used_ ABSL_GUARDED_BY(mutex_) = 0;
  // Update rates of frequent rows that earlier periods have found.
  absl::flat_hash_map<uint64_t, double> found_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_ROW_STALENESS_METER_H_
