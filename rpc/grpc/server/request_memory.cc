// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/server/request_memory.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace tandem::rpc {
namespace {

// The headers of one message: those of gRPC, HTTP/2 and TLS, and what the peer sends to acknowledge a
// response.
constexpr size_t kMessageHeaders = 256;
// The headers of frames and TLS records, of which the smallest full ones have 16 KiB: at most 1/32.
constexpr size_t kFrameShare = 32;
constexpr size_t kResponseHeaders = 128;

std::string KeyOf(const in6_addr& address, uint16_t port_network_order) {
  std::string key(sizeof(address) + sizeof(port_network_order), '\0');
  std::memcpy(key.data(), &address, sizeof(address));
  std::memcpy(key.data() + sizeof(address), &port_network_order, sizeof(port_network_order));
  return key;
}

in6_addr Mapped(const in_addr& address) {
  in6_addr mapped = {};
  mapped.s6_addr[10] = mapped.s6_addr[11] = 0xff;
  std::memcpy(mapped.s6_addr + 12, &address, sizeof(address));
  return mapped;
}

}  // namespace

std::string KeyOfPeer(absl::string_view peer) {
  const bool v4 = absl::ConsumePrefix(&peer, "ipv4:");
  if (!v4 && !absl::ConsumePrefix(&peer, "ipv6:")) return "";
  // gRPC escapes brackets and the '%' of a scope.
  const std::string text = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535)
    return "";
  std::string host = text.substr(0, colon);
  in_addr four = {};
  if (v4) return ::inet_pton(AF_INET, host.c_str(), &four) == 1 ? KeyOf(Mapped(four), htons(port)) : "";
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) host = host.substr(1, host.size() - 2);
  host = host.substr(0, host.find('%'));
  in6_addr six = {};
  return ::inet_pton(AF_INET6, host.c_str(), &six) == 1 ? KeyOf(six, htons(port)) : "";
}

std::string KeyOfAddress(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return KeyOf(Mapped(four.sin_addr), four.sin_port);
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  return KeyOf(six.sin6_addr, six.sin6_port);
}

absl::Status ConnectionMemory::Admit(size_t bytes) const {
  if (bytes > server_->one) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a request of ", bytes, " bytes exceeds the server's limit of ", server_->one,
        " bytes, which follows from its limit of incomplete messages (ServerOptions::max_incomplete_bytes: a "
        "quarter "
        "of the memory that the server may use): send less at a time, or give the server more memory"));
  }
  const size_t held = held_.load(std::memory_order_relaxed);
  const size_t limit = server_->per_connection;
  if (held > 0 && bytes > limit - std::min(limit, held)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the server holds ", held, " bytes of this connection's unanswered requests and may hold ", limit,
        " (ServerOptions::max_held_request_bytes): await answers before sending more"));
  }
  const size_t all = server_->held.load(std::memory_order_relaxed);
  if (all > 0 && bytes > server_->in_all - std::min(server_->in_all, all)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server holds ", all,
                     " bytes of unanswered requests of all connections and may hold ", server_->in_all,
                     " (ServerOptions::max_held_request_bytes_in_all): await answers before sending more"));
  }
  return absl::OkStatus();
}

void ConnectionMemory::Hold(size_t bytes) {
  held_.fetch_add(bytes, std::memory_order_relaxed);
  server_->held.fetch_add(bytes, std::memory_order_relaxed);
}

void ConnectionMemory::Release(size_t bytes) {
  held_.fetch_sub(bytes, std::memory_order_relaxed);
  server_->held.fetch_sub(bytes, std::memory_order_relaxed);
}

void ConnectionMemory::NoteHandled(size_t bytes) {
  handled_.fetch_add(static_cast<int64_t>(bytes + bytes / kFrameShare + kMessageHeaders),
                     std::memory_order_relaxed);
}

void ConnectionMemory::NoteSent() { handled_.fetch_add(kResponseHeaders, std::memory_order_relaxed); }

std::shared_ptr<ConnectionMemory> RequestMemory::Of(const std::string& peer) {
  const std::string key = KeyOfPeer(peer);
  return key.empty() ? std::make_shared<ConnectionMemory>(server_) : Find(key);
}

std::shared_ptr<ConnectionMemory> RequestMemory::OfSocket(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return nullptr;
  const std::string key = KeyOfAddress(address);
  return key.empty() ? nullptr : Find(key);
}

std::shared_ptr<ConnectionMemory> RequestMemory::Find(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  std::weak_ptr<ConnectionMemory>& known = connections_[key];
  if (std::shared_ptr<ConnectionMemory> connection = known.lock()) return connection;
  auto connection = std::make_shared<ConnectionMemory>(server_);
  known = connection;
  if (connections_.size() >= erase_at_) {
    absl::erase_if(connections_, [](const auto& one) { return one.second.expired(); });
    erase_at_ = 2 * connections_.size() + 64;
  }
  return connection;
}

}  // namespace tandem::rpc
