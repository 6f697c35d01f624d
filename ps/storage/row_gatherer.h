// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROW_GATHERER_H_
#define TANDEM_PS_STORAGE_ROW_GATHERER_H_

// RowGatherer reads the rows that are in memory.
//
// A read takes the locks that a run of its ids needs, shared and all at once, and then reads the rows in the
// order of the ids, so that it writes its output in sequence. (Taking one lock after the other, and writing
// in that order, costs as much again as reading the rows.) If one of the locks is not free, the read does
// take them one after the other, and the busy ones last. Otherwise it would follow a writer from lock to lock
// until the writer's whole update is done, and keep writers out of all locks meanwhile.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ps/storage/buckets.h"
#include "ps/storage/gather_rows.h"

namespace tandem::ps {

// Thread-safe. `buckets` must outlive the gatherer.
class RowGatherer {
 public:
  // `spills` says whether absent rows may be on disk.
  RowGatherer(const Buckets* buckets, bool spills) : buckets_(buckets), spills_(spills) {}

  // Writes the embedding of ids[i] to out + i * format.out_bytes(). Appends to `missing` the positions of ids
  // without a row in memory, in ascending order; their part of `out` is zeros.
  void Gather(const RowFormat& format, absl::Span<const uint64_t> ids, char* out,
              std::vector<uint32_t>* missing) const;

  struct NewerRows {
    std::vector<uint64_t> wanted;    // the ids whose rows must be sent
    std::vector<uint32_t> missing;   // positions in `wanted` of ids without a row in memory
    std::vector<uint32_t> doubtful;  // positions in ids of missing rows with a copy, which may be on disk
  };
  // The part of TableStorage::GatherNewer that concerns memory. Sets the bits of `sent` for all wanted ids,
  // and writes those of their rows that are in memory to `out`. Requires `sent` to be cleared.
  NewerRows GatherNewer(absl::Span<const uint64_t> ids, const uint32_t* cached, uint64_t max_age, float* out,
                        uint8_t* sent) const;

 private:
  // Returns the set of locks that reading `ids` takes; bit l stands for lock l. May contain more than
  // necessary.
  uint32_t LocksOf(absl::Span<const uint64_t> ids) const;
  void LockShared(uint32_t locks) const;
  // Takes all of the locks without waiting and returns true, or takes none and returns false.
  bool TryLockShared(uint32_t locks) const;
  void UnlockShared(uint32_t locks) const;
  // Gather for a run of ids some of whose locks are busy. The run begins at position `first` of the call.
  void GatherLockByLock(const RowFormat& format, absl::Span<const uint64_t> ids, char* out, uint32_t first,
                        std::vector<uint32_t>* missing) const;

  const Buckets* const buckets_;
  const bool spills_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROW_GATHERER_H_
