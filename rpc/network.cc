// SPDX-License-Identifier: Apache-2.0
#include "rpc/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "rpc/address.h"

namespace tandem::rpc {
namespace {

// "" for an address that is neither IPv4 nor IPv6.
std::string Numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address != nullptr && address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
  } else if (address != nullptr && address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof(text));
  }
  return text;
}

// Returns the numeric address for ListenAddressFor.
std::string ListenHostFor(const std::string& host) {
  if (IsLoopbackHost(host)) return host == "localhost" ? "127.0.0.1" : host;
  const std::string all = "0.0.0.0";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return all;
  absl::Cleanup release = [found] { freeaddrinfo(found); };
  std::string own;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const std::string address = Numeric(one->ai_addr);
    if (address == own) continue;
    // Others may use any of several addresses.
    if (!own.empty() || IsLoopbackHost(address) || !ResolveLocalAddress(address).ok()) return all;
    own = address;
  }
  return own.empty() ? all : own;
}

}  // namespace

absl::StatusOr<std::string> LocalAddressFor(const std::string& text) {
  std::string target = text;
  // Of a URL, "etcd://user@a:2379,b:2379/prefix", the first host.
  if (const size_t scheme = text.find("://"); scheme != std::string::npos) {
    target = text.substr(scheme + 3);
    target = target.substr(0, target.find_first_of(",/?"));
    if (const size_t user = target.find('@'); user != std::string::npos) target = target.substr(user + 1);
  }
  const size_t colon = target.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || absl::StartsWith(target, "unix:") ||
      !absl::SimpleAtoi(target.substr(colon + 1), &port) || port > 65535) {
    return "127.0.0.1";
  }
  std::string host = target.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(ResolvableHost(host).c_str(), absl::StrCat(port).c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot find host '", host, "': ", gai_strerror(error)));
  }
  absl::Cleanup release = [found] { freeaddrinfo(found); };
  std::string problem = "no address";
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const int fd = socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    absl::Cleanup close_fd = [fd] { close(fd); };
    // Connecting a datagram socket only chooses the route.
    sockaddr_storage self{};
    socklen_t size = sizeof(self);
    if (connect(fd, one->ai_addr, one->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&self), &size) == 0) {
      std::string address = Numeric(reinterpret_cast<const sockaddr*>(&self));
      if (!address.empty()) return address;
    }
    problem = std::strerror(errno);
  }
  return absl::UnavailableError(
      absl::StrCat("no network interface of this machine reaches ", target, ": ", problem));
}

absl::StatusOr<ListenAddresses> ListenBeside(const std::string& store, absl::string_view name) {
  if (absl::StartsWith(store, "unix:")) {
    return ListenAddresses{.listen = absl::StrCat(store.substr(0, store.rfind('/') + 1),
                                                  absl::StrReplaceAll(name, {{"/", "-"}}))};
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string host, LocalAddressFor(store));
  if (IsLoopbackHost(host)) return ListenAddresses{.listen = "127.0.0.1:0"};
  return ListenAddresses{.listen = ListenAddressFor(host, 0),
                         .advertise = absl::StrContains(host, ':') ? "" : host};
}

absl::StatusOr<std::string> ResolveLocalAddress(const std::string& text) {
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot list the network interfaces: ", std::strerror(errno)));
  }
  absl::Cleanup release = [interfaces] { freeifaddrs(interfaces); };
  std::vector<std::string> candidates;
  std::string ipv6;
  for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next) {
    const std::string address = Numeric(one->ifa_addr);
    if (address.empty()) continue;
    if (address == text) return address;
    if (one->ifa_name == text) {
      if (one->ifa_addr->sa_family == AF_INET) return address;
      ipv6 = address;
    }
    candidates.push_back(absl::StrCat(one->ifa_name, " (", address, ")"));
  }
  if (!ipv6.empty()) return ipv6;
  if (absl::StartsWith(text, "127."))
    // All of 127/8 is this machine, although only one address is listed.
    return text;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is no network interface of this machine; it has ", absl::StrJoin(candidates, ", ")));
}

std::string ListenAddressFor(const std::string& host, int port) {
  const std::string own = ListenHostFor(host);
  return absl::StrContains(own, ':') ? absl::StrCat("[", own, "]:", port) : absl::StrCat(own, ":", port);
}

absl::StatusOr<std::string> AdvertisedAddress(const std::string& listen, const std::string& advertise,
                                              int port) {
  const absl::StatusOr<Address> bound = ParseAddress(listen);
  if (!bound.ok()) return Annotate(bound.status(), "--listen");
  if (bound->is_unix()) return advertise.empty() ? listen : advertise;
  if (absl::StrContains(advertise, ':')) {
    TANDEM_RETURN_IF_ERROR(Annotate(ParseAddress(advertise).status(), "--advertise"));
    return advertise;
  }
  std::string host = advertise.empty() ? bound->host : advertise;
  if (host == "0.0.0.0" || host == "::") {
    char name[256] = {};
    if (::gethostname(name, sizeof(name) - 1) != 0)
      return absl::ErrnoToStatus(errno, "this machine has no name");
    host = name;
  }
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool IsLoopbackHost(absl::string_view host) {
  return absl::StartsWith(host, "127.") || host == "::1" || host == "localhost";
}

}  // namespace tandem::rpc
