// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/mesh_connector.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/backends/tcp/links.h"
#include "collectives/ranks.h"

namespace tandem::collectives::tcp {
namespace {

// The connections of processes which are no ranks, and send nothing, that may be open beside those of the
// ranks.
constexpr size_t kSilentPeers = 64;

absl::Duration Left(absl::Time deadline) { return std::max(deadline - MonotonicNow(), absl::ZeroDuration()); }

uint64_t HashName(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

absl::StatusOr<SocketAddress> Parse(const std::string& address, uint16_t port) {
  SocketAddress parsed;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&parsed.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&parsed.storage);
  if (inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    parsed.size = sizeof(*v4);
  } else if (inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    parsed.size = sizeof(*v6);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is no numeric address"));
  }
  return parsed;
}

// Waits until `fd` is ready for `events`; returns false at `deadline`.
bool Ready(int fd, short events, absl::Time deadline) {
  while (true) {
    pollfd one = {fd, events, 0};
    const int64_t ms = std::min<int64_t>(absl::ToInt64Milliseconds(Left(deadline)) + 1, 60000);
    if (poll(&one, 1, static_cast<int>(ms)) > 0) return true;
    if (MonotonicNow() >= deadline) return false;
  }
}

// Connects one rank to all others.
class MeshConnector {
 public:
  MeshConnector(const std::string& group, int rank, int world_size, absl::Time deadline)
      : rank_(rank), deadline_(deadline), sockets_(world_size) {
    hello_.id = HashName(group);
    hello_.value = rank;
  }

  absl::Status Listen(const std::string& address) {
    TANDEM_ASSIGN_OR_RETURN(const SocketAddress at, Parse(address, 0));
    listener_ = ipc::Descriptor(socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_storage bound{};
    socklen_t size = sizeof(bound);
    if (listener_.get() < 0 || bind(listener_.get(), at.get(), at.size) != 0 ||
        listen(listener_.get(), static_cast<int>(sockets_.size() + kSilentPeers)) != 0 ||
        getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", std::strerror(errno)));
    }
    const uint16_t port =
        ntohs(bound.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(bound).sin_port
                                         : reinterpret_cast<const sockaddr_in6&>(bound).sin6_port);
    where_ = absl::StrCat(address, " ", port);
    return absl::OkStatus();
  }
  // "<address> <port>".
  const std::string& where() const { return where_; }

  // Connects to a rank that listens.
  absl::Status ConnectTo(int peer, const std::string& where) {
    const size_t space = where.find(' ');
    uint32_t port = 0;
    if (space == std::string::npos || !absl::SimpleAtoi(where.substr(space + 1), &port) || port > 65535) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", peer, " left no address but '", where, "'"));
    }
    TANDEM_ASSIGN_OR_RETURN(const SocketAddress to, Parse(where.substr(0, space), port));
    ipc::Descriptor socket(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int error = socket.get() < 0 ? errno : 0;
    if (error == 0 && connect(socket.get(), to.get(), to.size) != 0) error = errno;
    if (error == EINPROGRESS) {
      if (!Ready(socket.get(), POLLOUT, deadline_)) {
        return absl::DeadlineExceededError(absl::StrCat("rank ", peer, " does not answer at ", where));
      }
      socklen_t size = sizeof(error);
      if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    }
    if (error == 0 && !Greet(socket.get())) error = errno;
    if (error != 0) {
      return absl::UnavailableError(absl::StrCat("rank ", rank_, " cannot connect to rank ", peer, " at ",
                                                 where, ": ", std::strerror(error)));
    }
    sockets_[peer] = std::move(socket);
    return absl::OkStatus();
  }

  // Waits for the higher ranks, and for the greetings of the lower ones.
  absl::StatusOr<std::vector<ipc::Descriptor>> Gather() {
    for (int peer = 0; peer < rank_; ++peer) waiting_.push_back({std::move(sockets_[peer]), peer, {}, 0});
    while (true) {
      const std::vector<int> absent = Absent();
      if (absent.empty()) return std::move(sockets_);
      std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
      for (const Greeting& one : waiting_) polled.push_back({one.socket.get(), POLLIN, 0});
      const absl::Duration left = Left(deadline_);
      if (left == absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat(NameRanks(absent), " of ", sockets_.size(), " did not connect to rank ", rank_));
      }
      const int64_t ms = std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 60000);
      if (poll(polled.data(), polled.size(), static_cast<int>(ms)) <= 0) continue;
      for (size_t i = waiting_.size(); i-- > 0;) {
        if (polled[i + 1].revents == 0) continue;
        TANDEM_ASSIGN_OR_RETURN(const bool over, Read(&waiting_[i]));
        if (over) waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
      }
      if (polled[0].revents != 0) {
        ipc::Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket.get() >= 0) {
          DropOldestSilent();
          waiting_.push_back({std::move(socket), -1, {}, 0});
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          // The waiting client would make poll() return at once, again and again.
          absl::SleepFor(absl::Milliseconds(20));
        }
      }
    }
  }

 private:
  // A connection whose other side has not announced its rank. `peer` is the rank to which this side has
  // connected, or -1.
  struct Greeting {
    ipc::Descriptor socket;
    int peer;
    Frame frame;
    size_t have;
  };

  bool Greet(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    // A new connection always has space for so few bytes.
    return send(fd, &hello_, sizeof(hello_), MSG_NOSIGNAL) == sizeof(hello_);
  }

  // Closes the oldest connection whose other side has sent nothing if there are too many of them. Ranks send
  // their greeting as soon as they have connected, so this is not a rank's.
  void DropOldestSilent() {
    const auto silent = [](const Greeting& one) { return one.peer < 0; };
    const auto count = std::count_if(waiting_.begin(), waiting_.end(), silent);
    if (static_cast<size_t>(count) < sockets_.size() + kSilentPeers) return;
    waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(), silent));
  }

  std::vector<int> Absent() const {
    std::vector<int> absent;
    for (int peer = 0; peer < static_cast<int>(sockets_.size()); ++peer) {
      if (peer != rank_ && sockets_[peer].get() < 0) absent.push_back(peer);
    }
    return absent;
  }

  // Continues to read. Returns true if this connection is done: it is one of the group's, or it is rejected.
  absl::StatusOr<bool> Read(Greeting* one) {
    const ssize_t n = recv(one->socket.get(), reinterpret_cast<char*>(&one->frame) + one->have,
                           sizeof(Frame) - one->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
      if (one->peer < 0) return true;
      return absl::UnavailableError(
          absl::StrCat("rank ", one->peer, " closed its connection to rank ", rank_));
    }
    one->have += n;
    if (one->have < sizeof(Frame)) return false;
    const Frame& frame = one->frame;
    const bool ours =
        frame.magic == Frame::kMagic && frame.type == Frame::Type::kHello && frame.id == hello_.id;
    if (one->peer >= 0) {
      if (!ours || frame.value != static_cast<uint64_t>(one->peer)) {
        return absl::UnavailableError(
            absl::StrCat("what answers in the place of rank ", one->peer, " is no rank of this group"));
      }
      sockets_[one->peer] = std::move(one->socket);
    } else if (ours && frame.value > static_cast<uint64_t>(rank_) && frame.value < sockets_.size() &&
               sockets_[frame.value].get() < 0 && Greet(one->socket.get())) {
      sockets_[frame.value] = std::move(one->socket);
    }
    return true;
  }

  const int rank_;
  const absl::Time deadline_;
  Frame hello_;
  std::string where_;
  ipc::Descriptor listener_;
  std::vector<ipc::Descriptor> sockets_;  // by rank
  std::vector<Greeting> waiting_;
};

}  // namespace

absl::StatusOr<std::vector<ipc::Descriptor>> ConnectMesh(cluster::Store* store, const std::string& group,
                                                         int rank, int world_size, const std::string& address,
                                                         absl::Time deadline) {
  MeshConnector meeting(group, rank, world_size, deadline);
  TANDEM_RETURN_IF_ERROR(meeting.Listen(address));
  std::vector<std::string> keys;
  for (int peer = 0; peer < world_size; ++peer) keys.push_back(absl::StrCat("address/", peer));
  TANDEM_RETURN_IF_ERROR(store->Set(keys[rank], meeting.where()));
  if (absl::Status all = store->Wait(keys, Left(deadline)); !all.ok()) {
    if (all.code() != absl::StatusCode::kDeadlineExceeded) return all;
    std::vector<int> absent;
    for (int peer = 0; peer < world_size; ++peer) {
      if (!store->Get(keys[peer], absl::ZeroDuration()).ok()) absent.push_back(peer);
    }
    return absl::DeadlineExceededError(
        absl::StrCat(NameRanks(absent), " of ", world_size, " did not come to connect"));
  }
  for (int peer = 0; peer < rank; ++peer) {
    TANDEM_ASSIGN_OR_RETURN(const std::string where, store->Get(keys[peer], Left(deadline)));
    TANDEM_RETURN_IF_ERROR(meeting.ConnectTo(peer, where));
  }
  return meeting.Gather();
}

}  // namespace tandem::collectives::tcp
