// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_RANKS_H_
#define TANDEM_COLLECTIVES_RANKS_H_

// Ranks in messages.

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::collectives {

// Returns "rank 1", "ranks 1, 3 and 4", or "no rank".
std::string NameRanks(absl::Span<const int> ranks);

// Replaces the rank numbers 0, 1, ... in `text` by `names`: "rank 1" becomes "rank 5", "ranks 0 and 1 of 3"
// becomes "ranks 2 and 5" if there are 3 names. Numbers outside `names` and the names of groups (group 'rank
// 1') stay.
std::string RenameRanks(absl::string_view text, absl::Span<const int> names);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RANKS_H_
