// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_SETUP_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_SETUP_H_

// SegmentSetup lets the ranks of a group share one segment. Rank 0 creates it and listens on a unix socket
// with a random abstract name, which vanishes with its process. It publishes the name and a secret through
// the store. Each other rank connects, presents the secret and receives the descriptor of the memory. When
// all ranks have mapped it, rank 0 tells all of them so, or why it failed. The connections stay open: the end
// of a connection indicates a death.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ipc/descriptor.h"
#include "collectives/backend.h"
#include "collectives/backends/shm/segment.h"

namespace tandem::collectives::shm {

// A connection whose end means that `rank`'s process has ended.
struct Watched {
  int rank;
  ipc::Descriptor socket;
};

struct SegmentSetup {
  std::shared_ptr<Segment> segment;
  // Rank 0 watches all other ranks, and they watch rank 0; ranks of the same process are not watched.
  std::vector<Watched> watched;
};

// Checks whether these ranks can share memory, as far as is known before trying: FailedPrecondition naming
// two ranks on different hosts, or too many ranks.
absl::Status CheckViable(const BackendOptions& options);

// Blocks until all ranks share a segment, at most until options.deadline. Errors are the same on all ranks
// that connected: DeadlineExceeded naming the ranks that did not come; FailedPrecondition naming what a
// rank's kernel or container refused; Unavailable naming a rank that died.
absl::StatusOr<SegmentSetup> SetUpSegment(const BackendOptions& options);

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_SETUP_H_
