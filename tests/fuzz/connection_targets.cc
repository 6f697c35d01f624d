// SPDX-License-Identifier: Apache-2.0
// What a process reads of a peer before it knows who that is: the identity of a caller, a request to the HTTP
// server, and the greeting of a rank.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ipc/descriptor.h"
#include "base/status.h"
#include "cluster/metrics/http_server.h"
#include "cluster/store/memory_store.h"
#include "collectives/backends/tcp/links.h"
#include "collectives/backends/tcp/mesh_connector.h"
#include "rpc/caller.h"
#include "rpc/security/transport_security.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/targets.h"

namespace tandem::fuzz {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr char kGroup[] = "group";

// Connects to a port of this machine and sends `bytes`, as far as the other side takes them.
ipc::Descriptor SendTo(int port, const std::string& bytes) {
  ipc::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  TANDEM_CHECK(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  [[maybe_unused]] const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return socket;
}

// Returns everything that arrives until the other side closes the connection.
std::string ReadAll(const ipc::Descriptor& socket) {
  std::string text;
  char part[4096];
  while (true) {
    pollfd one = {socket.get(), POLLIN, 0};
    TANDEM_CHECK(::poll(&one, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) == 1);
    const ssize_t got = ::recv(socket.get(), part, sizeof(part), 0);
    if (got <= 0) return text;
    text.append(part, static_cast<size_t>(got));
  }
}

}  // namespace

void FuzzCaller(Input input) {
  const rpc::Caller caller = rpc::Caller::FromBytes(ToString(input));
  if (caller.epoch < 0) return;
  const std::string bytes = caller.ToBytes();
  const rpc::Caller again = rpc::Caller::FromBytes(bytes);
  TANDEM_CHECK(again.epoch == caller.epoch && again.ToBytes() == bytes);
}
std::vector<std::string> CallerSeeds() {
  return {rpc::Caller{.run_id = "job",
                      .epoch = 3,
                      .member = "ps/1",
                      .token = std::string(32, 't'),
                      .key_id = "0123456789",
                      .life = 2,
                      .shards = 4}
              .ToBytes()};
}

// An input is what a client sends. It sees the page only if it presents the password, "a:b".
void FuzzHttp(Input input) {
  static constexpr char kPage[] = "the figures";
  static cluster::HttpServer& server =
      *cluster::HttpServer::Start({.access = {.credentials = "a:b", .names = {"ps0"}},
                                   .path = "/metrics",
                                   .content_type = "text/plain",
                                   .page = [] { return std::string(kPage); }})
           .value()
           .release();
  const std::string request = ToString(input);
  const ipc::Descriptor client = SendTo(server.port(), request);
  ::shutdown(client.get(), SHUT_WR);
  const std::string response = ReadAll(client);
  TANDEM_CHECK_MSG(response.empty() || absl::StartsWith(response, "HTTP/1.1 "), response);
  TANDEM_CHECK(!absl::StrContains(response, kPage) || absl::StrContains(request, "YTpi"));
}
std::vector<std::string> HttpSeeds() {
  const std::string rest = "Host: ps0:9464\r\nAuthorization: Basic YTpi\r\nAccept: */*\r\n\r\n";
  return {absl::StrCat("GET /metrics HTTP/1.1\r\n", rest),
          absl::StrCat("HEAD http://ps0/metrics?x=y HTTP/1.0\r\n", rest),
          absl::StrCat("POST / HTTP/1.1\r\nContent-Length: 3\r\n", rest, "abc"),
          "GET /metrics HTTP/1.1\nHost: [::1]:1\n\n"};
}

// An input is what a process sends to rank 0 while that waits for rank 1. The ranks meet nevertheless, unless
// it is the greeting of rank 1.
void FuzzMeshHello(Input input) {
  ::setenv(rpc::kTrustedNetworkVariable, "1", 1);  // inputs reach the code behind TLS
  cluster::MemoryStore store;
  TANDEM_CHECK(store.Set("address/1", "to come").ok());  // so that rank 0 begins to accept
  const absl::Time deadline = MonotonicNow() + kPatience;
  absl::Status first;
  std::thread rank(
      [&] { first = collectives::tcp::ConnectMesh(&store, kGroup, 0, 2, "127.0.0.1", deadline).status(); });
  const std::string where = store.Get("address/0", kPatience).value();
  int port = 0;
  TANDEM_CHECK(absl::SimpleAtoi(where.substr(where.find(' ') + 1), &port));
  const ipc::Descriptor stranger = SendTo(port, ToString(input));
  const absl::Status second =
      collectives::tcp::ConnectMesh(&store, kGroup, 1, 2, "127.0.0.1", deadline).status();
  rank.join();
  TANDEM_CHECK_MSG(first.ok(), first.ToString());
  TANDEM_CHECK_MSG(second.ok() || input.size() >= sizeof(collectives::tcp::Frame), second.ToString());
}
std::vector<std::string> MeshHelloSeeds() {
  collectives::tcp::Frame frame;
  frame.id = 0xcbf29ce484222325u;  // FNV-1a of the group's name
  for (const char c : std::string(kGroup)) frame.id = (frame.id ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  frame.value = 1;
  return {std::string(reinterpret_cast<const char*>(&frame), sizeof(frame)), "\x16\x03\x01\x02"};
}

}  // namespace tandem::fuzz
