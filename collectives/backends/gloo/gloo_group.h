#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_GLOO_GROUP_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_GLOO_GROUP_H_

// A process group over Gloo's transport.
//
// Every operation begins with one round in which all ranks send each other a message: what they are about to
// do (operation, type, count, root, sequence number) and, up to 256 KiB, the data. So a rank that calls
// something else, or with another size, is found before any memory of a size it did not expect is touched, on
// all ranks, always; Gloo's own collectives would abort the process. Small operations are over after that
// round; larger ones go on to direct transfers. Every operation synchronises all ranks.
//
// All-reduce: up to 64 KiB (times peers) each rank gets all vectors and reduces them itself; above, rank r
// reduces the r-th slice and sends it to all. Both add in rank order, so the bits depend neither on size nor
// on timing. With P ranks each sends P - 1 messages a round: made for the few tens of workers of a
// data-parallel job.

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/process_group.h"

namespace tandem::collectives {

// options.world_size is at least 2. `store` must outlive the group.
absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectGlooGroup(Store* store,
                                                               const ProcessGroupOptions& options);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_GLOO_GROUP_H_
