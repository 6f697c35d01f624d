// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/server/incoming_watch.h"

// Not netinet/tcp.h, whose tcp_info has no tcpi_bytes_received.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "rpc/wire/frame.h"

namespace tandem::rpc {
namespace {

// A connection has as much for the handshake of TLS and the headers of HTTP/2. So much of an incomplete
// message costs no more than they.
constexpr int64_t kHeaders = 16384;
// A client may ping each 5 s (ServerOptions::min_keepalive_interval), and acknowledges a ping of the server
// each 20 s, with 46 bytes in TLS.
constexpr int64_t kPingBytesPerSecond = 16;
// A connection that has sent more without a complete call, or the headers of a stream, sends endless headers
// or a message that is refused.
constexpr int64_t kFirstCall = static_cast<int64_t>(kMaxUnaryBytes) + (1 << 20);
constexpr absl::Duration kShortInterval = absl::Milliseconds(10);
constexpr absl::Duration kBetweenClosings = absl::Minutes(1);

std::optional<int64_t> BytesReceived(int fd) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

}  // namespace

IncomingWatch::IncomingWatch(Options options, std::shared_ptr<ConnectionLimit> sockets)
    : options_(std::move(options)),
      sockets_(std::move(sockets)),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Run(); }) {}

void IncomingWatch::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void IncomingWatch::Run() {
  if (!stop_.valid()) return;  // no descriptor is left: there are no clients either
  absl::Duration pause = options_.interval;
  while (true) {
    pollfd stop = {stop_.get(), POLLIN, 0};
    if (::poll(&stop, 1, static_cast<int>(absl::ToInt64Milliseconds(pause)) + 1) > 0) return;
    const absl::Time begin = MonotonicNow();
    const int64_t incomplete = Look(begin);
    const bool much = incomplete > static_cast<int64_t>(options_.max_bytes / 8);
    // Thousands of connections must not keep a processor busy.
    pause = std::max(much ? kShortInterval : options_.interval, 20 * (MonotonicNow() - begin));
  }
}

void IncomingWatch::Close(const ConnectionLimit::Socket& socket, const std::string& why,
                          Connection* connection) {
  connection->closing = true;
  ConnectionLimit::Close(socket);
  const absl::Time now = MonotonicNow();
  if (now < next_warning_) return;
  next_warning_ = now + kBetweenClosings;
  LogWarning(absl::StrCat("the server at ", options_.server, " closes a connection ", why));
}

int64_t IncomingWatch::Look(absl::Time now) {
  struct Incomplete {
    int64_t bytes;
    ConnectionLimit::Socket socket;
  };
  std::vector<Incomplete> found;
  int64_t sum = 0;
  absl::flat_hash_map<uint64_t, Connection> still;
  for (const ConnectionLimit::Socket& socket : sockets_->Open()) {
    Connection connection;
    if (const auto known = connections_.find(socket.inode); known != connections_.end()) {
      connection = known->second;
    } else {
      connection = {.other = kHeaders, .opened = now};
    }
    // In this order: what is counted as handled has been received.
    const int64_t handled = socket.memory == nullptr ? 0 : socket.memory->handled();
    const std::optional<int64_t> received =
        socket.memory == nullptr ? std::nullopt : BytesReceived(socket.fd);
    if (received.has_value() && !connection.closing) {
      const int64_t pings = kPingBytesPerSecond * absl::ToInt64Seconds(now - connection.opened);
      const int64_t incomplete = *received - handled - connection.other - pings;
      if (incomplete < 0) {
        connection.other += incomplete;
      } else if (handled == 0 && incomplete > kFirstCall && now - connection.opened >= options_.first_call) {
        Close(socket, absl::StrCat("that has sent ", incomplete, " bytes and no complete call"), &connection);
      } else {
        sum += incomplete;
        found.push_back({incomplete, socket});
      }
    }
    still.emplace(socket.inode, connection);
  }
  connections_ = std::move(still);
  if (sum <= static_cast<int64_t>(options_.max_bytes)) return sum;
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  int64_t left = sum;
  for (const Incomplete& most : found) {
    if (left <= static_cast<int64_t>(options_.max_bytes)) break;
    left -= most.bytes;
    Close(most.socket,
          absl::StrCat("with ", most.bytes, " of ", sum,
                       " bytes of incomplete messages, more than the limit of ", options_.max_bytes,
                       " (ServerOptions::max_incomplete_bytes)"),
          &connections_[most.socket.inode]);
  }
  return left;
}

}  // namespace tandem::rpc
