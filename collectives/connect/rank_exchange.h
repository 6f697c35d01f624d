#ifndef TANDEM_COLLECTIVES_CONNECT_RANK_EXCHANGE_H_
#define TANDEM_COLLECTIVES_CONNECT_RANK_EXCHANGE_H_

// The ranks of a group meet in the store, before any of them opens a connection to another.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/backend.h"
#include "collectives/store/store.h"

namespace tandem::collectives {

// What a rank says about itself, and what all must say alike.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  Peer self;
  std::string machine;  // ipc::HostIdentity(), whatever self.host says
  std::string backend;  // as requested
  std::string debug;    // the debug level's name
  std::string members;  // the group's ranks, as ranks of the first group
};

// Announces this rank under "rank/<rank>" of `store`, which is the group's alone, and waits until all ranks
// have come, until `deadline`: the end of the `timeout` that the caller was given, some of which may be spent
// already, and which messages name. Everybody's Peer, by rank. Errors: DeadlineExceeded naming the absent
// ranks; AlreadyExists when another process holds this rank; InvalidArgument naming a rank that expects
// another world size, backend, debug level or other members, or one whose loopback address ranks on other
// hosts could not reach.
absl::StatusOr<std::vector<Peer>> Meet(Store* store, const RankInfo& me, absl::Time deadline,
                                       absl::Duration timeout);

// Everybody says whether it could do `step` (a name used once in a group's store), and hears the others: OK
// if all could. Otherwise the first refusal by rank, on all ranks, with its code: "rank 2: ...".
// DeadlineExceeded names the ranks that said nothing until `deadline`.
absl::Status AgreeOnStatus(Store* store, absl::string_view step, int rank, int world_size, const absl::Status& mine,
                     absl::Time deadline);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CONNECT_RANK_EXCHANGE_H_
