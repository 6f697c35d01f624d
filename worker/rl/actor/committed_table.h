// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ACTOR_COMMITTED_TABLE_H_
#define TANDEM_WORKER_RL_ACTOR_COMMITTED_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "replay/client/replay.h"
#include "weights/client/publisher.h"

namespace tandem::rl {

// A replay table to which a publisher of weights commits its versions, so that publishing paces the actors.
// The versions' items_consumed are those of this table. Thread-safe.
//
//   CommittedTable table(&replay, "queue");
//   auto publisher = weights::Publisher::Create(&weights, {.model = "policy", .commit_to = &table},
//   deadline);
class CommittedTable : public weights::VersionReceiver {
 public:
  // `replay` must outlive this object. The learner must sample through the same object (RemoteReplay).
  CommittedTable(replay::Replay* replay, std::string table) : replay_(replay), table_(std::move(table)) {}

  // Returns the number of the version that the table knows; 0: none. Errors: those of Replay::Info.
  absl::StatusOr<uint64_t> Head(absl::Time deadline) override {
    TANDEM_ASSIGN_OR_RETURN(const replay::TableInfo info, replay_->Info(table_, deadline));
    if (!info.staleness.head) return uint64_t{0};
    return static_cast<uint64_t>(std::max<int64_t>(0, info.staleness.head->version));
  }
  // Errors: those of Replay::Commit.
  absl::Status Commit(const weights::ModelVersion& version, const weights::PublishInfo& info,
                      absl::Time deadline) override {
    return replay_->Commit(table_,
                           {.epoch = version.epoch,
                            .version = static_cast<int64_t>(version.number),
                            .items_consumed = info.items_consumed},
                           deadline);
  }

 private:
  replay::Replay* const replay_;
  const std::string table_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ACTOR_COMMITTED_TABLE_H_
