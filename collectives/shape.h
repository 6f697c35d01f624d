// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_SHAPE_H_
#define TANDEM_COLLECTIVES_SHAPE_H_

// Checks of counts, roots and ranks for backends that hand counts and addresses to libraries which would not
// check them. They repeat checks that ProcessGroup has made. Pure functions.

#include "absl/status/status.h"
#include "collectives/operation.h"

namespace tandem::collectives {

inline bool Reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}
inline bool IsPointToPoint(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }

// Checks that rank `rank` of `world_size` may run the collective: the root exists, there is one part for each
// rank, and this rank's counts fit each other. InvalidArgument says which condition is violated.
absl::Status CheckCollective(const Operation& operation, int rank, int world_size);

// Checks that a send or recv names another rank (or, for recv, kAnySource).
absl::Status CheckPointToPoint(const Operation& operation, int rank, int world_size);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_SHAPE_H_
