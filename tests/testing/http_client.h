// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_HTTP_CLIENT_H_
#define TANDEM_TESTS_TESTING_HTTP_CLIENT_H_

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/ipc/descriptor.h"

namespace tandem::testing {

// A TCP connection to a port of this machine, over which a test sends whatever bytes it likes.
class HttpClient {
 public:
  explicit HttpClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval minute{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &minute, sizeof(minute));
    connected_ = ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }

  bool connected() const { return connected_; }
  // Returns whether all bytes were accepted.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Announces that nothing more is sent.
  void EndOfRequest() { ::shutdown(socket_.get(), SHUT_WR); }
  // Returns what arrives until the server closes the connection. The test fails by its deadline if the server
  // never does.
  std::string Receive() {
    std::string response;
    char buffer[4096];
    ssize_t size;
    while ((size = ::recv(socket_.get(), buffer, sizeof(buffer), 0)) > 0)
      response.append(buffer, static_cast<size_t>(size));
    return response;
  }

 private:
  const ipc::Descriptor socket_;
  bool connected_;
};

// Sends a request of any bytes. Returns the head and body that arrive within a minute.
inline std::string HttpRequest(int port, absl::string_view request) {
  HttpClient client(port);
  return client.connected() && client.Send(request) ? client.Receive() : "";
}
// Sends a plain HTTP/1.0 request.
inline std::string HttpGet(int port, const std::string& path) {
  return HttpRequest(port, absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n"));
}

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_HTTP_CLIENT_H_
