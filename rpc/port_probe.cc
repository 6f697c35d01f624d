// SPDX-License-Identifier: Apache-2.0
#include "rpc/port_probe.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/ipc/descriptor.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "rpc/address.h"

namespace tandem::rpc {
namespace {

absl::StatusOr<std::vector<sockaddr_storage>> SystemLookup(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(ResolvableHost(host).c_str(), nullptr, &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot find host '", host, "': ", gai_strerror(error)));
  }
  absl::Cleanup release = [found] { freeaddrinfo(found); };
  std::vector<sockaddr_storage> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    std::memcpy(&addresses.emplace_back(), one->ai_addr, one->ai_addrlen);
  }
  return addresses;
}

// Returns the error of an attempt to connect, 0 if it succeeds.
int ConnectError(const sockaddr_storage& address, socklen_t size, absl::Time deadline) {
  const ipc::Descriptor fd(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd writable = {fd.get(), POLLOUT, 0};
  const absl::Duration left = std::max(deadline - MonotonicNow(), absl::ZeroDuration());
  if (poll(&writable, 1, static_cast<int>(absl::ToInt64Milliseconds(left))) != 1) return ETIMEDOUT;
  int error = 0;
  socklen_t error_size = sizeof(error);
  return getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &error_size) == 0 ? error : errno;
}

int ConnectErrorAtPath(const std::string& path, absl::Time deadline) {
  sockaddr_storage address{};
  auto* const name = reinterpret_cast<sockaddr_un*>(&address);
  name->sun_family = AF_UNIX;
  std::memcpy(name->sun_path, path.data(), path.size());  // ParseAddress checks the length
  return ConnectError(address, sizeof(sockaddr_un), deadline);
}

}  // namespace

struct PortProbe::Lookups : std::enable_shared_from_this<PortProbe::Lookups> {
  struct One {
    TimedNotification done;
    absl::StatusOr<std::vector<sockaddr_storage>> found;  // once `done`
  };

  explicit Lookups(Lookup lookup) : find(std::move(lookup)) {}

  // DeadlineExceeded if it takes longer; the lookup goes on.
  absl::StatusOr<std::vector<sockaddr_storage>> Find(const std::string& host, absl::Time deadline) {
    std::shared_ptr<One> one;
    {
      absl::MutexLock lock(&mutex);
      std::shared_ptr<One>& known = under_way[host];
      if (known == nullptr) {
        known = std::make_shared<One>();
        std::thread([self = shared_from_this(), host, one = known] {
          one->found = self->find(host);
          {
            absl::MutexLock lock(&self->mutex);
            self->under_way.erase(host);
          }
          one->done.Notify();
        }).detach();
      }
      one = known;
    }
    if (!one->done.WaitUntil(deadline)) {
      return absl::DeadlineExceededError(absl::StrCat("the lookup of host '", host, "' takes too long"));
    }
    return one->found;
  }

  const Lookup find;
  absl::Mutex mutex;
  std::map<std::string, std::shared_ptr<One>> under_way ABSL_GUARDED_BY(mutex);  // by host
};

PortProbe::PortProbe(Lookup lookup)
    : lookups_(std::make_shared<Lookups>(lookup ? std::move(lookup) : SystemLookup)) {}

absl::StatusOr<std::vector<int>> PortProbe::ConnectErrors(const std::string& address,
                                                          absl::Duration timeout) const {
  const absl::Time deadline = MonotonicNow() + timeout;
  TANDEM_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  if (parsed.is_unix()) return std::vector<int>{ConnectErrorAtPath(parsed.unix_path, deadline)};
  TANDEM_ASSIGN_OR_RETURN(const std::vector<sockaddr_storage> found, lookups_->Find(parsed.host, deadline));
  std::vector<int> errors;
  for (sockaddr_storage at : found) {
    const bool ipv6 = at.ss_family == AF_INET6;
    const in_port_t port = htons(static_cast<uint16_t>(parsed.port));
    (ipv6 ? reinterpret_cast<sockaddr_in6&>(at).sin6_port : reinterpret_cast<sockaddr_in&>(at).sin_port) =
        port;
    errors.push_back(ConnectError(at, ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in), deadline));
  }
  return errors;
}

bool PortProbe::Refuses(const std::string& address, absl::Duration timeout) const {
  const absl::StatusOr<std::vector<int>> errors = ConnectErrors(address, timeout);
  if (!errors.ok() || errors->empty()) return false;
  const bool path = absl::StartsWith(address, "unix:");
  return std::all_of(errors->begin(), errors->end(),
                     [path](int error) { return error == ECONNREFUSED || (path && error == ENOENT); });
}

bool PortProbe::Accepts(const std::string& address, absl::Duration timeout) const {
  const absl::StatusOr<std::vector<int>> errors = ConnectErrors(address, timeout);
  return errors.ok() && std::find(errors->begin(), errors->end(), 0) != errors->end();
}

}  // namespace tandem::rpc
