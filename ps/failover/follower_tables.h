// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_FOLLOWER_TABLES_H_
#define TANDEM_PS_FAILOVER_FOLLOWER_TABLES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ps/failover/receiver.h"
#include "ps/log/record.h"
#include "ps/server/server_parts.h"
#include "ps/server/state_restore.h"

namespace tandem::ps {

// Applies what a follower receives to the tables of its server. A state drops what was there. Clear must not
// be called while the receiver applies.
class FollowerTables : public ReceivedRecords {
 public:
  // `server` must outlive the object.
  explicit FollowerTables(const ServerParts* server) : server_(*server) {}

  // Drops the tables, fences and ranks.
  void Clear();
  // Takes the tables of the server as they are, because it was the primary, for records to come.
  void Adopt();

  // Errors, after which the tables cannot be used: those of StateRestore; FailedPrecondition, which names
  // both sides, if the state is of another shard or another number of servers or buckets; DataLoss if a
  // record does not parse.
  absl::Status Apply(const Record& record, const std::shared_ptr<const void>& memory) override;
  absl::Status Complete() override;

 private:
  absl::Status ApplyState(const Record& record);
  // Raises the generations of the tables above those of the primary, so that they grow with each takeover.
  absl::Status ApplyContinue(const Record& record);

  const ServerParts& server_;
  std::optional<StateRestore> restore_;  // empty before the state has come
  std::vector<uint32_t> row_floats_;     // by table
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_FOLLOWER_TABLES_H_
