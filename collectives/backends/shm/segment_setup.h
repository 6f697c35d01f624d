#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_SETUP_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_SETUP_H_

// How the ranks of a group come to share one segment. Rank 0 makes it and listens on a unix socket of a
// random abstract name (it vanishes with its process, however that ends), published through the store with a
// secret; each other rank connects, shows the secret and is passed the descriptor of the memory. When all
// have mapped it, rank 0 says so to all, or says why not. The connections stay open: the end of one tells of
// a death.

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
  // Rank 0 watches all others, they watch rank 0; nobody those of its own process.
  std::vector<Watched> watched;
};

// Whether these ranks can share memory as far as is known before trying: FailedPrecondition naming two ranks
// on different hosts, or too many ranks.
absl::Status CheckViable(const BackendOptions& options);

// Blocks until all ranks share a segment, at most until options.deadline. Errors, the same on all ranks that
// got as far as to connect: DeadlineExceeded naming the ranks that did not come; FailedPrecondition naming
// what a rank's kernel or container refused; Unavailable naming a rank that died.
absl::StatusOr<SegmentSetup> SetUpSegment(const BackendOptions& options);

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_SEGMENT_SETUP_H_
