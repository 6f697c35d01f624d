// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/mesh_connector.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/backends/tcp/links.h"
#include "collectives/ranks.h"
#include "rpc/security/transport_security.h"

namespace tandem::collectives::tcp {
namespace {

// The connections of processes which are no ranks, and send nothing, that may be open beside those of the
// ranks.
constexpr size_t kSilentPeers = 64;
// How long a process that has connected may take to show its certificate and to announce its rank.
constexpr absl::Duration kGreetingTime = absl::Seconds(10);

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

// Returns true if both ends of a connection have the same address: then the kernel does not send it over a
// network. Both ends find the same.
bool WithinOneMachine(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof(here), there_size = sizeof(there);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) != 0 ||
      getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) != 0 ||
      here.ss_family != there.ss_family) {
    return false;
  }
  if (here.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(here).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(there).sin_addr.s_addr;
  }
  return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(here).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(there).sin6_addr, sizeof(in6_addr)) == 0;
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

// Returns what to do if `error` of a handshake says that the keys differ, else "".
std::string KeyAdvice(const absl::Status& error) {
  return absl::IsPermissionDenied(error) ? " (the processes have different keys: see `tandem key show`)" : "";
}

// Connects one rank to all others.
class MeshConnector {
 public:
  // `tls` is nullptr if connections are in clear.
  MeshConnector(const std::string& group, int rank, int world_size, absl::Time deadline,
                std::shared_ptr<const crypto::TlsContext> tls)
      : rank_(rank), deadline_(deadline), tls_(std::move(tls)), sockets_(world_size) {
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
    own_ = at;
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
    // Data in both directions use the interface that this rank listens at.
    if (error == 0 && own_.storage.ss_family == to.storage.ss_family) {
      const int on = 1;
      setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
      if (bind(socket.get(), own_.get(), own_.size) != 0) error = errno;
    }
    if (error == 0 && connect(socket.get(), to.get(), to.size) != 0) error = errno;
    if (error == EINPROGRESS) {
      if (!Ready(socket.get(), POLLOUT, deadline_)) {
        return absl::DeadlineExceededError(absl::StrCat("rank ", peer, " does not answer at ", where));
      }
      socklen_t size = sizeof(error);
      if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    }
    if (error != 0) {
      return absl::UnavailableError(absl::StrCat("rank ", rank_, " cannot connect to rank ", peer, " at ",
                                                 where, ": ", std::strerror(error)));
    }
    return Begin(std::move(socket), peer);
  }

  // Waits for the higher ranks, and for the greetings of the lower ones.
  absl::StatusOr<std::vector<MeshSocket>> Gather() {
    while (true) {
      const std::vector<int> absent = Absent();
      if (absent.empty()) return std::move(sockets_);
      const absl::Time next_slow = DropSlow();
      std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
      for (const Greeting& one : waiting_) {
        polled.push_back({one.link.socket.get(), one.wants_write ? short{POLLOUT} : short{POLLIN}, 0});
      }
      const absl::Duration left = Left(deadline_);
      if (left == absl::ZeroDuration()) {
        return absl::DeadlineExceededError(absl::StrCat(NameRanks(absent), " of ", sockets_.size(),
                                                        " did not connect to rank ", rank_, refused_));
      }
      const absl::Duration wait = std::min({left, Left(next_slow), absl::Minutes(1)});
      if (poll(polled.data(), polled.size(), static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1) <= 0)
        continue;
      for (size_t i = waiting_.size(); i-- > 0;) {
        if (polled[i + 1].revents == 0) continue;
        TANDEM_ASSIGN_OR_RETURN(const bool over, Continue(&waiting_[i]));
        if (over) waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
      }
      if (polled[0].revents != 0) {
        ipc::Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket.get() >= 0) {
          DropOldestSilent();
          TANDEM_RETURN_IF_ERROR(Begin(std::move(socket), -1));
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
    MeshSocket link;
    int peer;
    absl::Time deadline;
    bool shaking_hands;
    bool wants_write = false;
    bool greeted = false;  // this side, if it has connected
    Frame frame = {};
    size_t have = 0;
  };

  // Begins to greet on a new connection.
  absl::Status Begin(ipc::Descriptor socket, int peer) {
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    Greeting one{.link = {std::move(socket), nullptr},
                 .peer = peer,
                 .deadline = peer < 0 ? MonotonicNow() + kGreetingTime : deadline_,
                 .shaking_hands = tls_ != nullptr};
    if (tls_ != nullptr) {
      one.link.tls = std::make_unique<crypto::TlsSocket>(
          tls_, one.link.socket.get(),
          peer >= 0 ? crypto::TlsSocket::Side::kConnects : crypto::TlsSocket::Side::kAccepts);
    }
    TANDEM_ASSIGN_OR_RETURN(const bool over, Continue(&one));
    if (!over) waiting_.push_back(std::move(one));
    return absl::OkStatus();
  }

  // Sends this rank's greeting. A new connection always has space for so few bytes.
  bool Greet(MeshSocket* link) {
    return (link->tls != nullptr
                ? link->tls->Write(&hello_, sizeof(hello_))
                : send(link->socket.get(), &hello_, sizeof(hello_), MSG_NOSIGNAL)) == sizeof(hello_);
  }

  // Does what can be done on a connection. Returns true if it is no longer waiting: it is one of the group's,
  // or it is rejected.
  absl::StatusOr<bool> Continue(Greeting* one) {
    if (one->shaking_hands) {
      const absl::StatusOr<crypto::TlsSocket::Handshake> step = one->link.tls->Continue();
      if (!step.ok()) {
        if (one->peer >= 0) {
          return absl::Status(step.status().code(),
                              absl::StrCat("rank ", rank_, " cannot connect to rank ", one->peer, ": ",
                                           step.status().message(), KeyAdvice(step.status())));
        }
        refused_ =
            absl::StrCat("; a connection was refused: ", step.status().message(), KeyAdvice(step.status()));
        return true;
      }
      one->wants_write = *step == crypto::TlsSocket::Handshake::kWantsWrite;
      if (*step != crypto::TlsSocket::Handshake::kDone) return false;
      one->shaking_hands = false;
    }
    if (one->peer >= 0 && !std::exchange(one->greeted, true) && !Greet(&one->link)) {
      return absl::UnavailableError(
          absl::StrCat("rank ", rank_, " cannot greet rank ", one->peer, ": ", std::strerror(errno)));
    }
    return Read(one);
  }

  // Closes the oldest connection whose other side has sent nothing if there are too many of them. Ranks send
  // their greeting as soon as they have connected, so this is not a rank's.
  void DropOldestSilent() {
    const auto silent = [](const Greeting& one) { return one.peer < 0; };
    const auto count = std::count_if(waiting_.begin(), waiting_.end(), silent);
    if (static_cast<size_t>(count) < sockets_.size() + kSilentPeers) return;
    waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(), silent));
  }

  // Closes the accepted connections whose time is over. Returns when the next one's is.
  absl::Time DropSlow() {
    const absl::Time now = MonotonicNow();
    std::erase_if(waiting_, [now](const Greeting& one) { return one.peer < 0 && one.deadline <= now; });
    absl::Time next = deadline_;
    for (const Greeting& one : waiting_) next = std::min(next, one.deadline);
    return next;
  }

  std::vector<int> Absent() const {
    std::vector<int> absent;
    for (int peer = 0; peer < static_cast<int>(sockets_.size()); ++peer) {
      if (peer != rank_ && sockets_[peer].socket.get() < 0) absent.push_back(peer);
    }
    return absent;
  }

  // Continues to read. Returns true if this connection is done: it is one of the group's, or it is rejected.
  absl::StatusOr<bool> Read(Greeting* one) {
    MeshSocket& link = one->link;
    char* const to = reinterpret_cast<char*>(&one->frame) + one->have;
    const size_t want = sizeof(Frame) - one->have;
    const ssize_t n =
        link.tls != nullptr ? link.tls->Read(to, want) : recv(link.socket.get(), to, want, MSG_DONTWAIT);
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
      Keep(one->peer, &link);
    } else if (ours && frame.value > static_cast<uint64_t>(rank_) && frame.value < sockets_.size() &&
               sockets_[frame.value].socket.get() < 0 && Greet(&link)) {
      Keep(static_cast<int>(frame.value), &link);
    }
    return true;
  }

  // Both sides have sent their greeting and read the other's, so nothing of TLS is on its way.
  void Keep(int peer, MeshSocket* link) {
    if (WithinOneMachine(link->socket.get())) link->tls = nullptr;
    sockets_[peer] = std::move(*link);
  }

  const int rank_;
  const absl::Time deadline_;
  const std::shared_ptr<const crypto::TlsContext> tls_;
  Frame hello_;
  std::string where_;
  SocketAddress own_;  // with port 0
  ipc::Descriptor listener_;
  std::vector<MeshSocket> sockets_;  // by rank
  std::vector<Greeting> waiting_;
  std::string refused_;  // the last connection that was refused, as the end of a sentence
};

}  // namespace

absl::StatusOr<std::vector<MeshSocket>> ConnectMesh(cluster::Store* store, const std::string& group, int rank,
                                                    int world_size, const std::string& address,
                                                    absl::Time deadline,
                                                    std::shared_ptr<const rpc::JobKey> key) {
  std::shared_ptr<const crypto::TlsContext> tls;
  if (!rpc::TrustedNetwork()) {
    TANDEM_ASSIGN_OR_RETURN(const auto security, rpc::DerivedSecurity(std::move(key)));
    tls = security->context;
  }
  MeshConnector meeting(group, rank, world_size, deadline, std::move(tls));
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
