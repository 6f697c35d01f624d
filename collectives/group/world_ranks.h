// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_GROUP_WORLD_RANKS_H_
#define TANDEM_COLLECTIVES_GROUP_WORLD_RANKS_H_

// Errors of a subgroup name its own ranks. Users know their processes by the ranks of the world, so these
// functions add them.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/backend.h"

namespace tandem::collectives {

// Returns `error` with the world's rank of each rank of the group that the message names: "... rank 1 was
// lost (rank 1 of this group is rank 5 of the world)". global_ranks[r] is the world's rank of rank r. Returns
// the error as it is if the ranks are the same, if it names none, or if they have been added already.
absl::Status AddWorldRanks(const absl::Status& error, absl::Span<const int> global_ranks);

// Returns a backend that passes everything on to `backend`, and its errors through AddWorldRanks; `backend`
// itself if the ranks are the same.
std::unique_ptr<Backend> WithWorldRanks(std::unique_ptr<Backend> backend, std::vector<int> global_ranks);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_WORLD_RANKS_H_
