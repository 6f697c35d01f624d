// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_GROUP_GLOBAL_RANKS_H_
#define TANDEM_COLLECTIVES_GROUP_GLOBAL_RANKS_H_

// Backends name the ranks of their group. Users know their processes by the ranks of the job (global ranks),
// so these functions translate the errors of a subgroup.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/backend.h"

namespace tandem::collectives {

// Returns `error` with global ranks: "rank 1 was lost" becomes "rank 5 was lost (global ranks; the group has
// ranks 3 and 5)". global_ranks[r] is the global rank of rank r. What an aborting rank has said (behind
// "aborted") stays, because that rank has translated it. Returns the error as it is if the ranks are the
// same, if it names none, or if it was translated already.
absl::Status NameGlobalRanks(const absl::Status& error, absl::Span<const int> global_ranks);

// Returns a backend that passes everything on to `backend`, and its errors through NameGlobalRanks; `backend`
// itself if the ranks are the same.
std::unique_ptr<Backend> WithGlobalRanks(std::unique_ptr<Backend> backend, std::vector<int> global_ranks);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_GLOBAL_RANKS_H_
