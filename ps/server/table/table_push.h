// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_TABLE_PUSH_H_
#define TANDEM_PS_SERVER_TABLE_TABLE_PUSH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/trace/trace.h"
#include "ps/row_staleness.h"
#include "ps/server/table/update_position.h"

namespace tandem::ps {

// One push's gradients for one table.
struct TablePush {
  uint32_t worker = 0;
  uint64_t step = 0;
  uint64_t pulled_version = 0;      // of the table, when the rows were pulled
  UpdatePosition position;          // GBA tables
  bool deferred_gradients = false;  // of steps that were pushed before: advances no clock
  uint64_t log_position = 0;        // of the push in the server's log; 0: the server has none
  absl::Span<const uint64_t> ids;
  const float* gradients = nullptr;  // [ids.size() x dim]
  // The ends of the segments of all slices, as positions in `ids`; the last is ids.size(). Empty: none.
  std::vector<uint32_t> segment_ends;
  float learning_rate_factor = 1.0f;   // of all ids
  float batch_share = 1.0f;            // v1::PushRequest.batch_share
  const float* row_factors = nullptr;  // [ids.size()]: multiplied with it for each id; nullptr: all are 1
  // [ids.size()]: how often each id occurred (v1::PushSlice.occurrence_bytes); nullptr: once.
  const uint32_t* occurrences = nullptr;
  std::shared_ptr<const void> memory;  // keeps ids, gradients, row_factors and occurrences alive
  uint64_t memory_bytes = 0;
  uint64_t traced = trace::Begin();  // when the push was made, for traces
  // Runs once, under no lock, in one of these cases:
  //
  //   - the push is applied: with the number of its update's entries that had no row, or with the error for
  //     which the table serves no more;
  //   - the push waits for other workers' pushes: with 0.
  //
  // `segments` is the row staleness of its segments if that was measured; else empty.
  using Settled = std::function<void(const absl::StatusOr<uint64_t>& missing,
                                     absl::Span<const RowStalenessCounts> segments)>;
  Settled settled;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_TABLE_PUSH_H_
