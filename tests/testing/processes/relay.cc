// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/processes/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/testing/processes/process_sockets.h"

namespace tandem::testing {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 16;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void SendAtOnce(int socket) {
  const int one = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Relay::Relay(const std::string& host) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  wake_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  TANDEM_CHECK(listener_ >= 0 && wake_ >= 0);
  sockaddr_in address = Loopback(0);
  TANDEM_CHECK(::inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1);
  socklen_t size = sizeof(address);
  TANDEM_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  TANDEM_CHECK(::listen(listener_, 128) == 0);
  TANDEM_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  own_port_ = ntohs(address.sin_port);
  address_ = absl::StrCat(host, ":", own_port_);
  thread_ = std::thread([this] { Run(); });
}

Relay::~Relay() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  Wake();
  thread_.join();
  ::close(listener_);
  ::close(wake_);
  absl::MutexLock lock(&mutex_);
  for (const Connection& one : connections_) {
    ::close(one.there.from);
    ::close(one.there.to);
  }
}

void Relay::Wake() {
  const uint64_t one = 1;
  TANDEM_CHECK(::write(wake_, &one, sizeof(one)) == sizeof(one));
}

void Relay::Forward(int port) {
  {
    absl::MutexLock lock(&mutex_);
    port_ = port;
  }
  Wake();
}

void Relay::Cut(pid_t caller, Way way) {
  {
    absl::MutexLock lock(&mutex_);
    cuts_.push_back({caller, way});
    const std::set<uint64_t> sockets = SocketsOf(caller);
    for (Connection& one : connections_) {
      if (caller == kEveryone || sockets.contains(one.socket)) Apply(cuts_.back(), one);
    }
  }
  Wake();
}

void Relay::Heal() {
  {
    absl::MutexLock lock(&mutex_);
    cuts_.clear();
    for (Connection& one : connections_) one.there.cut = one.back.cut = false;
  }
  Wake();
}

void Relay::Apply(const CutRule& rule, Connection& connection) {
  if (rule.way != Way::kBack) connection.there.cut = true;
  if (rule.way != Way::kThere) connection.back.cut = true;
}

void Relay::Accept() {
  sockaddr_in peer = {};
  socklen_t size = sizeof(peer);
  const int caller =
      ::accept4(listener_, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (caller < 0) return;
  const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  TANDEM_CHECK(server >= 0);
  const sockaddr_in address = Loopback(port_);
  if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
      errno != EINPROGRESS) {
    ::close(server);
    ::close(caller);
    return;
  }
  SendAtOnce(caller);
  SendAtOnce(server);
  Connection& one = connections_.emplace_back(Connection{SocketBetween(ntohs(peer.sin_port), own_port_),
                                                         {.from = caller, .to = server},
                                                         {.from = server, .to = caller}});
  for (const CutRule& rule : cuts_) {
    if (rule.caller == kEveryone || SocketsOf(rule.caller).contains(one.socket)) Apply(rule, one);
  }
}

bool Relay::Move(Stream& stream) {
  if (stream.bytes.empty() && !stream.ended) {
    stream.bytes.resize(kBufferBytes);
    const ssize_t got = ::recv(stream.from, stream.bytes.data(), kBufferBytes, MSG_DONTWAIT);
    const bool broken = got < 0 && !WouldBlock();
    stream.bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    if (broken) return false;
    if (got == 0) {
      stream.ended = true;
      ::shutdown(stream.to, SHUT_WR);
    }
  }
  if (stream.bytes.empty()) return true;
  const ssize_t sent = ::send(stream.to, stream.bytes.data() + stream.sent, stream.bytes.size() - stream.sent,
                              MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return WouldBlock();
  stream.sent += static_cast<size_t>(sent);
  if (stream.sent == stream.bytes.size()) {
    stream.bytes.clear();
    stream.sent = 0;
  }
  return true;
}

void Relay::Run() {
  while (true) {
    std::vector<pollfd> polled;
    std::vector<std::pair<Connection*, Stream*>> streams;  // of polled[2], ...
    {
      absl::MutexLock lock(&mutex_);
      if (ends_) return;
      polled.push_back({wake_, POLLIN, 0});
      polled.push_back({port_ == 0 ? -1 : listener_, POLLIN, 0});
      for (auto one = connections_.begin(); one != connections_.end();) {
        const bool cut = one->there.cut || one->back.cut;
        const bool over =
            one->there.ended && one->back.ended && one->there.bytes.empty() && one->back.bytes.empty();
        if (!cut && (one->broken || over)) {
          ::close(one->there.from);
          ::close(one->there.to);
          one = connections_.erase(one);
          continue;
        }
        for (Stream* const stream : {&one->there, &one->back}) {
          if (stream->cut || one->broken) continue;
          if (!stream->bytes.empty()) {
            polled.push_back({stream->to, POLLOUT, 0});
          } else if (!stream->ended) {
            polled.push_back({stream->from, POLLIN, 0});
          } else {
            continue;
          }
          streams.emplace_back(&*one, stream);
        }
        ++one;
      }
    }
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    absl::MutexLock lock(&mutex_);
    if (polled[0].revents != 0) {
      uint64_t count;
      TANDEM_CHECK(::read(wake_, &count, sizeof(count)) == sizeof(count));
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      const auto& [connection, stream] = streams[i];
      if (polled[i + 2].revents == 0 || stream->cut || connection->broken) continue;
      if (!Move(*stream)) connection->broken = true;
    }
    if (polled[1].revents != 0) Accept();
  }
}

}  // namespace tandem::testing
