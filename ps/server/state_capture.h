// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_STATE_CAPTURE_H_
#define TANDEM_PS_SERVER_STATE_CAPTURE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ps/server/server_parts.h"
#include "ps/server/table/server_table.h"
#include "ps/snapshot/snapshot_file.h"
#include "tandem/v1/durability.pb.h"

namespace tandem::ps {

// Returns the buckets of this server, in ascending order.
std::vector<uint32_t> OwnBuckets(const TableRegistry& tables);

// Copies the state of a server into memory while it serves, for a snapshot (durability.h) or a follower
// (ps/failover/copying.h): first everything but the rows, then one bucket after the other, each at a moment
// without a push under way. The buckets are therefore of different positions of the log, and say so.
// StateRestore brings the state back. One thread at a time.
class StateCapture {
 public:
  // `server` must outlive the object.
  explicit StateCapture(const ServerParts* server) : server_(*server) {}

  // Returns everything but the rows. Must be called within RequestHandler::BetweenPushes, once. `position` is
  // that of the last record of the log, read before this call: an epoch or a rank that is given meanwhile is
  // in the log as well, and giving it again changes nothing.
  v1::SnapshotState CaptureState(uint64_t position);
  // Returns the rows of a bucket of all tables that CaptureState has found. Must be called within
  // RequestHandler::BetweenPushes; `position` as above. Errors are those of TableStorage::VisitBucket.
  absl::StatusOr<std::vector<BucketCopy>> CopyBucket(uint32_t bucket, uint64_t position) const;

  // Returns whether CaptureState has found a table.
  bool has_tables() const { return !tables_.empty(); }

 private:
  const ServerParts& server_;
  std::vector<std::shared_ptr<ServerTable>> tables_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_STATE_CAPTURE_H_
