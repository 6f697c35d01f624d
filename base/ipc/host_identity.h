// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_IPC_HOST_IDENTITY_H_
#define TANDEM_BASE_IPC_HOST_IDENTITY_H_

#include <string>

namespace tandem::ipc {

// Returns a name that is equal for processes which can share memory over an abstract unix socket. It differs
// between machines, and between containers with their own network namespaces.
std::string HostIdentity();

}  // namespace tandem::ipc

#endif  // TANDEM_BASE_IPC_HOST_IDENTITY_H_
