// SPDX-License-Identifier: Apache-2.0
#include "python/src/connection.h"

#include <unistd.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "cluster/environment.h"
#include "ps/client/route/connect_shard.h"
#include "ps/storage/spill/spill_store.h"
#include "rpc/connect.h"
#include "rpc/transport/loopback.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::python {
namespace {

ps::ClientOptions ClientOptionsOf(const ConnectionOptions& options, uint32_t worker) {
  return {.worker = worker,
          .timeout = options.timeout,
          .max_lag = options.max_lag,
          .checkpoint_timeout = options.checkpoint_timeout,
          .max_bytes_in_flight = options.max_bytes_in_flight,
          .go_on_waiting = options.go_on_waiting,
          .pinned_bytes = options.pinned_bytes};
}

// Calls Register on server 0.
absl::StatusOr<v1::RegisterResponse> Register(rpc::Channel& server, const std::string& name,
                                              absl::Duration timeout) {
  v1::RegisterRequest request;
  request.set_name(name);
  v1::RegisterResponse response;
  const absl::Status status = rpc::CallProto(server, "/tandem.v1.ParameterServer/Register", request,
                                             &response, {.timeout = timeout, .idempotent = true});
  if (!status.ok()) return Annotate(status, absl::StrCat("server 0 (", server.target(), ")"));
  return response;
}

// Returns the smallest number that no other connection of this process has. It is free again when the last
// copy of the pointer is dropped.
std::shared_ptr<const int> TakeNumber() {
  struct Taken {
    absl::Mutex mutex;
    std::set<int> numbers ABSL_GUARDED_BY(mutex);
  };
  // All connections of the process share the numbers.
  static Taken& taken = *new Taken;
  absl::MutexLock lock(&taken.mutex);
  int number = 0;
  while (!taken.numbers.insert(number).second) ++number;
  return {new int(number), [](const int* given) {
            absl::MutexLock again(&taken.mutex);
            taken.numbers.erase(*given);
            delete given;
          }};
}

// Names a connection of this process to servers of which it is no member.
std::string NameOfConnection(int number) {
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  const std::string name = absl::StrCat("python/", std::string(host).substr(0, 200), "/", ::getpid());
  return number == 0 ? name : absl::StrCat(name, "/", number);
}

}  // namespace

std::optional<CallCounter::Token> CallCounter::Begin(const std::shared_ptr<CallCounter>& counter) {
  absl::MutexLock lock(&counter->mutex_);
  if (counter->refuses_.load()) return std::nullopt;
  ++counter->under_way_;
  return Token(counter);
}

void CallCounter::Refuse() {
  absl::MutexLock lock(&mutex_);
  refuses_.store(true);
}

bool CallCounter::WaitForEnd(double seconds) const {
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return under_way_ == 0; };
  return AwaitFor(&mutex_, absl::Condition(&none), absl::Seconds(seconds));
}

void CallCounter::End() {
  absl::MutexLock lock(&mutex_);
  --under_way_;
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::ToJob(const ConnectionOptions& options) {
  if (!cluster::Environment::IsLaunched()) {
    return absl::FailedPreconditionError(
        "this process was not started by a launcher, so there is no job to join. Start it with `tandem run "
        "--ps N -- "
        "python script.py`, name the servers with tandem.connect(servers=[...]), or use tandem.local()");
  }
  std::unique_ptr<Connection> connection(new Connection);
  TANDEM_ASSIGN_OR_RETURN(const cluster::Environment given, cluster::Environment::FromEnv());
  SetLogName(given.member());
  if (given.num_ps < 1) {
    return absl::FailedPreconditionError(
        "the job has no parameter server (TANDEM_NUM_PS is 0 or not set); start it with `tandem run --ps N`");
  }
  TANDEM_ASSIGN_OR_RETURN(connection->job_, JobMember::Get(options.timeout));
  cluster::Member& member = **connection->job_;
  const cluster::Environment& env = member.env();
  connection->rank_ = env.rank;
  connection->world_size_ = env.world_size;
  std::vector<std::string> keys;
  for (int i = 0; i < env.num_ps; ++i) keys.push_back(absl::StrCat("ps/", i));
  cluster::Store* const store = member.store();
  TANDEM_RETURN_IF_ERROR(Annotate(store->Wait(keys, options.timeout), "waiting for the parameter servers"));
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  for (const std::string& key : keys) {
    TANDEM_ASSIGN_OR_RETURN(const std::string address, store->Get(key, options.timeout));
    connection->addresses_.push_back(address);
    const auto read = [store](const std::string& name, absl::Duration timeout) {
      return store->GetIfPresent(name, timeout);
    };
    TANDEM_ASSIGN_OR_RETURN(ps::ShardConnection server,
                            ps::ConnectShard({.shard = static_cast<uint32_t>(channels.size()),
                                              .address = address,
                                              .read = read,
                                              .timeout = options.timeout,
                                              .connect = {.channel = {.caller = env.caller()}}}));
    channels.push_back(std::move(server.channel));
  }
  TANDEM_ASSIGN_OR_RETURN(
      connection->client_,
      ps::Client::Connect(std::move(channels), ClientOptionsOf(options, static_cast<uint32_t>(env.rank))));
  // A restarted worker fences off its earlier process before it reads anything.
  TANDEM_RETURN_IF_ERROR(connection->PreparePush());
  member.SetServing(true);
  return connection;
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::ToServers(const std::vector<std::string>& addresses,
                                                                  std::optional<uint32_t> worker,
                                                                  bool read_only,
                                                                  const ConnectionOptions& options) {
  if (addresses.empty())
    return absl::InvalidArgumentError("servers is empty; give the address of each parameter server");
  std::unique_ptr<Connection> connection(new Connection);
  connection->addresses_ = addresses;
  std::vector<std::unique_ptr<rpc::Channel>> channels(addresses.size());
  const auto connect_to = [&](size_t server, const rpc::ConnectOptions& how) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(ps::ShardConnection shard,
                            ps::ConnectShard({.shard = static_cast<uint32_t>(server),
                                              .address = addresses[server],
                                              .timeout = options.timeout,
                                              .connect = how}));
    channels[server] = std::move(shard.channel);
    return absl::OkStatus();
  };
  rpc::ConnectOptions connect;
  TANDEM_RETURN_IF_ERROR(connect_to(0, connect));
  v1::RegisterResponse job;
  if (!read_only) {
    absl::StatusOr<v1::RegisterResponse> registered = Register(*channels[0], "", options.timeout);
    // With a reader's grant the connection can read; a call that changes something gets this error.
    if (!registered.ok() && !absl::IsPermissionDenied(registered.status())) return registered.status();
    if (registered.ok()) job = *std::move(registered);
  }
  if (job.epoch() != 0) {
    // Servers keep the names that have registered, so connections that only read leave none.
    if (!worker.has_value()) {
      connection->number_ = TakeNumber();
      TANDEM_ASSIGN_OR_RETURN(
          job, Register(*channels[0], NameOfConnection(*connection->number_), options.timeout));
      worker = job.worker();
    }
    connect.channel.caller = {
        .run_id = job.run_id(), .epoch = job.epoch(), .member = absl::StrCat("worker/", *worker)};
    channels[0].reset();
  }
  for (size_t s = 0; s < addresses.size(); ++s) {
    if (channels[s] != nullptr) continue;
    TANDEM_RETURN_IF_ERROR(connect_to(s, connect));
  }
  connection->rank_ = static_cast<int>(worker.value_or(0));
  TANDEM_ASSIGN_OR_RETURN(
      connection->client_,
      ps::Client::Connect(std::move(channels), ClientOptionsOf(options, worker.value_or(0))));
  return connection;
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::ToLocalServers(int servers,
                                                                       const std::string& spill_directory,
                                                                       const ConnectionOptions& options) {
  constexpr int kMaxServers = 64;
  if (servers < 1 || servers > kMaxServers) {
    return absl::InvalidArgumentError(
        absl::StrCat("servers is ", servers, "; it must be in [1, ", kMaxServers, "]"));
  }
  std::unique_ptr<Connection> connection(new Connection);
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  for (int i = 0; i < servers; ++i) {
    ps::ParameterServerOptions server{.index = static_cast<uint32_t>(i),
                                      .num_servers = static_cast<uint32_t>(servers)};
    if (!spill_directory.empty()) {
      server.cold_store = std::make_shared<ps::SpillStore>(
          ps::SpillOptions{.directory = absl::StrCat(spill_directory, "/ps-", i)});
    }
    connection->local_servers_.push_back(std::make_unique<ps::ParameterServer>(server));
    channels.push_back(rpc::ConnectLoopback(std::make_shared<const std::vector<rpc::Service>>(
        std::vector<rpc::Service>{connection->local_servers_.back()->service()})));
  }
  TANDEM_ASSIGN_OR_RETURN(connection->client_,
                          ps::Client::Connect(std::move(channels), ClientOptionsOf(options, 0)));
  connection->has_push_epoch_.store(true);  // the servers know no other process
  return connection;
}

absl::Status Connection::PreparePush() {
  if (ready_to_push()) return absl::OkStatus();
  absl::MutexLock lock(&push_epoch_mutex_);
  return ready_to_push() ? absl::OkStatus() : StartPushEpochLocked();
}

absl::Status Connection::StartPushEpoch() {
  absl::MutexLock lock(&push_epoch_mutex_);
  return StartPushEpochLocked();
}

absl::Status Connection::StartPushEpochLocked() {
  TANDEM_RETURN_IF_ERROR(client_->StartPushEpoch());
  has_push_epoch_.store(true);
  return absl::OkStatus();
}

void Connection::End(Ending ending, const std::string& reason) {
  ended_ = true;
  if (job_ != nullptr) (*job_)->SetServing(false);
  if (ending == Ending::kFinished) {
    // Before this process leaves the job, which may then end for the servers.
    if (const absl::Status pushed = client_->PushDeferred(); !pushed.ok()) {
      LogError(absl::StrCat("gradients that were deferred are lost: ", pushed.message()));
    }
  }
  if (job_ == nullptr) return;
  if (ending == Ending::kFailed) {
    if (!job_status().ok()) return;  // the job knows another reason
    if (const absl::Status told = (*job_)->FailJob(reason); !told.ok()) LogWarning(told.message());
    return;
  }
  if (ending == Ending::kExits && (*job_)->env().epoch == 0) {
    LogWarning(
        "the program ends without client.close(), so its job will fail: nothing says that the work is done");
    job_->EndUnfinished();
    return;
  }
  if (job_.use_count() > 1) return;  // the last part of the program leaves
  const absl::Status left = (*job_)->Leave(absl::Seconds(10), "the program has closed its client");
  if (!left.ok()) LogWarning(left.message());
}

Connection::~Connection() {
  if (job_ == nullptr) return;
  (*job_)->SetServing(false);
  // A launcher sees how the process ends.
  if (!ended_ && (*job_)->env().epoch == 0) job_->EndUnfinished();
}

absl::Status Connection::job_status() const { return job_ == nullptr ? absl::OkStatus() : job_->status(); }

}  // namespace tandem::python
