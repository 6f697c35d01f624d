// SPDX-License-Identifier: Apache-2.0
#include "rpc/address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tandem::rpc {
namespace {

absl::Status BadAddress(absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("bad address \"", text, "\": ", what, "; expected host:port, [ipv6]:port or unix:/path"));
}

absl::Status CheckUnix(const std::string& path, absl::string_view text) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());  // ParseAddress checked the length
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("cannot open a socket: ", std::strerror(errno)));
  absl::Cleanup close_fd = [fd] { close(fd); };
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", text, ": a server already listens there; stop it or choose another path"));
  }
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", text, ": directory ", directory, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  Address address;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    if (!absl::StartsWith(rest, "/")) return BadAddress(text, "a unix socket needs an absolute path");
    if (rest.size() >= sizeof(sockaddr_un::sun_path)) {
      return BadAddress(text, absl::StrCat("the path has ", rest.size(), " bytes, a unix socket's may have ",
                                           sizeof(sockaddr_un::sun_path) - 1));
    }
    address.unix_path = std::string(rest);
    return address;
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) return BadAddress(text, "there is no port");
  absl::string_view host = rest.substr(0, colon);
  const absl::string_view port = rest.substr(colon + 1);
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return BadAddress(text, "the bracket is not closed");
  } else if (absl::StrContains(host, ':')) {
    return BadAddress(text, "an IPv6 address needs brackets");
  }
  if (host.empty()) return BadAddress(text, "there is no host");
  for (char c : host) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains(".-_:%", c)) {
      return BadAddress(text, absl::StrCat("'", absl::string_view(&c, 1), "' cannot be part of a host"));
    }
  }
  if (port.empty() || !absl::ascii_isdigit(port[0]) || !absl::SimpleAtoi(port, &address.port) ||
      address.port > 65535) {
    return BadAddress(text, absl::StrCat("\"", port, "\" is no port (0 to 65535)"));
  }
  address.host = std::string(host);
  return address;
}

std::string ResolvableHost(const std::string& host) {
  if (!absl::EqualsIgnoreCase(host, "localhost")) return host;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return "127.0.0.1";
  freeaddrinfo(found);
  return host;
}

std::string ResolvableAddress(const Address& address, absl::string_view text) {
  if (address.is_unix()) return std::string(text);
  const std::string host = ResolvableHost(address.host);
  return host == address.host ? std::string(text) : absl::StrCat(host, ":", address.port);
}

absl::Status CheckBindable(const Address& address, absl::string_view text) {
  if (address.is_unix()) return CheckUnix(address.unix_path, text);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(ResolvableHost(address.host).c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (failed != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", text, ": host \"", address.host, "\": ", gai_strerror(failed)));
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    const int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    absl::Cleanup close_fd = [fd] { close(fd); };
    // Connections of an earlier server in TIME_WAIT do not prevent the bind; gRPC sets this option, too.
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0) return absl::OkStatus();
    error = errno;
  }
  if (error == EADDRINUSE) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", text, ": port ", address.port,
                     " is in use; stop the process that holds it (ss -ltnp), choose another "
                     "port, or 0 to let the kernel pick"));
  }
  if (error == EADDRNOTAVAIL) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", text, ": ", address.host,
                     " is no address of this machine (0.0.0.0 means all of them)"));
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on ", text, ": ", std::strerror(error)));
}

}  // namespace tandem::rpc
