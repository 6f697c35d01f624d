// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLI_MONITOR_HTTP_GET_H_
#define TANDEM_TESTS_CLI_MONITOR_HTTP_GET_H_

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace tandem::cli {

// Sends a plain HTTP/1.0 request to a port of this machine. Returns the head and body that arrive within a
// minute.
inline std::string HttpGet(int port, const std::string& path) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval minute{.tv_sec = 60, .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
  std::string response;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
    if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      ssize_t size;
      while ((size = ::recv(fd, buffer, sizeof(buffer), 0)) > 0)
        response.append(buffer, static_cast<size_t>(size));
    }
  }
  ::close(fd);
  return response;
}

}  // namespace tandem::cli

#endif  // TANDEM_TESTS_CLI_MONITOR_HTTP_GET_H_
