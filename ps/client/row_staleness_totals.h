// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_ROW_STALENESS_TOTALS_H_
#define TANDEM_PS_CLIENT_ROW_STALENESS_TOTALS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "ps/row_staleness.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// Adds up the row staleness that servers report for the segments of one table's pushes. Thread-safe.
class RowStalenessTotals {
 public:
  // Adds a server's report of a slice whose segments are [first, first + count) of the table.
  void Add(size_t first, size_t count, const v1::SliceRowStaleness& slice) {
    absl::MutexLock lock(&mutex_);
    if (totals_.size() < first + count) totals_.resize(first + count);
    for (size_t s = 0; s < count && s < static_cast<size_t>(slice.segments_size()); ++s) {
      totals_[first + s].Add(RowStalenessCounts::FromProto(slice.segments(static_cast<int>(s))));
    }
  }
  std::vector<RowStalenessCounts> Get() const {
    absl::MutexLock lock(&mutex_);
    return totals_;
  }
  void Reset() {
    absl::MutexLock lock(&mutex_);
    totals_.clear();
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<RowStalenessCounts> totals_ ABSL_GUARDED_BY(mutex_);  // by segment
};

// The segments of one slice of a push.
struct PushedSegments {
  std::shared_ptr<RowStalenessTotals> totals;  // of the table
  size_t first = 0;                            // index of the slice's first segment in `totals`
  size_t count = 0;                            // 0: the slice has no segments
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_ROW_STALENESS_TOTALS_H_
