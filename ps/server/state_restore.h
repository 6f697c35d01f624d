// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_STATE_RESTORE_H_
#define TANDEM_PS_SERVER_STATE_RESTORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "ps/log/record.h"
#include "ps/server/server_parts.h"
#include "ps/server/table/replay_filter.h"
#include "ps/snapshot/snapshot_file.h"
#include "tandem/v1/durability.pb.h"

namespace tandem::ps {

// Returns FailedPrecondition, which names both sides and ends with `remedy`, unless `header`, a
// LogSegmentHeader or SnapshotState from `source`, is of the server that `tables` belongs to.
template <typename Header>
absl::Status CheckOwner(absl::string_view source, const Header& header, const TableRegistry& tables,
                        absl::string_view remedy) {
  const ShardMap& map = tables.shard_map();
  if (header.server_index() == tables.server() && header.num_servers() == map.num_servers() &&
      header.num_buckets() == map.num_buckets()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(source, " is of server ", header.server_index(), " of ", header.num_servers(), " with ",
                   header.num_buckets(), " buckets, and this is server ", tables.server(), " of ",
                   map.num_servers(), " with ", map.num_buckets(), ": ", remedy));
}

// Returns the error after which a table is damaged, if there is one (TableStorage::CheckWhole).
absl::Status CheckWhole(const TableRegistry& tables);

// Brings a server to the state that StateCapture has captured, and replays the log behind it: from files
// (ps/server/recovery.cc), or as a follower gets it from its primary (ps/failover). Replaying leaves out what
// the rows of a bucket contain already (ReplayFilter). One thread at a time. The server must not take pushes
// or other changes meanwhile. After an error the server's state cannot be used.
class StateRestore {
 public:
  enum class Origin {
    // A snapshot and a log: all buckets come before the first record of the log. A push that cannot be
    // repeated
    // is left out, with an error in the process's log.
    kFiles,
    // The stream of a primary: a bucket comes right behind the record whose position it has. A push that
    // cannot
    // be repeated is an error, because the primary has applied it.
    kPrimary,
  };
  // `server` must outlive the object. `source` names the origin of the state in messages.
  StateRestore(const ServerParts* server, Origin origin, std::string source)
      : server_(*server), origin_(origin), source_(std::move(source)) {}

  // Creates the tables, and restores everything but the rows.
  absl::Status RestoreState(const v1::SnapshotState& state);
  // Begins or continues to restore a bucket. Returns a function that restores one of its rows.
  //
  // Aborted, only with kPrimary: the captured rows lack a push that this server has applied already, because
  // the two have formed other updates of a GBA table from the same pushes. Another copy may succeed.
  absl::StatusOr<RestoreRow> RestoreBucket(const v1::SnapshotBucket& bucket);
  // Repeats a record of the log. FailedPrecondition: its kind is unknown. `record.body` is valid as long as a
  // copy of `memory` exists; nullptr: during the call.
  absl::Status Replay(const Record& record, const std::shared_ptr<const void>& memory = nullptr);
  // Returns the largest position of a bucket; 0 if there is none.
  uint64_t contained() const;
  // Returns DataLoss, which names a bucket, unless all buckets were restored.
  absl::Status CheckComplete() const;
  // Declares that no more rows come: RestoreBucket, `contained` and CheckComplete must not be called any
  // more. The object then keeps no table alive that is dropped.
  void EndRows();

 private:
  absl::Status RestoreTable(const v1::SnapshotTable& saved);

  const ServerParts& server_;
  const Origin origin_;
  const std::string source_;
  // By index in SnapshotState.
  std::vector<std::shared_ptr<TableStorage>> storage_;
  std::vector<std::shared_ptr<ReplayFilter>> filters_;
  std::vector<std::shared_ptr<ServerTable>> tables_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_STATE_RESTORE_H_
