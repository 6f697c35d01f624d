// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_TCP_MESH_CONNECTOR_H_
#define TANDEM_COLLECTIVES_BACKENDS_TCP_MESH_CONNECTOR_H_

// Connects the ranks of a group over TCP: each rank listens, publishes its address in the store, connects to
// the lower ranks and accepts the higher ones. Both sides show their certificates in a handshake of TLS, then
// announce their rank and group.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/crypto/tls_socket.h"
#include "base/ipc/descriptor.h"
#include "cluster/store/store.h"
#include "rpc/security/job_key.h"

namespace tandem::collectives::tcp {

// A connection to another rank.
struct MeshSocket {
  ipc::Descriptor socket;  // connected and non-blocking
  // Encrypts the socket's bytes; nullptr: they are in clear. It uses the number of the descriptor, which must
  // stay open as long as it is used.
  std::unique_ptr<crypto::TlsSocket> tls;
};

// Returns the connections by rank (none for this rank). Blocks until all are connected, or until `deadline`.
// `key`: nullptr means rpc::ProcessKey(). Keys of the store: "address/<rank>".
//
// Connections are encrypted, except if rpc::TrustedNetwork(), and if both ends have the same address: then
// nobody but this machine's kernel sees the bytes, and TLS ends when both ranks have shown that they have the
// key. Errors:
//
//   - InvalidArgument: `address` is not numeric
//   - DeadlineExceeded, naming the ranks that did not come
//   - PermissionDenied, naming a rank that has another key
//   - Unavailable: cannot listen there, or naming a rank that refuses
//   - those of the store and of rpc::ProcessKey
absl::StatusOr<std::vector<MeshSocket>> ConnectMesh(cluster::Store* store, const std::string& group, int rank,
                                                    int world_size, const std::string& address,
                                                    absl::Time deadline,
                                                    std::shared_ptr<const rpc::JobKey> key = nullptr);

}  // namespace tandem::collectives::tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_TCP_MESH_CONNECTOR_H_
