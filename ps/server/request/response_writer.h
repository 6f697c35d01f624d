// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_REQUEST_RESPONSE_WRITER_H_
#define TANDEM_PS_SERVER_REQUEST_RESPONSE_WRITER_H_

// The last stage of a pull or push: reads rows, writes the response and finishes the call.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "ps/row_staleness.h"
#include "ps/server/request/bind.h"
#include "ps/server/request/split_push.h"
#include "ps/server/table/statistics.h"
#include "ps/server/table/update_position.h"
#include "rpc/service.h"

namespace tandem::ps {

// Says which copy of the shard answers a pull.
struct PullAnswerer {
  bool follower = false;
  absl::Duration lag;  // of a follower: v1::PullResponse.lag_us
};

// Reads the rows that `request` asks for and finishes `call` with them. Creates absent rows where the table
// admits every id, unless the pull is read-only. Counts the pull in its tables' statistics. An error of a
// table finishes the call; some rows may then have been created.
//
// The rows go straight into the transport's memory if it provides any (rpc::ServerCall::ResponseMemory). A
// long response without pooled or conditional slices, of tables without rows on disk, is written in chunks
// while it is sent: `call` and `buffers` are then used until the last chunk. Other responses are written at
// once into memory of `buffers`.
void RespondToPull(BoundRequest request, std::shared_ptr<rpc::ServerCall> call,
                   TableCounters::Clock::time_point arrived, BufferPool* buffers,
                   const PullAnswerer& answerer = {});

// Responds to one push. The push has one part for each table; the response is sent when every part is either
// applied or accepted to wait for other pushes. Shared by the parts. AddRowStaleness and Settle are
// thread-safe; the other functions may be called only before the first part is queued.
class PushResponder {
 public:
  PushResponder(std::shared_ptr<rpc::ServerCall> call, size_t parts)
      : call_(std::move(call)), unsettled_(parts) {}

  // Server 0: tells the client where GBA tables have put the push. positions[i] is that of the part for
  // tables[i]. Adds nothing if no table is GBA.
  void SetPositions(const BoundRequest& request, absl::Span<const std::shared_ptr<ServerTable>> tables,
                    absl::Span<const UpdatePosition> positions);
  // Finishes the call of a push that was taken before.
  void FinishDuplicate();
  // Reports the row staleness of a part's segments, before its Settle. `slices` tells to which slices of the
  // request, which has `num_slices`, they belong; `segments` may be empty.
  void AddRowStaleness(int num_slices, absl::Span<const SliceSegments> slices,
                       absl::Span<const RowStalenessCounts> segments);
  // Reports the end of one part: the number of its gradients that had no row, or the table's error. The last
  // part finishes the call, with the first error if there was any.
  void Settle(const absl::StatusOr<uint64_t>& missing_rows);

 private:
  const std::shared_ptr<rpc::ServerCall> call_;
  std::atomic<size_t> unsettled_;
  // Without missing_rows. mutex_ guards row_staleness until the last Settle.
  v1::PushResponse response_;
  std::atomic<uint64_t> missing_rows_{0};
  absl::Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_REQUEST_RESPONSE_WRITER_H_
