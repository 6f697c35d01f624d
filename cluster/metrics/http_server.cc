// SPDX-License-Identifier: Apache-2.0
#include "cluster/metrics/http_server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/crypto/crypto.h"
#include "base/ipc/descriptor.h"

namespace tandem::cluster {
namespace {

// Deadlines must not depend on the wall clock, which an administrator or NTP may step.
using SteadyTime = std::chrono::steady_clock::time_point;
SteadyTime Now() { return std::chrono::steady_clock::now(); }

// Returns the time until `deadline` in the form that poll() takes: -1 if there is none.
int PollTimeout(SteadyTime deadline) {
  if (deadline == SteadyTime::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

struct Connection {
  enum class State { kReading, kWriting, kClosing };
  ipc::Descriptor socket;
  State state = State::kReading;
  SteadyTime accepted;
  SteadyTime deadline;   // of the state
  std::string request;   // what has arrived of the head
  std::string response;  // what is to be sent
  size_t sent = 0;
};

std::string Response(absl::string_view code, absl::string_view extra_headers, absl::string_view content_type,
                     absl::string_view content, bool with_content) {
  return absl::StrCat("HTTP/1.1 ", code, "\r\nContent-Type: ", content_type,
                      "\r\nContent-Length: ", content.size(), "\r\n", extra_headers,
                      "Connection: close\r\n\r\n", with_content ? content : absl::string_view());
}

std::string Refusal(absl::string_view code, absl::string_view line, absl::string_view extra_headers = "") {
  return Response(code, extra_headers, "text/plain; charset=utf-8", absl::StrCat(line, "\n"),
                  /*with_content=*/true);
}

// Returns the path of a request target, which is "/path?query" or, in the form for proxies that every server
// must accept (RFC 9112, 3.2.2), "http://host/path?query".
absl::string_view PathOf(absl::string_view target) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(target, scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t path = target.find_first_of("/?");
    if (path == absl::string_view::npos || target[path] == '?') return "/";
    target.remove_prefix(path);
    break;
  }
  return target.substr(0, target.find('?'));
}

// Returns the size of the head of `request` including its empty line, or 0 if the line has not arrived. Lines
// that end without a carriage return are accepted, as RFC 9112 advises.
size_t HeadSize(absl::string_view request) {
  const size_t strict = request.find("\r\n\r\n"), lenient = request.find("\n\n");
  if (strict == absl::string_view::npos && lenient == absl::string_view::npos) return 0;
  return strict < lenient ? strict + 4 : lenient + 2;
}

// Returns the value of the header `name` (lower case), "" if there is none, and nullopt if there are several.
std::optional<absl::string_view> HeaderOf(absl::string_view head, absl::string_view name) {
  std::optional<absl::string_view> value;
  const std::vector<absl::string_view> lines = absl::StrSplit(head, '\n');
  for (size_t i = 1; i < lines.size(); ++i) {
    const size_t colon = lines[i].find(':');
    if (colon == absl::string_view::npos || !absl::EqualsIgnoreCase(lines[i].substr(0, colon), name))
      continue;
    if (value.has_value()) return std::nullopt;
    value = absl::StripAsciiWhitespace(lines[i].substr(colon + 1));
  }
  return value.value_or("");
}

// Returns whether a request with this Host header may be meant for a server of `access`. Browsers always send
// one; other clients may send none.
bool AllowsHost(absl::string_view host, const HttpAccess& access) {
  if (host.empty()) return true;
  const size_t colon = host.rfind(':');
  if (absl::StartsWith(host, "[")) {
    const size_t end = host.find(']');
    if (end == absl::string_view::npos) return false;
    host = host.substr(1, end - 1);
  } else if (colon != absl::string_view::npos) {
    host = host.substr(0, colon);
  }
  const std::string name(absl::StripSuffix(host, "."));
  in_addr four = {};
  in6_addr six = {};
  // Only names can be made to mean another machine.
  if (::inet_pton(AF_INET, name.c_str(), &four) == 1 || ::inet_pton(AF_INET6, name.c_str(), &six) == 1)
    return true;
  char own[256] = {};
  (void)::gethostname(own, sizeof(own) - 1);
  std::vector<absl::string_view> names(access.names.begin(), access.names.end());
  names.insert(names.end(), {"localhost", access.host, own});
  return std::any_of(names.begin(), names.end(), [&](absl::string_view one) {
    return !one.empty() && absl::EqualsIgnoreCase(one, name);
  });
}

// Returns whether the Authorization header is that of basic authentication with `credentials`.
bool Presents(absl::string_view authorization, absl::string_view credentials) {
  const size_t space = authorization.find(' ');
  std::string given;
  return space != absl::string_view::npos &&
         absl::EqualsIgnoreCase(authorization.substr(0, space), "basic") &&
         absl::Base64Unescape(absl::StripAsciiWhitespace(authorization.substr(space)), &given) &&
         crypto::SecretsEqual(given, credentials);
}

class PolledHttpServer : public HttpServer {
 public:
  PolledHttpServer(Options options, ipc::Descriptor listener, ipc::Descriptor stop, int port)
      : options_(std::move(options)), listener_(std::move(listener)), stop_(std::move(stop)), port_(port) {}
  ~PolledHttpServer() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(stop_.get(), &one, sizeof(one));
    if (thread_.joinable()) thread_.join();
  }
  // Throws std::system_error if no thread can be started.
  void Run() {
    thread_ = std::thread([this] { Loop(); });
  }
  int port() const override { return port_; }

 private:
  void Loop();
  void Accept();
  // Closes the oldest connection that has no response under way, if it is `min_age` old. Returns whether it
  // did.
  bool CloseOldest();
  // Returns the moment from which CloseOldest may succeed.
  SteadyTime OldestExpires() const;
  // Handles what poll() reported about a connection, and its deadline. Returns false if it is to be closed.
  bool Continue(Connection& connection, short events);
  bool Read(Connection& connection);
  bool Write(Connection& connection);
  // Reads and discards until the client closes. A connection that is closed with unread data is reset, and
  // the client could lose its response.
  static bool Drain(Connection& connection);
  void Respond(Connection& connection, std::string response);
  // Returns the response to a complete head.
  std::string ResponseTo(absl::string_view head) const;

  const Options options_;
  const std::chrono::nanoseconds timeout_ = absl::ToChronoNanoseconds(options_.timeout);
  const std::chrono::nanoseconds min_age_ = absl::ToChronoNanoseconds(options_.min_age);
  const ipc::Descriptor listener_, stop_;
  const int port_;
  bool out_of_descriptors_ = false;    // until poll() has waited once
  std::list<Connection> connections_;  // the oldest first; used by the thread only
  std::thread thread_;
};

void PolledHttpServer::Loop() {
  std::vector<pollfd> fds;
  for (;;) {
    const bool full = connections_.size() >= options_.max_connections && !CloseOldest();
    SteadyTime wake = SteadyTime::max();
    if (full) wake = OldestExpires();
    if (out_of_descriptors_) wake = Now() + std::chrono::milliseconds(100);
    fds.assign({{stop_.get(), POLLIN, 0}, {full || out_of_descriptors_ ? -1 : listener_.get(), POLLIN, 0}});
    for (const Connection& connection : connections_) {
      const short events = connection.state == Connection::State::kWriting ? POLLOUT : POLLIN;
      fds.push_back({connection.socket.get(), events, 0});
      wake = std::min(wake, connection.deadline);
    }
    out_of_descriptors_ = false;
    if (::poll(fds.data(), fds.size(), PollTimeout(wake)) < 0) {
      if (errno != EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // no memory
      continue;
    }
    if (fds[0].revents != 0) return;
    size_t i = 2;
    for (auto it = connections_.begin(); it != connections_.end(); ++i) {
      it = Continue(*it, fds[i].revents) ? std::next(it) : connections_.erase(it);
    }
    if (fds[1].revents != 0) Accept();
  }
}

void PolledHttpServer::Accept() {
  while (connections_.size() < options_.max_connections) {
    ipc::Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // Without descriptors or memory the waiting client would make poll() return at once, again and again.
      out_of_descriptors_ = errno != EAGAIN && errno != EWOULDBLOCK;
      return;
    }
    const SteadyTime now = Now();
    connections_.push_back({.socket = std::move(socket), .accepted = now, .deadline = now + timeout_});
  }
}

bool PolledHttpServer::CloseOldest() {
  const auto oldest = std::find_if(connections_.begin(), connections_.end(), [](const Connection& c) {
    return c.state != Connection::State::kWriting;
  });
  if (oldest == connections_.end() || Now() < oldest->accepted + min_age_) return false;
  connections_.erase(oldest);
  return true;
}

SteadyTime PolledHttpServer::OldestExpires() const {
  for (const Connection& connection : connections_) {
    if (connection.state != Connection::State::kWriting) return connection.accepted + min_age_;
  }
  return SteadyTime::max();
}

bool PolledHttpServer::Continue(Connection& connection, short events) {
  bool open = true;
  if (events != 0) {
    switch (connection.state) {
      case Connection::State::kReading:
        open = Read(connection);
        break;
      case Connection::State::kWriting:
        open = Write(connection);
        break;
      case Connection::State::kClosing:
        open = Drain(connection);
        break;
    }
  }
  if (!open || Now() < connection.deadline) return open;
  if (connection.state != Connection::State::kReading || connection.request.empty()) return false;
  Respond(connection, Refusal("408 Request Timeout", absl::StrCat("the request was not complete after ",
                                                                  absl::FormatDuration(options_.timeout))));
  return Write(connection);
}

bool PolledHttpServer::Read(Connection& connection) {
  char buffer[4096];
  const ssize_t size = ::recv(connection.socket.get(), buffer, sizeof(buffer), 0);
  if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (size == 0) return false;
  connection.request.append(buffer, static_cast<size_t>(size));
  const size_t head = HeadSize(connection.request);
  if (head > options_.max_request_bytes ||
      (head == 0 && connection.request.size() >= options_.max_request_bytes)) {
    Respond(connection,
            Refusal("431 Request Header Fields Too Large",
                    absl::StrCat("a request has at most ", options_.max_request_bytes, " bytes of headers")));
  } else if (head > 0) {
    Respond(connection, ResponseTo(absl::string_view(connection.request).substr(0, head)));
  } else {
    return true;
  }
  return Write(connection);
}

std::string PolledHttpServer::ResponseTo(absl::string_view head) const {
  // The request line is METHOD SP target SP HTTP/1.x.
  absl::string_view line = head.substr(0, head.find('\n'));
  if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == absl::string_view::npos || first == 0 || last == first ||
      !absl::StartsWith(line.substr(last + 1), "HTTP/1.")) {
    return Refusal("400 Bad Request", "this port serves HTTP/1.1");
  }
  const absl::string_view method = line.substr(0, first);
  absl::string_view target = line.substr(first + 1, last - first - 1);
  if (method != "GET" && method != "HEAD") {
    return Refusal("405 Method Not Allowed", "this port answers GET and HEAD", "Allow: GET, HEAD\r\n");
  }
  const std::optional<absl::string_view> host = HeaderOf(head, "host");
  if (!host.has_value() || !AllowsHost(*host, options_.access)) {
    return Refusal("421 Misdirected Request",
                   "this server is not known by the name in the Host header (--metrics-names)");
  }
  if (!options_.access.credentials.empty() &&
      !Presents(HeaderOf(head, "authorization").value_or(""), options_.access.credentials)) {
    return Refusal("401 Unauthorized", "this page needs a user name and a password (--metrics-password-file)",
                   "WWW-Authenticate: Basic realm=\"tandem\", charset=\"UTF-8\"\r\n");
  }
  target = PathOf(target);
  if (target != options_.path) return Refusal("404 Not Found", absl::StrCat("see ", options_.path));
  return Response("200 OK", "", options_.content_type, options_.page(), method == "GET");
}

void PolledHttpServer::Respond(Connection& connection, std::string response) {
  connection.state = Connection::State::kWriting;
  connection.deadline = Now() + timeout_;
  connection.response = std::move(response);
  connection.request = std::string();
}

bool PolledHttpServer::Write(Connection& connection) {
  while (connection.sent < connection.response.size()) {
    const ssize_t size = ::send(connection.socket.get(), connection.response.data() + connection.sent,
                                connection.response.size() - connection.sent, MSG_NOSIGNAL);
    if (size < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
    connection.sent += static_cast<size_t>(size);
  }
  ::shutdown(connection.socket.get(), SHUT_WR);
  connection.state = Connection::State::kClosing;
  connection.deadline = Now() + std::min(timeout_, std::chrono::nanoseconds(std::chrono::seconds(1)));
  connection.response = std::string();
  return Drain(connection);
}

bool PolledHttpServer::Drain(Connection& connection) {
  char buffer[16384];
  const ssize_t size = ::recv(connection.socket.get(), buffer, sizeof(buffer), 0);
  if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  return size > 0;
}

absl::StatusOr<ipc::Descriptor> Listen(const std::string& host, int port) {
  const addrinfo hints{.ai_flags = AI_PASSIVE, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  int failed = EADDRNOTAVAIL;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    ipc::Descriptor socket(
        ::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol));
    const int on = 1;
    if (socket.valid() && ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        ::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        ::listen(socket.get(), 128) == 0) {
      return socket;
    }
    failed = errno;
  }
  return absl::UnavailableError(std::strerror(failed));
}

int PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options) {
  const HttpAccess& access = options.access;
  const std::string address = absl::StrContains(access.host, ':')
                                  ? absl::StrCat("[", access.host, "]:", access.port)
                                  : absl::StrCat(access.host, ":", access.port);
  absl::StatusOr<ipc::Descriptor> listener = Listen(access.host, access.port);
  if (!listener.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot listen at ", address, ": ",
                                               listener.status().message(),
                                               "; port 0 lets the kernel pick one"));
  }
  ipc::Descriptor stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) {
    return absl::UnavailableError(absl::StrCat("cannot listen at ", address, ": ", std::strerror(errno)));
  }
  const int port = PortOf(listener->get());
  auto server =
      std::make_unique<PolledHttpServer>(std::move(options), *std::move(listener), std::move(stop), port);
  try {
    server->Run();
  } catch (const std::system_error& error) {
    return absl::UnavailableError(absl::StrCat("cannot listen at ", address, ": no thread: ", error.what()));
  }
  return server;
}

}  // namespace tandem::cluster
