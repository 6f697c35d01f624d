// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_SHARDS_H_
#define TANDEM_CLI_MONITOR_SHARDS_H_

// Looks at the copies of a job's shards from outside: what the job's store says of them, and what each says
// of itself.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::cli {

// A copy that the placement document names, or a learner that its primary names.
struct CopyReport {
  tandem::v1::Replica replica;
  absl::Status status;  // of the question; `told` is empty unless it is OK
  tandem::v1::ReplicaStatus told;
};

struct ShardReport {
  uint32_t shard = 0;
  tandem::v1::ShardPlacement placement;  // version 0: the shard has none yet
  std::vector<CopyReport> copies;        // the primary first; then followers in sync, then learners

  // Returns the primary that the document names, if it says that it is that and serves; else nullptr.
  const CopyReport* Primary() const;
  // Returns "ok", "no follower in sync", or why there is no primary.
  std::string State() const;
};

// Reads the placement documents in the store at "host:port" and asks all copies, concurrently. `num_servers`
// is the number of shards, as far as it is known. Each call blocks for at most `timeout`. Returns Unavailable
// if the store does not respond, and NotFound if the job's servers have no followers.
absl::StatusOr<std::vector<ShardReport>> AskShards(const std::string& store, uint32_t num_servers,
                                                   absl::Duration timeout);

// Returns a table with one line for each shard.
std::string ShardsToText(const std::vector<ShardReport>& shards);
// Returns one JSON object. docs/durability.md describes the fields.
std::string ShardsToJson(const std::vector<ShardReport>& shards);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_SHARDS_H_
