// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/ipc/memory_file.h"
#include "base/ipc/unix_socket.h"
#include "base/logging.h"
#include "base/status.h"

namespace tandem::rpc::shm {
namespace {

constexpr size_t kMaxPendingClients = 64;  // clients that have not sent their ticket yet
constexpr absl::Duration kClientTimeout = absl::Seconds(5);

// The messages of the handshake, each one packet.
struct HelloPacket {  // client to server
  uint64_t magic = kMagic;
  char ticket[kTicketBytes] = {};
};
struct AcceptPacket {  // server to client, with the descriptor unless it is refused
  uint64_t magic = kMagic;
  uint64_t records_bytes = 0;
  uint64_t payload_bytes = 0;
  uint32_t code = 0;       // absl::StatusCode; not 0: the client is refused
  char refusal[252] = {};  // the reason, ended by a 0
};

std::string PeerProcess(int socket) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length);
  return absl::StrCat("process ", credentials.pid);
}

// Tells a client why it is refused.
void Refuse(int socket, const absl::Status& why) {
  AcceptPacket refusal;
  refusal.code = static_cast<uint32_t>(why.code());
  why.message().copy(refusal.refusal, sizeof(refusal.refusal) - 1);
  (void)ipc::SendPacket(socket, &refusal, sizeof(refusal));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Link>> Dial(const std::string& socket, const std::string& ticket,
                                           absl::Time deadline, size_t max_message_bytes) {
  HelloPacket hello;
  if (ticket.size() != sizeof(hello.ticket)) {
    return absl::FailedPreconditionError("the server's offer of shared memory has no ticket");
  }
  std::memcpy(hello.ticket, ticket.data(), sizeof(hello.ticket));
  absl::StatusOr<ipc::Descriptor> connection = ipc::ConnectAbstract(socket);
  if (!connection.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the server's unix socket cannot be reached (", connection.status().message(),
                     "): it runs in another network namespace (container), or has ended"));
  }
  if (!ipc::SendPacket(connection->get(), &hello, sizeof(hello))) {
    return absl::UnavailableError("the server closed the socket for shared memory");
  }
  if (!ipc::AwaitReadable(connection->get(), deadline)) {
    return absl::DeadlineExceededError("the server passed no shared memory in time");
  }
  AcceptPacket welcome;
  ipc::Descriptor file;
  if (!ipc::ReceivePacket(connection->get(), &welcome, sizeof(welcome), &file)) {
    return absl::UnavailableError("the server closed the socket for shared memory");
  }
  if (welcome.magic != kMagic) {
    return absl::FailedPreconditionError(
        "the server runs another version, whose layout of shared memory differs");
  }
  if (welcome.code != 0) {
    welcome.refusal[sizeof(welcome.refusal) - 1] = '\0';
    return absl::Status(static_cast<absl::StatusCode>(welcome.code), welcome.refusal);
  }
  absl::StatusOr<Geometry> geometry = Geometry::Make(welcome.records_bytes, welcome.payload_bytes);
  if (!geometry.ok()) return absl::FailedPreconditionError(geometry.status().message());
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ipc::MemoryFile> memory,
                          ipc::MemoryFile::Map(std::move(file), geometry->total_bytes));
  std::string peer = PeerProcess(connection->get());
  return std::make_shared<Link>(Side::kClient, *geometry, std::move(memory), *std::move(connection),
                                std::move(peer), max_message_bytes);
}

Acceptor::Acceptor(const Geometry& geometry, size_t max_message_bytes, std::function<bool()> full)
    : geometry_(geometry),
      max_message_bytes_(max_message_bytes),
      full_(std::move(full)),
      socket_name_(absl::StrCat("tandem-rpc-", ipc::RandomToken())) {}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Open(const Geometry& geometry, size_t max_message_bytes,
                                                         std::function<bool()> full) {
  // If the kernel refuses the memory now, it would refuse it for every client.
  TANDEM_RETURN_IF_ERROR(ipc::MemoryFile::Create("tandem-rpc", geometry.total_bytes).status());
  std::unique_ptr<Acceptor> acceptor(new Acceptor(geometry, max_message_bytes, std::move(full)));
  TANDEM_ASSIGN_OR_RETURN(acceptor->listener_,
                          ipc::ListenAbstract(acceptor->socket_name_, kMaxPendingClients));
  return acceptor;
}

bool Acceptor::Wait(int stop, TakeLink& take) {
  std::vector<pollfd> polled = {{stop, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  absl::Time first = absl::InfiniteFuture();
  for (const PendingClient& client : pending_clients_) {
    polled.push_back({client.socket.get(), POLLIN, 0});
    first = std::min(first, client.deadline);
  }
  const int timeout = pending_clients_.empty() ? -1 : ipc::MillisecondsUntil(first, 1000);
  if (poll(polled.data(), polled.size(), timeout) < 0) return errno == EINTR;
  if (polled[0].revents != 0) return false;
  const absl::Time now = MonotonicNow();
  for (size_t i = pending_clients_.size(); i-- > 0;) {
    if (polled[i + 2].revents != 0) {
      Caller caller;
      absl::StatusOr<std::shared_ptr<Link>> link =
          CompleteHandshake(std::move(pending_clients_[i].socket), &caller);
      if (link.ok()) {
        take(*std::move(link), std::move(caller));
      } else {
        LogWarning(absl::StrCat("no shared memory for a client: ", link.status().message()));
      }
    } else if (now < pending_clients_[i].deadline) {
      continue;
    }
    pending_clients_.erase(pending_clients_.begin() + i);
  }
  if (polled[1].revents != 0) {
    ipc::Descriptor socket = ipc::AcceptAbstract(listener_.get());
    if (socket.get() >= 0 && pending_clients_.size() < kMaxPendingClients) {
      pending_clients_.push_back({std::move(socket), now + kClientTimeout});
    } else if (socket.get() < 0 &&
               (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      // No descriptor is left; wait until one is closed.
      absl::SleepFor(absl::Milliseconds(50));
    }
  }
  return true;
}

void Acceptor::Close() {
  listener_.Reset();
  pending_clients_.clear();
}

absl::StatusOr<std::shared_ptr<Link>> Acceptor::CompleteHandshake(ipc::Descriptor socket, Caller* caller) {
  const auto refuse = [&socket](absl::Status why) {
    Refuse(socket.get(), why);
    return why;
  };
  HelloPacket hello;
  if (!ipc::ReceivePacket(socket.get(), &hello, sizeof(hello)) || hello.magic != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat(PeerProcess(socket.get()), " sends no ticket"));
  }
  absl::StatusOr<Caller> redeemed =
      tickets_.Redeem(std::string(hello.ticket, sizeof(hello.ticket)), MonotonicNow());
  if (!redeemed.ok()) return refuse(redeemed.status());
  if (full_ && full_()) {  // several clients may have got an offer at the same time
    return refuse(absl::ResourceExhaustedError("the server has as many connections as it may have"));
  }
  *caller = *std::move(redeemed);
  absl::StatusOr<std::unique_ptr<ipc::MemoryFile>> memory =
      ipc::MemoryFile::Create("tandem-rpc", geometry_.total_bytes);
  if (!memory.ok()) return refuse(absl::ResourceExhaustedError(memory.status().message()));
  AcceptPacket welcome;
  welcome.records_bytes = geometry_.records_bytes;
  welcome.payload_bytes = geometry_.payload_bytes;
  if (!ipc::SendPacket(socket.get(), &welcome, sizeof(welcome), (*memory)->descriptor())) {
    return absl::UnavailableError(absl::StrCat(PeerProcess(socket.get()), " has gone"));
  }
  (*memory)->CloseDescriptor();
  std::string peer = PeerProcess(socket.get());
  return std::make_shared<Link>(Side::kServer, geometry_, *std::move(memory), std::move(socket),
                                std::move(peer), max_message_bytes_);
}

}  // namespace tandem::rpc::shm
