// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_CONNECT_RANK_EXCHANGE_H_
#define TANDEM_COLLECTIVES_CONNECT_RANK_EXCHANGE_H_

// Exchanges facts about the ranks of a group through the store, before any rank opens a connection to
// another.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/store/store.h"
#include "collectives/backend.h"

namespace tandem::collectives {

// A rank's facts about itself, and the settings that all ranks must share.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  RankEndpoint self;
  std::string machine;  // ipc::HostIdentity(), even if self.host is another
  std::string backend;  // as requested
  std::string debug;    // the debug level's name
  std::string members;  // the group's ranks, as ranks of the first group
};

// Announces this rank under "rank/<rank>" of `store`, which is the group's alone, and waits until all ranks
// have come. `deadline` bounds the wait. `timeout`, of which a part may be over already, only appears in
// messages. Returns the ranks' endpoints by rank. Errors:
//
//   - DeadlineExceeded naming the absent ranks
//   - AlreadyExists if another process holds this rank
//   - InvalidArgument naming a rank that expects another world size, backend, debug level or other members,
//     or one whose loopback address ranks on other hosts could not reach
absl::StatusOr<std::vector<RankEndpoint>> ExchangeRankInfo(cluster::Store* store, const RankInfo& me,
                                                           absl::Time deadline, absl::Duration timeout);

// Shares this rank's result of `step` (a name used once in a group's store) with all ranks. Returns OK if all
// succeeded. Otherwise returns the first error by rank, the same on all ranks, with its code: "rank 2: ...".
// DeadlineExceeded names the ranks that did not report before `deadline`.
absl::Status AgreeOnStatus(cluster::Store* store, absl::string_view step, int rank, int world_size,
                           const absl::Status& mine, absl::Time deadline);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CONNECT_RANK_EXCHANGE_H_
