// SPDX-License-Identifier: Apache-2.0
#include "ps/server/parameter_server.h"

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/buffer_pool.h"
#include "base/ipc/directory_beneath.h"
#include "base/ipc/futex.h"
#include "base/status.h"
#include "ps/server/checkpoint_service.h"
#include "ps/server/copy_role.h"
#include "ps/server/durability.h"
#include "ps/server/helper_threads.h"
#include "ps/server/push_fence.h"
#include "ps/server/request_handler.h"
#include "ps/server/row_states_service.h"
#include "ps/server/server_parts.h"
#include "ps/server/subscription_service.h"
#include "ps/server/table/statistics.h"
#include "ps/server/table/table_registry.h"
#include "ps/server/task_executor.h"
#include "ps/table.h"

namespace tandem::ps {
namespace {

constexpr size_t kMaxRegisteredName = 256;
constexpr size_t kMaxRegistered = 4096;

// Methods that change nothing.
// Methods that a copy of a shard answers whatever its role: they read no rows.
bool AnyCopyAnswers(absl::string_view method) {
  return method == "ListTables" || method == "GetServerInfo" || method == "GetServerStatistics";
}

}  // namespace

// Owns the server's parts and lists its methods.
class ParameterServer::Impl {
 public:
  explicit Impl(const ParameterServerOptions& options);
  ~Impl() { Stop(); }

  absl::Status Recover();
  DataPath* data_path() { return copy_role_ == nullptr ? nullptr : copy_role_->data_path(); }
  RequestHandler& requests() { return requests_; }
  rpc::Service MakeService();
  rpc::Service MakeDurabilityService();
  rpc::Service MakeSubscriptionsService();
  void Stop();
  size_t parked_calls() const { return requests_.deferred_calls(); }

 private:
  absl::StatusOr<v1::ListTablesResponse> ListTables(const v1::ListTablesRequest& request) const;
  absl::StatusOr<v1::ServerInfo> Info() const;
  absl::StatusOr<v1::ServerStatistics> Statistics() const;
  absl::StatusOr<v1::CreateTableResponse> CreateTable(const v1::CreateTableRequest& request);
  absl::StatusOr<v1::DropTableResponse> DropTable(const v1::DropTableRequest& request);
  absl::StatusOr<v1::SetUpdateModeResponse> SetUpdateMode(const v1::SetUpdateModeRequest& request);
  absl::StatusOr<v1::FlushResponse> Flush(const std::string& name);
  absl::StatusOr<v1::BeginCheckpointResponse> Begin(const v1::BeginCheckpointRequest& request);
  absl::StatusOr<v1::RegisterResponse> Register(const v1::RegisterRequest& request);
  absl::StatusOr<v1::DurabilityInfo> GetDurability() const;
  // Runs `body` with a path of the directory that the client has named, if it lies below
  // ParameterServerOptions::checkpoint_root. Errors name the directory as the client did.
  template <typename Response>
  absl::StatusOr<Response> WithinRoot(
      const std::string& directory,
      absl::FunctionRef<absl::StatusOr<Response>(const std::string& path)> body) const;
  // Returns a handler that refuses calls while this copy of the shard does not serve, except pulls that a
  // follower may answer.
  rpc::Method IfServing(rpc::Method method);
  absl::StatusOr<v1::LoadCheckpointResponse> Load(const std::string& directory);

  // Runs `task`, of the background thread, once no begun checkpoint is being written. Meanwhile that thread
  // runs others.
  void RunBehindBegun(const std::function<void()>& task);
  // Replies once everything that was logged is durable; at once if `response` is an error.
  template <typename Response>
  void ReplyWhenDurable(const rpc::Reply<Response>& reply, absl::StatusOr<Response> response);

  // Returns a handler whose body runs on the background thread. A request that names a worker must come from
  // that worker (CheckWorker).
  template <typename Request, typename Response>
  rpc::Handler Background(std::function<absl::StatusOr<Response>(const Request&)> body);

  const ParameterServerOptions options_;
  const absl::Time started_;
  const ShardMap shard_map_;
  BufferPool buffers_;
  HelperThreads helpers_;
  std::atomic<bool> stopping_{false};
  TableRegistry tables_;
  // Before the handler of requests, whose deferred pushes hold space of its log. nullptr: not durable.
  std::unique_ptr<Durability> durability_;
  std::unique_ptr<CopyRole> copy_role_;  // the same; nullptr: the only copy of its shard
  RequestHandler requests_;
  CheckpointService checkpoints_;
  RowStatesService row_states_;
  SubscriptionService subscriptions_;
  absl::Mutex registered_mutex_;
  std::map<std::string, uint32_t> registered_ ABSL_GUARDED_BY(registered_mutex_);  // ranks by name
  // One thread that writes checkpoints while pushes go on, and answers those who wait for that.
  TaskExecutor checkpoint_writer_;
  // One thread for all other checkpoints, table creation, changes of mode, writes and scans of rows.
  TaskExecutor background_;
};

ParameterServer::ParameterServer(const ParameterServerOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
ParameterServer::~ParameterServer() = default;
absl::Status ParameterServer::Recover() { return impl_->Recover(); }
DataPath* ParameterServer::data_path() { return impl_->data_path(); }
size_t ParameterServer::waiting_calls() const { return impl_->requests().waiting_calls(); }
void ParameterServer::SetWorkersThatLeft(const std::set<uint32_t>& workers) {
  impl_->requests().SetWorkersThatLeft(workers);
}
rpc::Service ParameterServer::service() { return impl_->MakeService(); }
rpc::Service ParameterServer::durability_service() { return impl_->MakeDurabilityService(); }
rpc::Service ParameterServer::subscriptions_service() { return impl_->MakeSubscriptionsService(); }
void ParameterServer::Stop() { impl_->Stop(); }
size_t ParameterServer::parked_calls() const { return impl_->parked_calls(); }

ParameterServer::Impl::Impl(const ParameterServerOptions& options)
    : options_(options),
      started_(options.clock->Now()),
      shard_map_(ShardMap::Even(options.num_servers, options.num_buckets)),
      helpers_(ipc::UsableProcessors() - 1),
      tables_({.server = options.index,
               .shard_map = &shard_map_,
               .buffers = &buffers_,
               .helpers = &helpers_,
               .cold_store = options.cold_store,
               .max_memory_bytes = options.max_memory_bytes,
               .durable = options.failover || !options.durability.directory.empty()}),
      requests_(options_, &tables_, &buffers_, &stopping_),
      checkpoints_(options_, &tables_, &requests_, &stopping_),
      row_states_(&tables_, &requests_),
      subscriptions_(
          &tables_, &requests_,
          [this] { return copy_role_ == nullptr ? absl::OkStatus() : copy_role_->CheckServing(); }),
      checkpoint_writer_(1),
      background_(1) {
  TANDEM_CHECK(options.index < options.num_servers);
  const auto registered = [this] {
    absl::MutexLock lock(&registered_mutex_);
    return registered_;
  };
  const auto restore_registered = [this](const std::string& name, uint32_t rank) {
    absl::MutexLock lock(&registered_mutex_);
    registered_[name] = rank;
  };
  const auto clear_registered = [this] {
    absl::MutexLock lock(&registered_mutex_);
    registered_.clear();
  };
  const ServerParts parts{.tables = &tables_,
                          .requests = &requests_,
                          .row_states = &row_states_,
                          .registered = registered,
                          .restore_registered = restore_registered,
                          .clear_registered = clear_registered,
                          .background = &background_,
                          .stopping = &stopping_,
                          .boot_time = options_.boot_time,
                          .interrupt_checkpoints = [this](bool now) { checkpoints_.Interrupt(now); }};
  if (options.failover) {
    copy_role_ = MakeCopyRole(parts);
  } else if (!options.durability.directory.empty()) {
    durability_ = std::make_unique<Durability>(options_.durability, parts);
  }
}

absl::Status ParameterServer::Impl::Recover() {
  if (options_.failover && !options_.durability.directory.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("server ", options_.index, " has a log in ",
                                                   options_.durability.directory,
                                                   " and followers: choose one, --wal-dir or --followers"));
  }
  if (durability_ == nullptr) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(Annotate(durability_->Recover(), absl::StrCat("server ", options_.index)));
  requests_.SetLog(durability_->log());
  checkpoints_.set_after_load([this] { return durability_->SnapshotNow(); });
  return absl::OkStatus();
}

void ParameterServer::Impl::Stop() {
  stopping_ = true;
  checkpoints_.Interrupt(true);
  // Deferred calls are finished first, whatever the background thread does; what that thread still releases
  // runs on it. That thread may wait for the log.
  subscriptions_.Stop();
  requests_.Stop();
  if (durability_ != nullptr) durability_->Stop();
  if (copy_role_ != nullptr) copy_role_->Stop();
  background_.Stop();
  checkpoint_writer_.Stop();
}

template <typename Request, typename Response>
rpc::Handler ParameterServer::Impl::Background(std::function<absl::StatusOr<Response>(const Request&)> body) {
  return rpc::AsyncProtoHandler<Request, Response>(
      [this, body = std::move(body)](std::shared_ptr<rpc::ServerCall> call, Request request,
                                     rpc::Reply<Response> reply) {
        if constexpr (requires { request.worker(); }) {
          absl::Status itself = CheckWorker(call->caller(), request.worker(), "a request");
          if (!itself.ok()) return reply(std::move(itself));
        }
        TaskExecutor* executor = &background_;
        bool behind_begun = false;  // waits while a begun checkpoint is written
        if constexpr (requires { request.begun(); }) {
          if (request.begun()) {
            checkpoints_.Want(request.directory());
            executor = &checkpoint_writer_;  // behind the task that writes
          } else {
            behind_begun = true;
          }
        }
        std::function<void()> task = [this, body, reply, request = std::move(request)] {
          if (stopping_) {
            constexpr absl::string_view kText = "the parameter server is stopping";
            // Clients repeat calls to a durable server: it will come back, or a follower takes over.
            return reply(requests_.log() == nullptr ? absl::CancelledError(kText)
                                                    : absl::UnavailableError(kText));
          }
          if (copy_role_ != nullptr) {
            // The role may have changed since the call arrived.
            if (absl::Status serving = copy_role_->CheckServing(); !serving.ok())
              return reply(std::move(serving));
          }
          // The call is answered once its changes are safe. The thread does not wait for that: the disk may
          // be full.
          absl::StatusOr<Response> response = body(request);
          constexpr bool kOnlyReads = std::is_same_v<Request, v1::ScanRowsRequest>;
          if (kOnlyReads) return reply(std::move(response));
          ReplyWhenDurable(reply, std::move(response));
        };
        if (behind_begun) task = [this, task = std::move(task)] { RunBehindBegun(task); };
        const bool posted = executor->Post(std::move(task));
        if (!posted) reply(absl::UnavailableError("the parameter server has stopped"));
      });
}

void ParameterServer::Impl::RunBehindBegun(const std::function<void()>& task) {
  // A task that cannot be posted runs here: the server is stopping, which is what the task then answers.
  const auto again = [this, task] {
    if (!background_.Post([this, task] { RunBehindBegun(task); })) task();
  };
  if (!checkpoints_.IsWriting() || !checkpoint_writer_.Post(again)) task();
}

template <typename Response>
void ParameterServer::Impl::ReplyWhenDurable(const rpc::Reply<Response>& reply,
                                             absl::StatusOr<Response> response) {
  if (!response.ok()) return reply(std::move(response));
  requests_.WhenDurable([reply, response = *std::move(response)](const absl::Status& durable) {
    durable.ok() ? reply(response) : reply(durable);
  });
}

rpc::Service ParameterServer::Impl::MakeDurabilityService() {
  rpc::Service service;
  service.name = "tandem.v1.Durability";
  service.methods = {{"GetDurability", rpc::Right::kObserve,
                      rpc::ProtoHandler<v1::GetDurabilityRequest, v1::DurabilityInfo>(
                          [this](const v1::GetDurabilityRequest&) { return GetDurability(); })}};
  return service;
}

namespace {

// Checks that the caller's grant, if it presents one, covers the tables of a subscription.
absl::Status CheckSubscription(const rpc::ServerCall& call, const v1::GetChangesRequest& request) {
  if (call.grant() == nullptr || call.grant()->tables.empty()) return absl::OkStatus();
  if (request.tables().empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat(call.grant()->ToString(), ": name the tables of the subscription"));
  }
  for (const std::string& table : request.tables()) TANDEM_RETURN_IF_ERROR(call.CheckTable(table));
  return absl::OkStatus();
}

}  // namespace

rpc::Service ParameterServer::Impl::MakeSubscriptionsService() {
  rpc::Service service;
  service.name = "tandem.v1.Subscriptions";
  service.methods = {{"GetChanges", rpc::Right::kRead,
                      rpc::AsyncProtoHandler<v1::GetChangesRequest, v1::GetChangesResponse>(
                          [this](const std::shared_ptr<rpc::ServerCall>& call, v1::GetChangesRequest request,
                                 const rpc::Reply<v1::GetChangesResponse>& reply) {
                            if (absl::Status may = CheckSubscription(*call, request); !may.ok()) {
                              return reply(std::move(may));
                            }
                            subscriptions_.GetChanges(*call, std::move(request), reply);
                          }),
                      rpc::Reach::kNamedTables}};
  if (copy_role_ != nullptr) {
    for (rpc::Method& method : service.methods) method = IfServing(std::move(method));
  }
  return service;
}

absl::StatusOr<v1::DurabilityInfo> ParameterServer::Impl::GetDurability() const {
  return durability_ == nullptr ? v1::DurabilityInfo() : durability_->Info();
}

rpc::Service ParameterServer::Impl::MakeService() {
  rpc::Service service;
  service.name = "tandem.v1.ParameterServer";
  service.methods = {
      // Pulls that may create rows are checked where that is known.
      {"Pull", rpc::Right::kRead, std::bind_front(&RequestHandler::HandlePull, &requests_),
       rpc::Reach::kNamedTables},
      {"Push", rpc::Right::kTrain, std::bind_front(&RequestHandler::HandlePush, &requests_),
       rpc::Reach::kNamedTables},
      {"CreateTable", rpc::Right::kTrain,
       Background<v1::CreateTableRequest, v1::CreateTableResponse>(
           [this](const v1::CreateTableRequest& request) { return CreateTable(request); }),
       rpc::Reach::kNamedTables},
      {"DropTable", rpc::Right::kAdmin,
       Background<v1::DropTableRequest, v1::DropTableResponse>(
           [this](const v1::DropTableRequest& request) { return DropTable(request); })},
      {"ListTables", rpc::Right::kObserve,
       rpc::ProtoHandler<v1::ListTablesRequest, v1::ListTablesResponse>(
           [this](const v1::ListTablesRequest& request) { return ListTables(request); })},
      {"SetUpdateMode", rpc::Right::kTrain,
       Background<v1::SetUpdateModeRequest, v1::SetUpdateModeResponse>(
           [this](const v1::SetUpdateModeRequest& request) { return SetUpdateMode(request); })},
      {"Flush", rpc::Right::kTrain,
       Background<v1::FlushRequest, v1::FlushResponse>(
           [this](const v1::FlushRequest& request) { return Flush(request.table()); }),
       rpc::Reach::kNamedTables},
      {"GetServerInfo", rpc::Right::kObserve,
       rpc::ProtoHandler<v1::GetServerInfoRequest, v1::ServerInfo>(
           [this](const v1::GetServerInfoRequest&) { return Info(); })},
      {"GetServerStatistics", rpc::Right::kObserve,
       rpc::ProtoHandler<v1::GetServerStatisticsRequest, v1::ServerStatistics>(
           [this](const v1::GetServerStatisticsRequest&) { return Statistics(); })},
      {"StartPushEpoch", rpc::Right::kTrain,
       rpc::AsyncProtoHandler<v1::StartPushEpochRequest, v1::StartPushEpochResponse>(
           [this](std::shared_ptr<rpc::ServerCall> call, const v1::StartPushEpochRequest& request,
                  const rpc::Reply<v1::StartPushEpochResponse>& reply) {
             absl::Status itself = CheckWorker(call->caller(), request.worker(), "a push epoch");
             if (!itself.ok()) return reply(std::move(itself));
             ReplyWhenDurable(reply, requests_.StartPushEpoch(request));
           }),
       rpc::Reach::kNamedTables},
      {"SaveCheckpoint", rpc::Right::kTrain,
       Background<v1::SaveCheckpointRequest, v1::SaveCheckpointResponse>(
           [this](const v1::SaveCheckpointRequest& request) {
             return WithinRoot<v1::SaveCheckpointResponse>(request.directory(), [&](const std::string& path) {
               return request.begun() ? checkpoints_.FinishBegun(request.directory())
                                      : checkpoints_.Save(path, request.name(), request.base());
             });
           })},
      {"BeginCheckpoint", rpc::Right::kTrain,
       Background<v1::BeginCheckpointRequest, v1::BeginCheckpointResponse>(
           [this](const v1::BeginCheckpointRequest& request) { return Begin(request); })},
      {"LoadCheckpoint", rpc::Right::kTrain,
       Background<v1::LoadCheckpointRequest, v1::LoadCheckpointResponse>(
           [this](const v1::LoadCheckpointRequest& request) {
             return WithinRoot<v1::LoadCheckpointResponse>(
                 request.directory(), [this](const std::string& path) { return Load(path); });
           })},
      {"FrequentlyUpdatedRows", rpc::Right::kRead,
       rpc::ProtoHandler<v1::FrequentlyUpdatedRowsRequest, v1::FrequentlyUpdatedRowsResponse>(
           [this](const v1::FrequentlyUpdatedRowsRequest& request) { return row_states_.Frequent(request); }),
       rpc::Reach::kNamedTables},
      {"ReadRowStates", rpc::Right::kRead,
       rpc::ProtoHandler<v1::ReadRowStatesRequest, v1::ReadRowStatesResponse>(
           [this](const v1::ReadRowStatesRequest& request) { return row_states_.Read(request); }),
       rpc::Reach::kNamedTables},
      {"WriteRowStates", rpc::Right::kTrain,
       Background<v1::WriteRowStatesRequest, v1::WriteRowStatesResponse>(
           [this](const v1::WriteRowStatesRequest& request) { return row_states_.Write(request); }),
       rpc::Reach::kNamedTables},
      // A bucket may have millions of rows; the threads that serve pulls do not wait for it.
      {"ScanRows", rpc::Right::kRead,
       Background<v1::ScanRowsRequest, v1::ScanRowsResponse>(
           [this](const v1::ScanRowsRequest& request) { return row_states_.Scan(request); }),
       rpc::Reach::kNamedTables},
      {"Register", rpc::Right::kTrain,
       rpc::AsyncProtoHandler<v1::RegisterRequest, v1::RegisterResponse>(
           [this](std::shared_ptr<rpc::ServerCall>, const v1::RegisterRequest& request,
                  const rpc::Reply<v1::RegisterResponse>& reply) {
             ReplyWhenDurable(reply, Register(request));
           }),
       rpc::Reach::kNamedTables},
  };
  for (rpc::Method& method : service.methods) {
    if (copy_role_ != nullptr && !AnyCopyAnswers(method.name)) method = IfServing(std::move(method));
  }
  return service;
}

rpc::Method ParameterServer::Impl::IfServing(rpc::Method method) {
  const bool pulls = method.name == "Pull";
  method.handler = [this, pulls, handler = std::move(method.handler)](std::shared_ptr<rpc::ServerCall> call) {
    if (!copy_role_->serving()) {
      if (pulls) return requests_.HandlePullAtFollower(std::move(call), *copy_role_);
      if (absl::Status serving = copy_role_->CheckServing(); !serving.ok()) {
        return call->Finish(std::move(serving));
      }
    }
    handler(std::move(call));
  };
  return method;
}

absl::StatusOr<v1::LoadCheckpointResponse> ParameterServer::Impl::Load(const std::string& directory) {
  if (copy_role_ == nullptr) return checkpoints_.Load(directory);
  // The log does not lead to the loaded tables, so no follower may take over from here on, until it has
  // copied them.
  const absl::Status removed = copy_role_->BeforeLoad();
  const absl::StatusOr<v1::LoadCheckpointResponse> loaded =
      removed.ok() ? checkpoints_.Load(directory) : removed;
  copy_role_->AfterLoad();
  return loaded;
}

template <typename Response>
absl::StatusOr<Response> ParameterServer::Impl::WithinRoot(
    const std::string& directory,
    absl::FunctionRef<absl::StatusOr<Response>(const std::string& path)> body) const {
  if (options_.checkpoint_root.empty()) return body(directory);
  absl::StatusOr<ipc::Descriptor> opened = ipc::OpenDirectoryBeneath(options_.checkpoint_root, directory);
  if (!opened.ok()) {
    return Annotate(opened.status(),
                    absl::StrCat("server ", options_.index, ": checkpoint (--checkpoint-root)"));
  }
  // This path names the directory that was opened, whatever happens to the one of the client.
  const std::string path = absl::StrCat("/proc/self/fd/", opened->get());
  absl::StatusOr<Response> response = body(path);
  if (response.ok()) return response;
  return absl::Status(response.status().code(),
                      absl::StrReplaceAll(response.status().message(), {{path, directory}}));
}

absl::StatusOr<v1::RegisterResponse> ParameterServer::Impl::Register(const v1::RegisterRequest& request) {
  v1::RegisterResponse response;
  if (options_.job) {
    const rpc::Caller job = options_.job();
    response.set_run_id(job.run_id);
    response.set_epoch(job.epoch);
  }
  if (request.name().empty()) return response;
  if (options_.index != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("server ", options_.index, ": only server 0 gives ranks; register there"));
  }
  if (request.name().size() > kMaxRegisteredName) {
    return absl::InvalidArgumentError(absl::StrCat("the name has ", request.name().size(), " bytes, at most ",
                                                   kMaxRegisteredName, " are accepted"));
  }
  {
    absl::MutexLock lock(&registered_mutex_);
    TANDEM_RETURN_IF_ERROR(requests_.CheckTakesChanges());
    auto found = registered_.find(request.name());
    if (found == registered_.end()) {
      if (registered_.size() >= kMaxRegistered) {
        return absl::ResourceExhaustedError(
            absl::StrCat("server ", options_.index, ": ", kMaxRegistered,
                         " processes have registered, which is the limit; use a name again"));
      }
      const uint32_t rank = options_.first_free_rank + static_cast<uint32_t>(registered_.size());
      found = registered_.emplace(request.name(), rank).first;
      v1::LogRegister record;
      record.set_name(request.name());
      record.set_rank(rank);
      requests_.LogChange(RecordKind::kRegister, record);
    }
    response.set_worker(found->second);
  }
  return response;
}

absl::StatusOr<v1::CreateTableResponse> ParameterServer::Impl::CreateTable(
    const v1::CreateTableRequest& request) {
  // Every worker creates every table; only the first time changes something.
  if (requests_.log() == nullptr || tables_.Find(request.config().name()).ok()) {
    TANDEM_RETURN_IF_ERROR(tables_.Create(request.config(), request.first_step()));
  } else {
    // No push may use the table before the log has it.
    TANDEM_RETURN_IF_ERROR(requests_.BetweenPushes([&](RequestHandler::Waiters*) -> absl::Status {
      TANDEM_RETURN_IF_ERROR(tables_.Create(request.config(), request.first_step()));
      TANDEM_ASSIGN_OR_RETURN(const auto table, tables_.Find(request.config().name()));
      v1::LogCreateTable record;
      *record.mutable_config() = request.config();
      record.set_generation(table->generation());
      record.set_first_step(request.first_step());
      requests_.LogChange(RecordKind::kCreateTable, record);
      return absl::OkStatus();
    }));
  }
  return v1::CreateTableResponse();
}

absl::StatusOr<v1::DropTableResponse> ParameterServer::Impl::DropTable(const v1::DropTableRequest& request) {
  std::shared_ptr<ServerTable> dropped;  // destroyed when pushes go on again
  TANDEM_RETURN_IF_ERROR(requests_.BetweenPushes([&](RequestHandler::Waiters* released) {
    dropped = tables_.Drop(request.table(), released);
    if (dropped != nullptr) requests_.LogChange(RecordKind::kDropTable, request);
    return absl::OkStatus();
  }));
  v1::DropTableResponse response;
  response.set_existed(dropped != nullptr);
  return response;
}

absl::StatusOr<v1::ListTablesResponse> ParameterServer::Impl::ListTables(
    const v1::ListTablesRequest& request) const {
  v1::ListTablesResponse response;
  for (const auto& table : tables_.All()) *response.add_tables() = table->Info(request.hottest());
  return response;
}

absl::StatusOr<v1::ServerInfo> ParameterServer::Impl::Info() const {
  v1::ServerInfo info;
  info.set_index(options_.index);
  info.set_num_servers(options_.num_servers);
  info.set_num_buckets(shard_map_.num_buckets());
  info.set_push_window(PushFence::kWindow);
  info.mutable_bucket_owner()->Add(shard_map_.owners().begin(), shard_map_.owners().end());
  return info;
}

absl::StatusOr<v1::ServerStatistics> ParameterServer::Impl::Statistics() const {
  v1::ServerStatistics statistics;
  statistics.set_index(options_.index);
  statistics.set_num_servers(options_.num_servers);
  statistics.set_uptime_s(absl::ToDoubleSeconds(options_.clock->Now() - started_));
  statistics.set_parked_calls(requests_.deferred_calls());
  statistics.set_parked_bytes(requests_.deferred_bytes());
  statistics.set_kept_bytes(tables_.WaitingBytes());
  statistics.set_max_parked_bytes(options_.max_parked_bytes);
  checkpoints_.AddStatistics(&statistics);
  subscriptions_.AddStatistics(&statistics);
  ExportProcess(&statistics);
  return statistics;
}

absl::StatusOr<v1::BeginCheckpointResponse> ParameterServer::Impl::Begin(
    const v1::BeginCheckpointRequest& request) {
  const std::string& directory = request.directory();
  TANDEM_RETURN_IF_ERROR(checkpoints_.Begin(/*key=*/directory, request.name(), request.base()));
  const bool posted = checkpoint_writer_.Post([this, directory] {
    const absl::Status wanted = checkpoints_.AwaitWanted();
    if (!wanted.ok()) return checkpoints_.EndBegun(wanted);
    checkpoints_.EndBegun(WithinRoot<v1::SaveCheckpointResponse>(
        directory, [this](const std::string& path) { return checkpoints_.WriteBegun(path); }));
  });
  if (!posted) return absl::UnavailableError("the parameter server has stopped");
  return v1::BeginCheckpointResponse();
}

absl::StatusOr<v1::FlushResponse> ParameterServer::Impl::Flush(const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServerTable> table, tables_.Find(name));
  TANDEM_RETURN_IF_ERROR(requests_.BetweenPushes([&](RequestHandler::Waiters*) {
    table->Flush();
    v1::FlushRequest record;
    record.set_table(name);
    requests_.LogChange(RecordKind::kFlush, record);
    return absl::OkStatus();
  }));
  return v1::FlushResponse();
}

absl::StatusOr<v1::SetUpdateModeResponse> ParameterServer::Impl::SetUpdateMode(
    const v1::SetUpdateModeRequest& request) {
  if (!request.has_update_mode()) {  // from clients that do not know the method Flush
    TANDEM_RETURN_IF_ERROR(Flush(request.table()));
    return v1::SetUpdateModeResponse();
  }
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServerTable> table, tables_.Find(request.table()));
  TANDEM_RETURN_IF_ERROR(
      Annotate(ValidateUpdateMode(request.update_mode()), absl::StrCat("table '", table->name(), "'")));
  TANDEM_RETURN_IF_ERROR(requests_.BetweenPushes([&](RequestHandler::Waiters* released) {
    requests_.LogChange(RecordKind::kChangeMode, request);
    table->SetUpdateMode(request.update_mode(), released);
    return absl::OkStatus();
  }));
  return v1::SetUpdateModeResponse();
}

}  // namespace tandem::ps
