#ifndef TANDEM_COLLECTIVES_SHAPE_H_
#define TANDEM_COLLECTIVES_SHAPE_H_

// What ProcessGroup has looked at already, looked at once more by backends that hand counts and addresses to
// libraries which would follow them anywhere. Pure functions.

#include "absl/status/status.h"
#include "collectives/operation.h"

namespace tandem::collectives {

inline bool Reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}
inline bool IsPointToPoint(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }

// Whether rank `rank` of `world_size` may run the collective: a root that exists, one part for each rank, own
// counts that fit each other. InvalidArgument says what does not.
absl::Status CheckCollective(const Operation& operation, int rank, int world_size);

// Whether a send or recv names another rank (or, for recv, any).
absl::Status CheckPointToPoint(const Operation& operation, int rank, int world_size);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_SHAPE_H_
