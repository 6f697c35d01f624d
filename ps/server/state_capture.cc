// SPDX-License-Identifier: Apache-2.0
#include "ps/server/state_capture.h"

#include <utility>

#include "base/status.h"

namespace tandem::ps {

std::vector<uint32_t> OwnBuckets(const TableRegistry& tables) {
  std::vector<uint32_t> buckets;
  const ShardMap& map = tables.shard_map();
  for (uint32_t b = 0; b < map.num_buckets(); ++b) {
    if (map.OwnerOfBucket(b) == tables.server()) buckets.push_back(b);
  }
  return buckets;
}

v1::SnapshotState StateCapture::CaptureState(uint64_t position) {
  v1::SnapshotState state;
  state.set_position(position);
  const ShardMap& map = server_.tables->shard_map();
  state.set_server_index(server_.tables->server());
  state.set_num_servers(map.num_servers());
  state.set_num_buckets(map.num_buckets());
  tables_ = server_.tables->All();
  for (const auto& table : tables_) table->SaveSnapshot(state.add_tables());
  *state.mutable_fences() = server_.requests->SaveFenceState();
  for (const auto& [name, rank] : server_.registered()) {
    v1::LogRegister* to = state.add_registered();
    to->set_name(name);
    to->set_rank(rank);
  }
  return state;
}

absl::StatusOr<std::vector<BucketCopy>> StateCapture::CopyBucket(uint32_t bucket, uint64_t position) const {
  std::vector<BucketCopy> copies;
  for (size_t t = 0; t < tables_.size(); ++t) {
    ServerTable& table = *tables_[t];
    TANDEM_ASSIGN_OR_RETURN(BucketCopy copy,
                            BucketCopy::Of(*table.storage(), static_cast<uint32_t>(t), bucket));
    copy.SetPosition(position, table.QueuedLogPositions());
    copies.push_back(std::move(copy));
  }
  return copies;
}

}  // namespace tandem::ps
