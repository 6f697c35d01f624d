// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_TCP_MESH_CONNECTOR_H_
#define TANDEM_COLLECTIVES_BACKENDS_TCP_MESH_CONNECTOR_H_

// Connects the ranks of a group over TCP: each rank listens, publishes its address in the store, connects to
// the lower ranks and accepts the higher ones. Both sides announce their rank and group.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"
#include "cluster/store/store.h"

namespace tandem::collectives::tcp {

// Returns connected, non-blocking sockets by rank (none for this rank). Blocks until all are connected, or
// until `deadline`. Keys: "address/<rank>". Errors: InvalidArgument (`address` is not numeric),
// DeadlineExceeded naming the ranks that did not come, Unavailable (cannot listen there, or naming a rank
// that refuses), errors of the store.
absl::StatusOr<std::vector<ipc::Descriptor>> ConnectMesh(cluster::Store* store, const std::string& group,
                                                         int rank, int world_size, const std::string& address,
                                                         absl::Time deadline);

}  // namespace tandem::collectives::tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_TCP_MESH_CONNECTOR_H_
