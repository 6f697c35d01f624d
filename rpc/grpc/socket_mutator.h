// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_SOCKET_MUTATOR_H_
#define TANDEM_RPC_GRPC_SOCKET_MUTATOR_H_

// gRPC's channel arguments accept a grpc_socket_mutator, which sees every socket before gRPC uses it, but
// gRPC's public headers do not define it. This is the definition in gRPC 1.51. Only used in rpc/grpc.

#include "grpc/support/sync.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/version_info.h"

#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51
#define TANDEM_GRPC_SOCKET_MUTATOR 1

struct grpc_mutate_socket_info {
  int fd;
  int usage;  // one of tandem::rpc::SocketUsage
};
struct grpc_socket_mutator_vtable {
  bool (*mutate_fd)(int fd, grpc_socket_mutator* mutator);
  int (*compare)(grpc_socket_mutator* a, grpc_socket_mutator* b);
  void (*destroy)(grpc_socket_mutator* mutator);
  bool (*mutate_fd_2)(const grpc_mutate_socket_info* info, grpc_socket_mutator* mutator);
};
struct grpc_socket_mutator {
  const grpc_socket_mutator_vtable* vtable;
  gpr_refcount refcount;
};
void grpc_socket_mutator_init(grpc_socket_mutator* mutator, const grpc_socket_mutator_vtable* vtable);

namespace tandem::rpc {
enum SocketUsage { kClientConnection = 0, kServerListener = 1, kServerConnection = 2 };
}  // namespace tandem::rpc

#else
#define TANDEM_GRPC_SOCKET_MUTATOR 0
#endif

#endif  // TANDEM_RPC_GRPC_SOCKET_MUTATOR_H_
