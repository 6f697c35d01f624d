// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/unix_buffers.h"

#include <sys/socket.h>

#include "rpc/grpc/socket_mutator.h"

namespace tandem::rpc {

void WidenUnixSocket(int fd) {
  constexpr int kBytes = 2 << 20;
  int domain = 0;
  socklen_t size = sizeof(domain);
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX) {
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kBytes, sizeof(kBytes));
  }
}

#if TANDEM_GRPC_SOCKET_MUTATOR

namespace {

bool Widen(int fd, grpc_socket_mutator*) {
  WidenUnixSocket(fd);
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

#else

void WidenUnixSockets(grpc::ChannelArguments*) {}

#endif

}  // namespace tandem::rpc
