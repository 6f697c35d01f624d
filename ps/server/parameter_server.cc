#include "ps/server/parameter_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/ipc/futex.h"
#include "base/status.h"
#include "google/protobuf/util/message_differencer.h"
#include "ps/server/server_core.h"
#include "ps/table.h"

namespace tandem::ps {
namespace {
constexpr uint32_t kMaxWorkers = 65536;  // a table keeps a clock for each
}  // namespace

ParameterServer::ParameterServer(const ParameterServerOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
ParameterServer::~ParameterServer() = default;
rpc::Service ParameterServer::service() { return impl_->MakeService(); }
void ParameterServer::Stop() { impl_->Stop(); }
size_t ParameterServer::parked_calls() const { return impl_->parked_calls(); }

ParameterServer::Impl::Impl(const ParameterServerOptions& options)
    : options_(options),
      started_(options.clock->Now()),
      shard_map_(ShardMap::Even(options.num_servers, options.num_buckets)),
      helpers_(ipc::UsableProcessors() - 1),
      deferred_(options.clock),
      executor_(options.threads),
      background_(1) {
  TANDEM_CHECK(options.index < options.num_servers);
}

void ParameterServer::Impl::Stop() {
  stopping_ = true;
  deferred_.Stop();
  background_.Stop();
  executor_.Stop();
}

template <typename Request, typename Response>
rpc::Handler ParameterServer::Impl::Background(std::function<absl::StatusOr<Response>(const Request&)> body) {
  return rpc::AsyncProtoHandler<Request, Response>(
      [this, body = std::move(body)](std::shared_ptr<rpc::ServerCall>, Request request,
                                     rpc::Reply<Response> reply) {
        const bool posted = background_.Post([this, body, reply, request = std::move(request)] {
          if (stopping_) {
            reply(absl::CancelledError("the parameter server is stopping"));
          } else {
            reply(body(request));
          }
        });
        if (!posted) reply(absl::UnavailableError("the parameter server has stopped"));
      });
}

rpc::Service ParameterServer::Impl::MakeService() {
  rpc::Service service;
  service.name = "tandem.v1.ParameterServer";
  service.methods = {
      {"CreateTable",
       Background<v1::CreateTableRequest, v1::CreateTableResponse>(
           [this](const v1::CreateTableRequest& request) -> absl::StatusOr<v1::CreateTableResponse> {
             TANDEM_RETURN_IF_ERROR(CreateTable(request.config()));
             return v1::CreateTableResponse();
           })},
      {"ListTables",
       rpc::ProtoHandler<v1::ListTablesRequest, v1::ListTablesResponse>(
           [this](const v1::ListTablesRequest& request) -> absl::StatusOr<v1::ListTablesResponse> {
             v1::ListTablesResponse response;
             for (const auto& table : AllTables()) {
               *response.add_tables() = table->Info(request.hottest());
             }
             return response;
           })},
      {"SetUpdateMode",
       Background<v1::SetUpdateModeRequest, v1::SetUpdateModeResponse>(
           [this](const v1::SetUpdateModeRequest& request) -> absl::StatusOr<v1::SetUpdateModeResponse> {
             TANDEM_RETURN_IF_ERROR(SetUpdateMode(request));
             return v1::SetUpdateModeResponse();
           })},
      {"GetServerInfo",
       rpc::ProtoHandler<v1::GetServerInfoRequest, v1::ServerInfo>(
           [this](const v1::GetServerInfoRequest&) -> absl::StatusOr<v1::ServerInfo> { return Info(); })},
      {"GetServerStatistics",
       rpc::ProtoHandler<v1::GetServerStatisticsRequest, v1::ServerStatistics>(
           [this](const v1::GetServerStatisticsRequest&) -> absl::StatusOr<v1::ServerStatistics> {
             return Statistics();
           })},
      {"Pull", [this](std::shared_ptr<rpc::ServerCall> call) { HandlePull(std::move(call)); }},
      {"Push", [this](std::shared_ptr<rpc::ServerCall>
                          call) { HandlePush(std::move(call), TableCounters::Clock::now()); }},
      {"SaveCheckpoint",
       Background<v1::SaveCheckpointRequest, v1::SaveCheckpointResponse>(
           [this](const v1::SaveCheckpointRequest& request) { return SaveCheckpoint(request.directory()); })},
      {"LoadCheckpoint",
       Background<v1::LoadCheckpointRequest, v1::LoadCheckpointResponse>(
           [this](const v1::LoadCheckpointRequest& request) { return LoadCheckpoint(request.directory()); })},
  };
  return service;
}

v1::ServerInfo ParameterServer::Impl::Info() const {
  v1::ServerInfo info;
  info.set_index(options_.index);
  info.set_num_servers(options_.num_servers);
  info.set_num_buckets(shard_map_.num_buckets());
  info.mutable_bucket_owner()->Add(shard_map_.owners().begin(), shard_map_.owners().end());
  return info;
}

v1::ServerStatistics ParameterServer::Impl::Statistics() const {
  v1::ServerStatistics statistics;
  statistics.set_index(options_.index);
  statistics.set_num_servers(options_.num_servers);
  statistics.set_uptime_s(absl::ToDoubleSeconds(options_.clock->Now() - started_));
  statistics.set_parked_calls(deferred_.size());
  statistics.set_parked_bytes(parked_bytes_.load(std::memory_order_relaxed));
  for (const auto& table : AllTables()) {
    statistics.set_kept_bytes(statistics.kept_bytes() + table->waiting_bytes());
  }
  statistics.set_max_parked_bytes(options_.max_parked_bytes);
  ExportProcess(&statistics);
  return statistics;
}

absl::StatusOr<std::unique_ptr<TableStorage>> ParameterServer::Impl::NewStorage(
    const v1::TableConfig& config) const {
  std::unique_ptr<ColdTier> tier;
  if (config.spill()) {
    if (options_.cold_store == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("table '", config.name(), "': spill is set, but server ", options_.index,
                       " was given no directory for rows on disk; start it with --spill-dir DIR"));
    }
    absl::StatusOr<std::unique_ptr<ColdTier>> made = options_.cold_store->NewTier(config.name());
    if (!made.ok()) {
      return Annotate(made.status(), absl::StrCat("table '", config.name(), "': server ", options_.index));
    }
    tier = *std::move(made);
  }
  return TableStorage::Create(
      config, shard_map_.num_buckets(),
      [this](uint32_t bucket) { return shard_map_.OwnerOfBucket(bucket) == options_.index; },
      std::move(tier));
}

absl::Status ParameterServer::Impl::CreateTable(const v1::TableConfig& config) {
  TANDEM_RETURN_IF_ERROR(ValidateTableConfig(config));
  if (config.num_workers() > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("table '", config.name(), "': num_workers is ",
                                                   config.num_workers(), ", at most ", kMaxWorkers,
                                                   " are allowed"));
  }
  {
    absl::MutexLock lock(&tables_mutex_);
    auto found = tables_.find(config.name());
    if (found != tables_.end()) {
      std::string differences;
      google::protobuf::util::MessageDifferencer differencer;
      differencer.ReportDifferencesToString(&differences);
      if (differencer.Compare(found->second->created_config(), config)) return absl::OkStatus();
      return absl::AlreadyExistsError(
          absl::StrCat("table '", config.name(), "' exists with another configuration: ", differences));
    }
  }
  // Only this thread creates tables, so the name is still free below.
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<TableStorage> storage, NewStorage(config));
  auto table =
      std::make_shared<ServerTable>(config, std::move(storage), &buffers_, &helpers_, options_.index == 0);
  absl::MutexLock lock(&tables_mutex_);
  tables_.emplace(config.name(), std::move(table));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ServerTable>> ParameterServer::Impl::FindTable(absl::string_view name) const {
  absl::MutexLock lock(&tables_mutex_);
  auto found = tables_.find(name);
  if (found != tables_.end()) return found->second;
  return absl::NotFoundError(
      absl::StrCat("no table '", name, "' on server ", options_.index, "; it has ",
                   tables_.empty() ? "none: create tables first"
                                   : absl::StrJoin(tables_, ", ", [](std::string* out, const auto& entry) {
                                       absl::StrAppend(out, "'", entry.first, "'");
                                     })));
}

std::vector<std::shared_ptr<ServerTable>> ParameterServer::Impl::AllTables() const {
  absl::MutexLock lock(&tables_mutex_);
  std::vector<std::shared_ptr<ServerTable>> tables;
  for (const auto& [name, table] : tables_) tables.push_back(table);
  return tables;
}

absl::Status ParameterServer::Impl::SetUpdateMode(const v1::SetUpdateModeRequest& request) {
  const bool changes = request.has_update_mode();
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<ServerTable> table, FindTable(request.table()));
  if (changes) {
    TANDEM_RETURN_IF_ERROR(
        Annotate(ValidateUpdateMode(request.update_mode()), absl::StrCat("table '", table->name(), "'")));
  }
  return BetweenPushes([&](Waiters* released) {
    if (changes) {
      table->SetUpdateMode(request.update_mode(), released);
    } else {
      table->ApplyDeferred();
    }
    return absl::OkStatus();
  });
}

absl::Status ParameterServer::Impl::BetweenPushes(
    const std::function<absl::Status(Waiters* released)>& body) {
  Waiters released;
  gate_.Close();
  const absl::Status status = body(&released);
  for (std::function<void()>& kept : gate_.Open()) released.push_back(std::move(kept));
  Dispatch(std::move(released));
  return status;
}

}  // namespace tandem::ps
