// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/group_process.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/suites/group_worker.h"
#include "bench/suites/in_process.h"
#include "ps/server/parameter_server.h"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "rpc/server.h"

namespace tandem::bench {
namespace {

absl::Status Serve(const GroupOptions& options, BenchPeers* peers) {
  ps::ParameterServerOptions server_options{.index = static_cast<uint32_t>(peers->server_index()),
                                            .num_servers = static_cast<uint32_t>(peers->servers())};
  if (options.durability != "off") {
    server_options.durability.directory = absl::StrCat(options.wal_dir, "/", peers->server_index());
    server_options.durability.sync = options.durability == "log-always";
  }
  ps::ParameterServer server(server_options);
  TANDEM_RETURN_IF_ERROR(server.Recover());
  const std::string socket =
      absl::StrCat("unix:", options.socket_directory, "/server-", peers->server_index());
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Server> tcp,
                          rpc::Server::Start({.listen = "127.0.0.1:0"}, {server.service()}));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Server> local,
                          rpc::Server::Start({.listen = socket, .transport = "grpc"}, {server.service()}));
  TANDEM_RETURN_IF_ERROR(peers->Announce(
      {.tcp = absl::StrCat("127.0.0.1:", tcp->port()), .unix_socket = socket, .pid = ::getpid()}));
  const absl::Status done = peers->WaitUntilDone();
  server.Stop();
  tcp->Shutdown(absl::Seconds(1));
  local->Shutdown(absl::Seconds(1));
  return done;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ps::Client>> ConnectBenchClient(const std::vector<BenchServer>& servers,
                                                               PsTransport transport, int worker,
                                                               uint64_t life) {
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  for (const BenchServer& server : servers) {
    const std::string& target = transport == PsTransport::kUnix ? server.unix_socket : server.tcp;
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel,
                            transport == PsTransport::kShm ? rpc::Connect(target, {.transport = "shm"})
                                                           : rpc::ConnectGrpc(target));
    // The environment can override the transport.
    if (channel->transport() != Name(transport)) {
      return absl::FailedPreconditionError(absl::StrCat("--transport ", Name(transport), ": the channel to ",
                                                        target, " is carried by ", channel->transport()));
    }
    channels.push_back(std::move(channel));
  }
  return ps::Client::Connect(std::move(channels),
                             {.worker = static_cast<uint32_t>(worker), .epoch = life + 1});
}

absl::Status RunGroupProcess(const PsGroup& group, const GroupOptions& options) {
  if (group.servers == 0) return MeasureInProcess(group, options.rows, options.time_per_case, options.json);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<BenchPeers> peers, BenchPeers::Join(group.workers));
  if (peers->is_server()) return Serve(options, peers.get());
  const absl::Status measured = GroupWorker(group, options, peers.get()).Run();
  // Also after an error, so that the servers end by themselves.
  const absl::Status done = peers->ReleaseServers();
  return measured.ok() ? done : measured;
}

}  // namespace tandem::bench
