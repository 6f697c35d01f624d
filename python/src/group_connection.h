// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_GROUP_CONNECTION_H_
#define TANDEM_PYTHON_SRC_GROUP_CONNECTION_H_

// The rendezvous of process groups that Python makes. No function needs the GIL.

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/store/remote_store.h"
#include "collectives/process_group.h"

namespace tandem::python {

// Returns the address ("host:port") of this process's store server. Starts it at the first call, at a port
// that the kernel picks. The server lives until the process ends. `local`: only processes of this machine
// reach it. Otherwise it listens at the interface that TANDEM_INTERFACE names, or at the address to which
// this machine's name resolves. Thread-safe.
absl::StatusOr<std::string> ServeGroupStore(bool local);

// A process group with the connection to its store.
struct GroupConnection {
  std::unique_ptr<cluster::RemoteStore> store;  // null in a world of one
  std::unique_ptr<collectives::ProcessGroup> group;
};

// Connects to the other ranks through the store at `address` (unused in a world of one). Blocks as
// InitProcessGroup does, and ends soon with Cancelled once *cancelled is set.
absl::StatusOr<GroupConnection> ConnectGroup(const std::string& address,
                                             collectives::ProcessGroupOptions options,
                                             std::shared_ptr<std::atomic<bool>> cancelled);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_GROUP_CONNECTION_H_
