#ifndef TANDEM_BASE_IPC_HOST_IDENTITY_H_
#define TANDEM_BASE_IPC_HOST_IDENTITY_H_

#include <string>

namespace tandem::ipc {

// Equal for processes that can share memory over an abstract unix socket: differs between machines and
// between containers with network namespaces of their own.
std::string HostIdentity();

}  // namespace tandem::ipc

#endif  // TANDEM_BASE_IPC_HOST_IDENTITY_H_
