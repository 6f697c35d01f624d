// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/server/connection_limit.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ipc/unix_socket.h"
#include "base/logging.h"
#include "rpc/grpc/grpc_library.h"
#include "rpc/grpc/socket_mutator.h"
#include "rpc/grpc/unix_buffers.h"

namespace tandem::rpc {
namespace {

// The clients that are refused at once when the limit is reached. More wait for the next event.
constexpr int kRefusedAtOnce = 1024;
constexpr absl::Duration kBetweenWarnings = absl::Minutes(1);

// Returns the frames with which an HTTP/2 server refuses a connection: empty SETTINGS, then GOAWAY with the
// code ENHANCE_YOUR_CALM and a text (RFC 9113, 6.5 and 6.8).
std::string RefusalFrames(const std::string& text) {
  const auto header = [](size_t size, char type) {
    return std::string({static_cast<char>(size >> 16), static_cast<char>(size >> 8), static_cast<char>(size),
                        type, 0, 0, 0, 0, 0});
  };
  const std::string goaway = absl::StrCat(std::string({0, 0, 0, 0, 0, 0, 0, 11}), text);
  return absl::StrCat(header(0, 4), header(goaway.size(), 7), goaway);
}

// The alert "internal error" (RFC 8446, 6), with which a TLS server refuses a connection before the
// handshake.
constexpr absl::string_view kRefusalAlert("\x15\x03\x03\0\x02\x02\x50", 7);

// Returns " (port N)", or "" if `fd` is no TCP socket.
std::string PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  if (address.ss_family == AF_INET)
    return absl::StrCat(" (port ", ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port), ")");
  if (address.ss_family == AF_INET6)
    return absl::StrCat(" (port ", ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port), ")");
  return "";
}

bool IsUnixSocket(int fd) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

// Returns 0 if `fd` is not open. ThreadSanitizer would take fstat for a use of the descriptor. It does
// not see gRPC close it, so it would report a race with the next use of its number.
uint64_t InodeOf(int fd) {
  struct statx about = {};
  return ::statx(fd, "", AT_EMPTY_PATH, STATX_INO, &about) == 0 ? about.stx_ino : 0;
}

}  // namespace

size_t EffectiveConnections(size_t wanted) {
  rlimit descriptors = {};
  if (wanted == 0) wanted = kDefaultConnections;
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0 || descriptors.rlim_cur == RLIM_INFINITY) return wanted;
  return std::clamp<size_t>(descriptors.rlim_cur / 4 * 3, 1, wanted);
}

absl::Status CheckLimitWorks(size_t wanted, bool known) {
  if (known || wanted == 0) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "connections cannot be limited (ServerOptions::max_connections, --max-connections): Tandem is built "
      "with gRPC ",
      GrpcVersion(),
      ", whose sockets it does not know, and has this limit with gRPC 1.51 only. Leave the option "
      "out, and limit the connections by a firewall"));
}

ConnectionLimit::ConnectionLimit(std::string server, size_t limit, bool tls,
                                 std::shared_ptr<RequestMemory> memory)
    : server_(std::move(server)),
      limit_(limit),
      memory_(std::move(memory)),
      reason_(tls ? std::string(kRefusalAlert)
                  : RefusalFrames(absl::StrCat("the server has ", limit_,
                                               " connections, which is its limit "
                                               "(ServerOptions::max_connections)"))) {}

void ConnectionLimit::AddListener(int fd) {
  absl::MutexLock lock(&mutex_);
  listeners_.push_back({fd, InodeOf(fd)});
}

void ConnectionLimit::AddConnection(int fd) {
  WidenUnixSocket(fd);
  if (IsUnixSocket(fd)) {
    if (const absl::Status same = ipc::CheckSameUser(fd); !same.ok()) {
      ::shutdown(fd, SHUT_RDWR);
      LogWarning(absl::StrCat("the server at ", server_, " has refused a client: ", same.message()));
      return;
    }
  }
  absl::MutexLock lock(&mutex_);
  if (connections_.size() >= limit_) RemoveClosed();
  if (connections_.size() < limit_) {
    connections_.push_back({fd, InodeOf(fd), memory_ == nullptr ? nullptr : memory_->OfSocket(fd)});
    return;
  }
  Refuse(fd);  // gRPC reads the end of the connection and closes it
  RefuseWaiting();
  const absl::Time now = MonotonicNow();
  if (now < next_warning_) return;
  next_warning_ = now + kBetweenWarnings;
  LogWarning(
      absl::StrCat("the server at ", server_, PortOf(fd), " has ", limit_,
                   " connections, which is its limit (ServerOptions::max_connections, --max-connections): "
                   "further clients are refused"));
}

std::vector<ipc::Descriptor> ConnectionLimit::DuplicateListeners() {
  std::vector<ipc::Descriptor> listeners;
  absl::MutexLock lock(&mutex_);
  for (const Socket& one : listeners_) {
    const int flags = InodeOf(one.fd) == one.inode ? ::fcntl(one.fd, F_GETFL) : -1;
    if (flags < 0 || (flags & O_NONBLOCK) == 0) continue;
    ipc::Descriptor copy(::fcntl(one.fd, F_DUPFD_CLOEXEC, 0));
    if (copy.valid() && InodeOf(copy.get()) == one.inode) listeners.push_back(std::move(copy));
  }
  return listeners;
}

std::vector<ConnectionLimit::Socket> ConnectionLimit::Open() {
  absl::MutexLock lock(&mutex_);
  RemoveClosed();
  return connections_;
}

void ConnectionLimit::Close(const Socket& connection) {
  // The duplicate still refers to the socket when gRPC closes its descriptor.
  const ipc::Descriptor copy(::fcntl(connection.fd, F_DUPFD_CLOEXEC, 0));
  if (copy.valid() && InodeOf(copy.get()) == connection.inode) ::shutdown(copy.get(), SHUT_RDWR);
}

void ConnectionLimit::RemoveClosed() {
  std::erase_if(connections_, [](const Socket& one) { return InodeOf(one.fd) != one.inode; });
}

void ConnectionLimit::Refuse(int fd) const {
  // A new connection has space for so few bytes.
  [[maybe_unused]] const ssize_t ignored =
      ::send(fd, reason_.data(), reason_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(fd, SHUT_RDWR);
}

void ConnectionLimit::RefuseWaiting() {
  // gRPC closes a listener that cannot be bound, and its number may then belong to another socket.
  std::erase_if(listeners_, [](const Socket& one) { return InodeOf(one.fd) != one.inode; });
  for (const Socket& one : listeners_) {
    const int listener = one.fd;
    const int flags = ::fcntl(listener, F_GETFL);
    if (flags < 0 || (flags & O_NONBLOCK) == 0) continue;
    for (int i = 0; i < kRefusedAtOnce; ++i) {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) break;
      Refuse(fd);
      ::close(fd);
    }
  }
}

#if TANDEM_GRPC_SOCKET_MUTATOR

namespace {

struct LimitingMutator : grpc_socket_mutator {
  std::shared_ptr<ConnectionLimit> limit;
};

bool IgnoreSocket(int, grpc_socket_mutator*) { return true; }
bool CountSocket(const grpc_mutate_socket_info* info, grpc_socket_mutator* mutator) {
  ConnectionLimit& limit = *static_cast<LimitingMutator*>(mutator)->limit;
  if (info->usage == kServerListener) limit.AddListener(info->fd);
  if (info->usage == kServerConnection) limit.AddConnection(info->fd);
  return true;  // after false gRPC would never accept again
}
int CompareLimits(grpc_socket_mutator* a, grpc_socket_mutator* b) { return a < b ? -1 : a > b ? 1 : 0; }
void DeleteLimit(grpc_socket_mutator* mutator) { delete static_cast<LimitingMutator*>(mutator); }

constexpr grpc_socket_mutator_vtable kLimiting = {&IgnoreSocket, &CompareLimits, &DeleteLimit, &CountSocket};

}  // namespace

void ConnectionLimit::AddTo(grpc::ChannelArguments* arguments) {
  auto* const mutator = new LimitingMutator;
  grpc_socket_mutator_init(mutator, &kLimiting);
  mutator->limit = shared_from_this();
  arguments->SetSocketMutator(mutator);  // takes ownership
}

#else

void ConnectionLimit::AddTo(grpc::ChannelArguments*) {}

#endif

}  // namespace tandem::rpc
