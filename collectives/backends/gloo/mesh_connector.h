#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_MESH_CONNECTOR_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_MESH_CONNECTOR_H_

// How the ranks of a group find each other over TCP: each listens, says where in the store, connects to the
// lower ranks and is connected to by the higher; both sides say which rank of which group they are.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"
#include "collectives/store/store.h"

namespace tandem::collectives::gloo_tcp {

// Connected, non-blocking sockets by rank (own: none). Blocks until all are connected, or `deadline`. Keys:
// "address/<rank>". Errors: InvalidArgument (`address` is not numeric), DeadlineExceeded naming the ranks
// that did not come, Unavailable (cannot listen there; a rank that refuses, named), errors of the store.
absl::StatusOr<std::vector<ipc::Descriptor>> MeetOverTcp(Store* store, const std::string& group, int rank,
                                                         int world_size, const std::string& address,
                                                         absl::Time deadline);

}  // namespace tandem::collectives::gloo_tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_MESH_CONNECTOR_H_
