// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/ps_peer.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "bench/harness/cpu_seconds.h"
#include "bench/harness/id_batches.h"
#include "bench/harness/measure.h"
#include "bench/harness/ps_flags.h"
#include "bench/harness/ps_report.h"

namespace tandem::bench {
namespace {

// The server's process. It ends with this object, or with the process that created it.
class ServerProcess {
 public:
  explicit ServerProcess(const std::function<int(const std::function<void(std::string)>& announce)>& serve) {
    int fds[2];
    if (::pipe(fds) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(fds[0]);
      ::_exit(serve([&](const std::string& address) {
        [[maybe_unused]] const ssize_t written = ::write(fds[1], address.data(), address.size());
        ::close(fds[1]);
      }));
    }
    ::close(fds[1]);
    char bytes[256];
    for (ssize_t size; (size = ::read(fds[0], bytes, sizeof(bytes))) > 0;) address_.append(bytes, size);
    ::close(fds[0]);
  }
  ~ServerProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  // empty: the server ended before it announced its address
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  std::string address_;
};

bool MeasureCase(const PsCase& c, const IdBatches& batches, double seconds, pid_t server, PsPeer* peer,
                 bool json) {
  if (peer->Run(c, batches, 0, Now() + seconds / 5).empty()) return false;  // to warm up
  const absl::StatusOr<double> server_before = CpuSecondsOf(server);
  const absl::StatusOr<double> client_before = CpuSecondsOf(::getpid());
  const double begin = Now();
  std::vector<double> latencies_us = peer->Run(c, batches, batches.size() / 2, begin + seconds);
  const double took = Now() - begin;
  const absl::StatusOr<double> server_after = CpuSecondsOf(server);
  const absl::StatusOr<double> client_after = CpuSecondsOf(::getpid());
  if (latencies_us.empty() || !server_before.ok() || !server_after.ok()) return false;
  const double keys = static_cast<double>(latencies_us.size()) * static_cast<double>(c.ids);
  PsResult result;
  result.keys_per_s = keys / took;
  result.call = Summarize(std::move(latencies_us));
  result.client_cpu_s_per_mkeys = (*client_after - *client_before) / keys * 1e6;
  result.server_cpu_s_per_mkeys = (*server_after - *server_before) / keys * 1e6;
  Print(c, result, json);
  return true;
}

}  // namespace

int FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(fd);
  return bound ? ntohs(address.sin_port) : -1;
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int RunPsPeer(int argc, char** argv, const char* name,
              const std::function<int(const PsPeerSetup&, const std::function<void(std::string)>&)>& serve,
              const std::function<PsPeer*(const PsPeerSetup&, const std::string&)>& connect) {
  CLI::App app{name};
  PsFlags flags;
  flags.transports = "tcp";
  flags.ops = "pull,push";
  flags.dims = "64";
  flags.servers = "1";
  flags.distributions = "uniform";
  DeclarePsFlags(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  const absl::StatusOr<std::vector<PsGroup>> groups = PsGroupsOf(flags);
  if (!groups.ok() || groups->size() != 1) {
    std::fprintf(stderr, "%s: %s\n", name,
                 groups.ok() ? "one --dim and one pair of processes at a time"
                             : std::string(groups.status().message()).c_str());
    return 2;
  }
  const PsPeerSetup setup{.transport = flags.transports, .rows = flags.rows, .dim = groups->front().dim};
  const ServerProcess server([&](const auto& announce) { return serve(setup, announce); });
  const std::unique_ptr<PsPeer> peer(server.address().empty() ? nullptr : connect(setup, server.address()));
  if (peer == nullptr) {
    std::fprintf(stderr, "%s: its server did not start\n", name);
    return 1;
  }
  for (const PsCase& c : groups->front().cases) {
    const IdBatches batches = MakeIdBatches(c.ids, flags.rows, c.distribution);
    if (!MeasureCase(c, batches, flags.time_ms / 1e3, server.pid(), peer.get(), flags.json)) return 1;
  }
  return 0;
}

}  // namespace tandem::bench
