// SPDX-License-Identifier: Apache-2.0
#include "python/src/engine_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/join.h"
#include "rpc/connect.h"
#include "rpc/transport/loopback.h"

namespace tandem::python {

namespace {

// Returns the status with the names of Python's arguments in the place of flags of commands.
absl::Status InPythonsWords(const absl::Status& status) {
  return {status.code(),
          absl::StrReplaceAll(status.message(), {{"--listen", "listen"}, {"--advertise", "advertise"}})};
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineServer>> EngineServer::Start(EngineServerOptions options) {
  std::unique_ptr<EngineServer> server(new EngineServer);
  std::string member = "replay/0";
  if (options.in_job) {
    TANDEM_ASSIGN_OR_RETURN(server->job_, JobMember::GetLaunched(options.timeout));
    member = (*server->job_)->name();
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
  if (!options.in_job && options.listen.empty()) return server;
  cluster::ServerOptions serving{.address = {.listen = options.listen, .advertise = options.advertise}};
  auto listening = options.in_job
                       ? cluster::Server::Start(&**server->job_, std::move(serving), std::move(services))
                       : cluster::Server::StartAlone(member, std::move(serving), std::move(services));
  if (!listening.ok()) return InPythonsWords(listening.status());
  server->listening_ = *std::move(listening);
  server->address_ = server->listening_->address();
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
  listening_ = nullptr;
  job_ = nullptr;
  return stop_status_;
}

absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectToAddress(const std::string& address) {
  return rpc::Connect(address);
}

namespace {

absl::StatusOr<int> CountServers(const JobMember& job, const std::string& role, absl::Duration timeout) {
  absl::StatusOr<int> servers = cluster::CountRoleServers(job->store(), role, timeout);
  if (!absl::IsDeadlineExceeded(servers.status())) return servers;
  return absl::DeadlineExceededError(
      absl::StrCat("no process of role '", role, "' serves within ", absl::FormatDuration(timeout),
                   "; start the job with --", role, " 1, and call tandem.replay.serve() in that process"));
}

}  // namespace

absl::StatusOr<int> CountInJob(const std::string& role, absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<JobMember> job, JobMember::GetLaunched(timeout));
  return CountServers(*job, role, timeout);
}

absl::StatusOr<std::shared_ptr<rpc::Channel>> ConnectInJob(const std::string& role, int index,
                                                           absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<JobMember> job, JobMember::GetLaunched(timeout));
  TANDEM_ASSIGN_OR_RETURN(const int servers, CountServers(*job, role, timeout));
  if (index >= servers) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no ", role, "/", index, ": the job has ", servers, " processes of this role"));
  }
  if (index < 0) index = (*job)->env().role_rank % servers;
  TANDEM_ASSIGN_OR_RETURN(
      std::shared_ptr<rpc::Channel> channel,
      cluster::ConnectToRole(**job, role, index, std::max(deadline - MonotonicNow(), absl::Milliseconds(1))));
  (*job)->SetServing(true);
  return JobMember::Keep(std::move(job), std::move(channel));
}

}  // namespace tandem::python
