// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_RANKS_H_
#define TANDEM_COLLECTIVES_RANKS_H_

// Formats ranks for messages.

#include <string>

#include "absl/types/span.h"

namespace tandem::collectives {

// Returns "rank 1", "ranks 1, 3 and 4", or "no rank".
std::string NameRanks(absl::Span<const int> ranks);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RANKS_H_
