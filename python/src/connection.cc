// SPDX-License-Identifier: Apache-2.0
#include "python/src/connection.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/storage/spill/spill_store.h"
#include "rpc/connect.h"
#include "rpc/transport/loopback.h"

namespace tandem::python {
namespace {

ps::ClientOptions ClientOptionsOf(const ConnectionOptions& options, uint32_t worker) {
  return {.worker = worker,
          .timeout = options.timeout,
          .checkpoint_timeout = options.checkpoint_timeout,
          .max_bytes_in_flight = options.max_bytes_in_flight};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> Connection::ToJob(const ConnectionOptions& options) {
  if (!collectives::Environment::IsLaunched()) {
    return absl::FailedPreconditionError(
        "this process was not started by a launcher, so there is no job to join. Start it with `tandem run --ps N -- "
        "python script.py`, name the servers with tandem.connect(servers=[...]), or use tandem.local()");
  }
  std::unique_ptr<Connection> connection(new Connection);
  TANDEM_ASSIGN_OR_RETURN(connection->env_, collectives::Environment::FromEnv());
  const collectives::Environment& env = connection->env_;
  SetLogName(env.member());
  if (env.num_ps < 1) {
    return absl::FailedPreconditionError(
        "the job has no parameter server (TANDEM_NUM_PS is 0 or not set); start it with `tandem run --ps N`");
  }
  TANDEM_ASSIGN_OR_RETURN(connection->store_, collectives::OpenStore(env, options.timeout));
  connection->diagnostics_ = rpc::ProcessDiagnostics::Start(env.member(), env.epoch, connection->store_->address());
  TANDEM_ASSIGN_OR_RETURN(connection->monitor_,
                          collectives::JobMonitor::Start(
                              connection->store_->channel(),
                              {.member = env.member(), .status = connection->diagnostics_->status()},
                              [self = connection.get()](const collectives::JobState& state) {
                                absl::MutexLock lock(&self->mutex_);
                                if (!state.failed || self->leaving_) return;
                                self->failure_ = absl::UnavailableError(absl::StrCat("the job has failed: ", state.reason));
                                LogError(self->failure_.message());
                              }));
  std::vector<std::string> keys;
  for (int i = 0; i < env.num_ps; ++i) keys.push_back(absl::StrCat("ps/", i));
  collectives::Store* const store = connection->store_->store();
  TANDEM_RETURN_IF_ERROR(Annotate(store->Wait(keys, options.timeout), "waiting for the parameter servers"));
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  for (const std::string& key : keys) {
    TANDEM_ASSIGN_OR_RETURN(const std::string address, store->Get(key, options.timeout));
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel,
                            rpc::Connect(address, {.channel = {.caller = env.caller()}}));
    channels.push_back(std::move(channel));
  }
  TANDEM_ASSIGN_OR_RETURN(
      connection->client_,
      ps::Client::Connect(std::move(channels), ClientOptionsOf(options, static_cast<uint32_t>(env.rank))));
  // Fences off an earlier process of this worker.
  TANDEM_RETURN_IF_ERROR(connection->client_->StartPushEpoch());
  connection->diagnostics_->SetServing(true);
  return connection;
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::ToServers(const std::vector<std::string>& addresses,
                                                                  uint32_t worker, bool read_only,
                                                                  const ConnectionOptions& options) {
  std::unique_ptr<Connection> connection(new Connection);
  connection->env_.rank = static_cast<int>(worker);
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  for (const std::string& address : addresses) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, rpc::Connect(address));
    channels.push_back(std::move(channel));
  }
  TANDEM_ASSIGN_OR_RETURN(connection->client_,
                          ps::Client::Connect(std::move(channels), ClientOptionsOf(options, worker)));
  // Fences off an earlier process of this worker. A reader is no worker: its rank may be that of another process.
  if (!read_only) TANDEM_RETURN_IF_ERROR(connection->client_->StartPushEpoch());
  return connection;
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::ToLocalServers(int servers, const std::string& spill_directory,
                                                                       const ConnectionOptions& options) {
  constexpr int kMaxServers = 64;
  if (servers < 1 || servers > kMaxServers) {
    return absl::InvalidArgumentError(absl::StrCat("servers is ", servers, "; it must be in [1, ", kMaxServers, "]"));
  }
  std::unique_ptr<Connection> connection(new Connection);
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  for (int i = 0; i < servers; ++i) {
    ps::ParameterServerOptions server{.index = static_cast<uint32_t>(i), .num_servers = static_cast<uint32_t>(servers)};
    if (!spill_directory.empty()) {
      server.cold_store =
          std::make_shared<ps::SpillStore>(ps::SpillOptions{.directory = absl::StrCat(spill_directory, "/ps-", i)});
    }
    connection->local_servers_.push_back(std::make_unique<ps::ParameterServer>(server));
    channels.push_back(rpc::ConnectLoopback(std::make_shared<const std::vector<rpc::Service>>(
        std::vector<rpc::Service>{connection->local_servers_.back()->service()})));
  }
  TANDEM_ASSIGN_OR_RETURN(connection->client_, ps::Client::Connect(std::move(channels), ClientOptionsOf(options, 0)));
  return connection;
}

Connection::~Connection() {
  {
    absl::MutexLock lock(&mutex_);
    leaving_ = true;
  }
  if (diagnostics_ != nullptr) diagnostics_->SetServing(false);
  client_.reset();
  if (monitor_ == nullptr) return;
  if (job_status().ok()) {
    // Without a launcher the process that hosts the store ends the job for the servers.
    const absl::Status reported =
        env_.hosts_store() ? monitor_->ReportSuccess("the program has closed its client") : monitor_->Leave();
    if (!reported.ok()) LogWarning(reported.message());
  }
  if (const absl::Status closed = store_->Close(absl::Seconds(10)); !closed.ok()) LogWarning(closed.message());
}

absl::Status Connection::job_status() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

}  // namespace tandem::python
