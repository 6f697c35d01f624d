// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/unix_buffers.h"

#include <sys/socket.h>

#include "grpc/support/sync.h"
#include "grpcpp/version_info.h"

// gRPC's channel arguments accept a grpc_socket_mutator, but its public headers do not define it. This is the
// definition in gRPC 1.51.
#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51

struct grpc_mutate_socket_info {
  int fd;
  int usage;
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
namespace {

constexpr int kBytes = 2 << 20;

bool Widen(int fd, grpc_socket_mutator*) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX) {
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kBytes, sizeof(kBytes));
  }
  return true;  // smaller buffers are only slower
}
bool WidenAny(const grpc_mutate_socket_info* info, grpc_socket_mutator* mutator) {
  return Widen(info->fd, mutator);
}
int Same(grpc_socket_mutator*, grpc_socket_mutator*) { return 0; }
void Delete(grpc_socket_mutator* mutator) { delete mutator; }

constexpr grpc_socket_mutator_vtable kWidening = {&Widen, &Same, &Delete, &WidenAny};

}  // namespace

void WidenUnixSockets(grpc::ChannelArguments* arguments) {
  auto* const mutator = new grpc_socket_mutator;
  grpc_socket_mutator_init(mutator, &kWidening);
  arguments->SetSocketMutator(mutator);  // takes ownership
}

}  // namespace tandem::rpc

#else

namespace tandem::rpc {
void WidenUnixSockets(grpc::ChannelArguments*) {}
}  // namespace tandem::rpc

#endif
