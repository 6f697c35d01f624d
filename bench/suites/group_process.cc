// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/group_process.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "bench/suites/group_worker.h"
#include "bench/suites/in_process.h"
#include "ps/client/route/routed_channel.h"
#include "ps/failover/data_path.h"
#include "ps/failover/receiver.h"
#include "ps/server/parameter_server.h"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "rpc/service.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::bench {
namespace {

constexpr char kPrimary[] = "primary", kFollower[] = "follower";  // ids of the two copies of a server
constexpr absl::Duration kCopyTimeout = absl::Minutes(1);

// Copies the tables of `server`, which become the primary's, to its follower. Returns when pushes wait for
// it.
absl::Status LeadFollower(ps::ParameterServer& server, BenchPeers* peers) {
  TANDEM_ASSIGN_OR_RETURN(const std::string address, peers->Follower());
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, rpc::ConnectGrpc(address));
  // Owned by the functions, which may run as long as the server lives.
  struct Progress {
    TimedNotification complete, caught_up;
  };
  const auto progress = std::make_shared<Progress>();
  ps::DataPath& path = *server.data_path();
  TANDEM_RETURN_IF_ERROR(path.Promote(
      {.term = 1,
       .id = kPrimary,
       .events = {.on_complete = [progress](const std::string&) { progress->complete.Notify(); },
                  .on_caught_up = [progress](const std::string&) { progress->caught_up.Notify(); },
                  .on_gone =
                      [](const std::string& id, const absl::Status& why) {
                        LogError(absl::StrCat("the copy ", id, " is gone: ", why.message()));
                      }}}));
  TANDEM_RETURN_IF_ERROR(path.StartLink({.id = kFollower, .address = address}, std::move(channel)));
  if (!progress->complete.WaitFor(kCopyTimeout)) {
    return absl::DeadlineExceededError(absl::StrCat("the follower at ", address, " did not come"));
  }
  TANDEM_RETURN_IF_ERROR(path.log()->Require(kFollower));
  if (!progress->caught_up.WaitFor(kCopyTimeout)) {
    return absl::DeadlineExceededError(absl::StrCat("the follower at ", address, " has not caught up"));
  }
  path.log()->Confirm(1);
  path.SetServing(true, "");
  return absl::OkStatus();
}

ps::ParameterServerOptions OptionsOf(const BenchPeers& peers) {
  return {.index = static_cast<uint32_t>(peers.server_index()),
          .num_servers = static_cast<uint32_t>(peers.servers())};
}

// Says who the primary and its follower are, as a process with a copy does. They never change.
class Placement {
 public:
  explicit Placement(uint32_t shard) {
    absl::MutexLock lock(&mutex_);
    status_.set_shard(shard);
    status_.set_role(v1::REPLICA_ROLE_PRIMARY);
    status_.set_serving(true);
  }
  void Set(const std::string& primary, const std::string& follower) {
    absl::MutexLock lock(&mutex_);
    v1::ShardPlacement& placement = *status_.mutable_placement();
    placement.set_version(1);
    placement.mutable_primary()->set_id(kPrimary);
    placement.mutable_primary()->set_address(primary);
    v1::Replica& copy = *placement.add_in_sync();
    copy.set_id(kFollower);
    copy.set_address(follower);
  }
  // The object must outlive the service.
  rpc::Service service() {
    return {.name = "tandem.v1.Failover",
            .methods = {{"GetPlacement", rpc::Right::kObserve,
                         rpc::ProtoHandler<v1::GetPlacementRequest, v1::ReplicaStatus>(
                             [this](const v1::GetPlacementRequest&) -> absl::StatusOr<v1::ReplicaStatus> {
                               absl::MutexLock lock(&mutex_);
                               return status_;
                             })}}};
  }

 private:
  absl::Mutex mutex_;
  v1::ReplicaStatus status_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Follow(BenchPeers* peers) {
  ps::ParameterServerOptions options = OptionsOf(*peers);
  options.failover = true;
  ps::ParameterServer server(options);
  ps::Receiver& receiver = server.data_path()->receiver();
  receiver.Open(/*term=*/1, kPrimary, kFollower);
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<rpc::Server> tcp,
      rpc::Server::Start(
          {.listen = "127.0.0.1:0"},
          {server.service(), {.name = "tandem.v1.Failover", .methods = {ps::AppendMethod(&receiver)}}}));
  TANDEM_RETURN_IF_ERROR(peers->AnnounceFollower(absl::StrCat("127.0.0.1:", tcp->port())));
  const absl::Status done = peers->WaitUntilDone();
  server.Stop();
  tcp->Shutdown(absl::Seconds(1));
  return done;
}

absl::Status Serve(const GroupOptions& options, BenchPeers* peers) {
  ps::ParameterServerOptions server_options = OptionsOf(*peers);
  server_options.failover = options.durability == "follower";
  if (options.durability == "log-never" || options.durability == "log-always") {
    server_options.durability.directory = absl::StrCat(options.wal_dir, "/", peers->server_index());
    server_options.durability.sync = options.durability == "log-always";
  }
  ps::ParameterServer server(server_options);
  TANDEM_RETURN_IF_ERROR(server.Recover());
  if (server_options.failover) TANDEM_RETURN_IF_ERROR(LeadFollower(server, peers));
  const std::string socket =
      absl::StrCat("unix:", options.socket_directory, "/server-", peers->server_index());
  Placement placement(server_options.index);
  std::vector<rpc::Service> services = {server.service()};
  if (server_options.failover) services.push_back(placement.service());
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Server> tcp,
                          rpc::Server::Start({.listen = "127.0.0.1:0"}, std::move(services)));
  if (server_options.failover) {
    TANDEM_ASSIGN_OR_RETURN(const std::string follower, peers->Follower());
    placement.Set(absl::StrCat("127.0.0.1:", tcp->port()), follower);
  }
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
                                                               uint64_t life, absl::Duration max_lag) {
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  for (const BenchServer& server : servers) {
    const std::string& target = transport == PsTransport::kUnix ? server.unix_socket : server.tcp;
    const rpc::ConnectOptions connect{.transport = transport == PsTransport::kShm ? "shm" : "grpc"};
    ps::RoutedChannelOptions routed{
        .shard = static_cast<uint32_t>(channels.size()), .addresses = {target}, .connect = connect};
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, max_lag > absl::ZeroDuration()
                                                                       ? ps::ConnectRouted(std::move(routed))
                                                                       : rpc::Connect(target, connect));
    // The environment can override the transport.
    if (channel->transport() != Name(transport)) {
      return absl::FailedPreconditionError(absl::StrCat("--transport ", Name(transport), ": the channel to ",
                                                        target, " is carried by ", channel->transport()));
    }
    channels.push_back(std::move(channel));
  }
  return ps::Client::Connect(
      std::move(channels), {.worker = static_cast<uint32_t>(worker), .epoch = life + 1, .max_lag = max_lag});
}

absl::Status RunGroupProcess(const PsGroup& group, const GroupOptions& options) {
  if (group.servers == 0) return MeasureInProcess(group, options.rows, options.time_per_case, options.json);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<BenchPeers> peers,
                          BenchPeers::Join(group.workers, options.durability == "follower"));
  if (peers->is_follower()) return Follow(peers.get());
  if (peers->is_server()) return Serve(options, peers.get());
  const absl::Status measured = GroupWorker(group, options, peers.get()).Run();
  // Also after an error, so that the servers end by themselves.
  const absl::Status done = peers->ReleaseServers();
  return measured.ok() ? done : measured;
}

}  // namespace tandem::bench
