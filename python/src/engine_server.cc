// SPDX-License-Identifier: Apache-2.0
#include "python/src/engine_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/job_token.h"
#include "rpc/connect.h"
#include "rpc/network.h"
#include "rpc/transport/loopback.h"

namespace tandem::python {

absl::StatusOr<LaunchedJob> LaunchedJob::Open(absl::Duration timeout) {
  LaunchedJob job;
  if (cluster::Environment::IsLaunched()) {
    TANDEM_ASSIGN_OR_RETURN(job.env, cluster::Environment::FromEnv());
  }
  if (job.env.store.empty()) {
    return absl::FailedPreconditionError(
        "this process has no TANDEM_STORE, which `tandem run` sets, so there is no job with servers; start "
        "it "
        "with `tandem run --learners 1 --replay 1 --actors 4 -- python script.py`, give the server's "
        "address, "
        "or use local()");
  }
  rpc::ConnectOptions options;
  options.transport = "grpc";
  options.channel.caller = job.env.caller();
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, rpc::Connect(job.env.store, options));
  job.store =
      std::make_unique<cluster::RemoteStore>(std::move(channel), std::min(timeout, absl::Seconds(30)));
  TANDEM_RETURN_IF_ERROR(cluster::AgreeOnJobToken(job.store.get(), &job.env.token));
  return job;
}

namespace {

// Returns the status with the names of Python's arguments in the place of flags of commands.
absl::Status InPythonsWords(const absl::Status& status) {
  return {status.code(),
          absl::StrReplaceAll(status.message(), {{"--listen", "listen"}, {"--advertise", "advertise"}})};
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineServer>> EngineServer::Start(EngineServerOptions options) {
  std::unique_ptr<EngineServer> server(new EngineServer);
  LaunchedJob job;
  std::string member = "replay/0";
  if (options.in_job) {
    TANDEM_ASSIGN_OR_RETURN(job, LaunchedJob::Open(options.timeout));
    member = job.env.member();
    SetLogName(member);
  }
  std::vector<rpc::Service> services;
  if (options.weights) {
    server->weights_ = std::make_unique<weights::WeightServer>(
        weights::WeightServerOptions{.name = member, .store = options.weight_options});
    services.push_back(server->weights_->service());
  }
  if (options.replay) {
    options.replay_options.name = member;
    // Tables of a notebook may wait for their user. The errors of calls say what they wait for.
    if (!options.in_job && options.listen.empty())
      options.replay_options.log_waits_every = absl::InfiniteDuration();
    if (server->weights_ != nullptr) {
      options.replay_options.find_weights =
          [store = &server->weights_->store()](const replay::CommittedVersion& version) {
            return store->Find({.epoch = version.epoch, .number = static_cast<uint64_t>(version.version)});
          };
    }
    server->saves_ = !options.replay_options.checkpoint_directory.empty();
    TANDEM_ASSIGN_OR_RETURN(server->replay_, replay::ReplayServer::Make(options.replay_options));
    for (const replay::v1::ReplayTableOptions& table : options.tables) {
      TANDEM_RETURN_IF_ERROR(server->replay_->CreateTable(table));
    }
    services.push_back(server->replay_->service());
  }
  server->services_ = std::make_shared<const std::vector<rpc::Service>>(services);
  if (options.in_job) {
    auto registered = cluster::RoleServer::Start(std::move(services), job.env, job.store->channel(),
                                                 {.listen = options.listen, .advertise = options.advertise});
    if (!registered.ok()) return InPythonsWords(registered.status());
    server->registered_ = *std::move(registered);
    server->address_ = server->registered_->address();
  } else if (!options.listen.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string token, cluster::JobTokenFromEnv());
    TANDEM_ASSIGN_OR_RETURN(
        server->listening_,
        rpc::Server::Start(
            {.listen = options.listen,
             .gate = std::make_shared<rpc::EpochGate>(rpc::Caller{.member = member, .token = token})},
            std::move(services)));
    absl::StatusOr<std::string> address =
        rpc::AdvertisedAddress(options.listen, options.advertise, server->listening_->port());
    if (!address.ok()) return InPythonsWords(address.status());
    server->address_ = *std::move(address);
  }
  return server;
}

std::unique_ptr<rpc::Channel> EngineServer::Connect() const { return rpc::ConnectLoopback(services_); }

absl::Status EngineServer::Stop() {
  absl::MutexLock lock(&stop_mutex_);
  if (stopped_) return stop_status_;
  stopped_ = true;
  if (weights_ != nullptr) weights_->Stop();
  if (replay_ != nullptr) {
    replay_->Stop();  // before the checkpoint, so that it has everything that was acknowledged
    if (saves_) stop_status_ = Annotate(replay_->SaveCheckpoint().status(), "the last checkpoint");
  }
  if (listening_ != nullptr) listening_->Shutdown(absl::Seconds(1));
  registered_ = nullptr;
  return stop_status_;
}

absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectToAddress(const std::string& address) {
  rpc::ConnectOptions options;
  TANDEM_ASSIGN_OR_RETURN(options.channel.caller.token, cluster::JobTokenFromEnv());
  return rpc::Connect(address, options);
}

namespace {

absl::StatusOr<int> CountServers(const LaunchedJob& job, const std::string& role, absl::Duration timeout) {
  absl::StatusOr<int> servers = cluster::CountRoleServers(job.store.get(), role, timeout);
  if (!absl::IsDeadlineExceeded(servers.status())) return servers;
  return absl::DeadlineExceededError(
      absl::StrCat("no process of role '", role, "' serves within ", absl::FormatDuration(timeout),
                   "; start the job with --", role, " 1, and call tandem.replay.serve() in that process"));
}

}  // namespace

absl::StatusOr<int> CountInJob(const std::string& role, absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const LaunchedJob job, LaunchedJob::Open(timeout));
  return CountServers(job, role, timeout);
}

absl::StatusOr<std::shared_ptr<rpc::Channel>> ConnectInJob(const std::string& role, int index,
                                                           absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  TANDEM_ASSIGN_OR_RETURN(const LaunchedJob job, LaunchedJob::Open(timeout));
  TANDEM_ASSIGN_OR_RETURN(const int servers, CountServers(job, role, timeout));
  if (index >= servers) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no ", role, "/", index, ": the job has ", servers, " processes of this role"));
  }
  if (index < 0) index = job.env.role_rank % servers;
  return cluster::ConnectToRole(job.env, job.store.get(), role, index,
                                std::max(deadline - MonotonicNow(), absl::Milliseconds(1)));
}

}  // namespace tandem::python
