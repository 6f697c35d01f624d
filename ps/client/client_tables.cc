// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "ps/client/cache/row_cache.h"
#include "ps/client/client_impl.h"
#include "ps/table.h"

namespace tandem::ps {

absl::Status ClientImpl::CreateTable(const v1::TableConfig& config, uint64_t first_step) {
  TANDEM_RETURN_IF_ERROR(ValidateTableConfig(config));
  v1::CreateTableRequest request;
  *request.mutable_config() = config;
  request.set_first_step(first_step);
  TANDEM_RETURN_IF_ERROR(
      CallAll<v1::CreateTableResponse>("CreateTable", request, options_.timeout, /*idempotent=*/true)
          .status());
  Remember(config);
  return absl::OkStatus();
}

absl::Status ClientImpl::DropTable(const std::string& name) {
  TANDEM_RETURN_IF_ERROR(ValidateTableName(name));
  // Asked beforehand, since a call that is repeated may find that the server has dropped the table already.
  TANDEM_ASSIGN_OR_RETURN(const auto servers, ListTablesPerServer(0));
  std::set<std::string> known;
  for (const std::vector<v1::TableInfo>& tables : servers) {
    for (const v1::TableInfo& table : tables) known.insert(table.config().name());
  }
  absl::Status status;
  if (known.contains(name)) {
    v1::DropTableRequest request;
    request.set_table(name);
    TANDEM_RETURN_IF_ERROR(
        CallAll<v1::DropTableResponse>("DropTable", request, options_.timeout, /*idempotent=*/true).status());
  } else {
    status = absl::NotFoundError(absl::StrCat("there is no table '", name, "' to drop; the servers have: ",
                                              known.empty() ? "none" : absl::StrJoin(known, ", ")));
  }
  // Also if another client has dropped the table, or an earlier call whose answer was lost.
  KnownTable dropped;  // destroyed outside the lock
  absl::MutexLock lock(&tables_mutex_);
  const auto found = tables_.find(name);
  if (found == tables_.end()) return status;
  dropped = std::move(found->second);
  tables_.erase(found);
  return status;
}

absl::Status ClientImpl::OpenTable(const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const auto servers, ListTablesPerServer(0));
  const v1::TableConfig* config = nullptr;
  for (size_t s = 0; s < servers.size(); ++s) {
    const auto found = std::find_if(servers[s].begin(), servers[s].end(), [&](const v1::TableInfo& table) {
      return table.config().name() == name;
    });
    if (found == servers[s].end()) {
      std::vector<std::string> known;
      for (const v1::TableInfo& table : servers[s]) known.push_back(table.config().name());
      std::sort(known.begin(), known.end());
      return absl::NotFoundError(
          absl::StrCat("server ", s, " (", channels_[s]->target(), ") has no table '", name,
                       "'; it has: ", known.empty() ? "none" : absl::StrJoin(known, ", ")));
    }
    if (config == nullptr) config = &found->config();
  }
  TANDEM_RETURN_IF_ERROR(Annotate(ValidateTableConfig(*config), "as server 0 has it"));
  Remember(*config);
  return absl::OkStatus();
}

absl::Status ClientImpl::SetWire(const std::string& name, const WireOptions& options) {
  if (absl::Status status = ValidateWireOptions(options); !status.ok()) {
    return Annotate(status, absl::StrCat("table '", name, "'"));
  }
  TANDEM_ASSIGN_OR_RETURN(const KnownTable known, FindTable(name));
  std::shared_ptr<ErrorFeedback> feedback;
  if (options.UsesErrorFeedback()) {
    feedback = std::make_shared<ErrorFeedback>(known.config->dim(), options.error_feedback_bytes);
  }
  // The rest of the entry may have changed in the meantime.
  return ChangeTable(name, [&](KnownTable& table) {
    table.wire = options;
    table.feedback.swap(feedback);
  });
}

bool ClientImpl::CountsOccurrences(const std::string& name) {
  absl::MutexLock lock(&tables_mutex_);
  const auto found = tables_.find(name);
  return found != tables_.end() && found->second.counts_occurrences;
}

absl::StatusOr<ErrorFeedbackStatistics> ClientImpl::FeedbackStatistics(const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  return table.feedback == nullptr ? ErrorFeedbackStatistics() : table.feedback->statistics();
}

absl::Status ClientImpl::SetUpdateMode(const std::string& table, const v1::UpdateMode& mode) {
  const absl::StatusOr<KnownTable> known = FindTable(table);
  if (known.ok() && known->cache != nullptr) {
    v1::TableConfig config = *known->config;
    *config.mutable_update_mode() = mode;
    TANDEM_RETURN_IF_ERROR(ValidateCacheOptions(config, known->cache->options()));
  }
  v1::SetUpdateModeRequest request;
  request.set_table(table);
  *request.mutable_update_mode() = mode;
  TANDEM_RETURN_IF_ERROR(CallAll<v1::SetUpdateModeResponse>("SetUpdateMode", request, options_.timeout,
                                                            /*idempotent=*/true)
                             .status());
  absl::MutexLock lock(&tables_mutex_);
  const auto found = tables_.find(table);
  if (found == tables_.end()) return absl::OkStatus();
  auto config = std::make_shared<v1::TableConfig>(*found->second.config);
  *config->mutable_update_mode() = mode;
  found->second.config = std::move(config);
  return absl::OkStatus();
}

absl::Status ClientImpl::SetCache(const std::string& name, const CacheOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable known, FindTable(name));
  TANDEM_RETURN_IF_ERROR(ValidateCacheOptions(*known.config, options));
  if (known.cache != nullptr && known.cache->defers()) TANDEM_RETURN_IF_ERROR(PushDeferred());
  std::shared_ptr<RowCache> cache;
  if (options.bytes > 0) cache = std::make_shared<RowCache>(*known.config, options, &map_);
  return ChangeTable(name, [&](KnownTable& table) { table.cache.swap(cache); });
}

absl::Status ClientImpl::SetReadCache(const std::string& name, const ReadCacheOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable known, FindTable(name));
  TANDEM_RETURN_IF_ERROR(ValidateReadCacheOptions(*known.config, options));
  std::shared_ptr<ReadCache> cache;
  if (options.bytes > 0) cache = std::make_shared<ReadCache>(known.config->dim(), options, &map_);
  return ChangeTable(name, [&](KnownTable& table) { table.read_cache.swap(cache); });
}

absl::Status ClientImpl::ClearReadCache(const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  if (table.read_cache != nullptr) table.read_cache->Clear();
  return absl::OkStatus();
}

absl::StatusOr<ReadCacheStatistics> ClientImpl::ReadCacheStatisticsOf(const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  return table.read_cache == nullptr ? ReadCacheStatistics() : table.read_cache->Statistics();
}

std::vector<std::shared_ptr<ReadCache>> ClientImpl::ReadCaches() {
  std::vector<std::shared_ptr<ReadCache>> caches;
  absl::MutexLock lock(&tables_mutex_);
  for (const auto& [name, table] : tables_) {
    if (table.read_cache != nullptr) caches.push_back(table.read_cache);
  }
  return caches;
}

absl::StatusOr<CacheStatistics> ClientImpl::CacheStatisticsOf(const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  return table.cache == nullptr ? CacheStatistics() : table.cache->Statistics();
}

absl::Status ClientImpl::Flush(const std::string& table) {
  v1::FlushRequest request;
  request.set_table(table);
  const absl::Status flushed =
      CallAll<v1::FlushResponse>("Flush", request, options_.timeout, /*idempotent=*/true).status();
  if (!absl::IsUnimplemented(flushed)) return flushed;
  // A server that does not have this method yet.
  v1::SetUpdateModeRequest old_request;
  old_request.set_table(table);
  return CallAll<v1::SetUpdateModeResponse>("SetUpdateMode", old_request, options_.timeout,
                                            /*idempotent=*/true)
      .status();
}

absl::StatusOr<std::vector<v1::ServerStatistics>> ClientImpl::ListServers() {
  return CallAll<v1::ServerStatistics>("GetServerStatistics", v1::GetServerStatisticsRequest(),
                                       options_.timeout, /*idempotent=*/true);
}

absl::StatusOr<std::vector<std::vector<v1::TableInfo>>> ClientImpl::ListTablesPerServer(uint32_t hottest) {
  v1::ListTablesRequest request;
  request.set_hottest(hottest);
  TANDEM_ASSIGN_OR_RETURN(std::vector<v1::ListTablesResponse> answers,
                          CallAll<v1::ListTablesResponse>("ListTables", request, options_.timeout,
                                                          /*idempotent=*/true));
  std::vector<std::vector<v1::TableInfo>> servers;
  for (v1::ListTablesResponse& response : answers) {
    servers.emplace_back(response.tables().begin(), response.tables().end());
  }
  return servers;
}

absl::StatusOr<std::vector<RowStalenessCounts>> ClientImpl::RowStalenessStatistics(const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  return table.row_staleness->Get();
}

absl::Status ClientImpl::ResetRowStalenessStatistics(const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  table.row_staleness->Reset();
  return absl::OkStatus();
}

absl::Status ClientImpl::PullDense(const std::string& table, uint64_t step, absl::Span<float> values) {
  TANDEM_ASSIGN_OR_RETURN(DenseRows dense, FindDense(table, values.size()));
  TANDEM_RETURN_IF_ERROR(
      Pull(step, /*read_only=*/false, {{.table = table, .ids = dense.ids, .rows = dense.padded.data()}})
          .status());
  std::copy_n(dense.padded.begin(), values.size(), values.begin());
  return absl::OkStatus();
}

absl::Status ClientImpl::PushDense(const std::string& table, uint64_t step,
                                   absl::Span<const float> gradients) {
  TANDEM_ASSIGN_OR_RETURN(DenseRows dense, FindDense(table, gradients.size()));
  std::copy(gradients.begin(), gradients.end(), dense.padded.begin());
  return Push(step, {{.table = table, .ids = dense.ids, .gradients = dense.padded.data()}});
}

absl::StatusOr<std::vector<v1::SavedFile>> ClientImpl::SaveCheckpoint(const std::string& directory,
                                                                      const SaveOptions& options) {
  // Gradients that were deferred since BeginCheckpoint are not part of the checkpoint.
  if (!options.begun) TANDEM_RETURN_IF_ERROR(PushDeferred());
  v1::SaveCheckpointRequest request;
  request.set_directory(directory);
  request.set_begun(options.begun);
  request.set_name(options.name);
  request.set_base(options.base);
  TANDEM_ASSIGN_OR_RETURN(
      std::vector<v1::SaveCheckpointResponse> answers,
      // A server that has written what was begun answers the same again.
      CallAll<v1::SaveCheckpointResponse>("SaveCheckpoint", request, options_.checkpoint_timeout,
                                          /*idempotent=*/options.begun, options.cancel));
  std::vector<v1::SavedFile> files;
  for (const v1::SaveCheckpointResponse& response : answers) {
    files.insert(files.end(), response.written().begin(), response.written().end());
    if (response.written_size() > 0) continue;
    for (const std::string& name : response.files()) files.emplace_back().set_name(name);
  }
  return files;
}

absl::Status ClientImpl::BeginCheckpoint(const std::string& directory, const SaveOptions& options) {
  TANDEM_RETURN_IF_ERROR(PushDeferred());
  v1::BeginCheckpointRequest request;
  request.set_directory(directory);
  request.set_name(options.name);
  request.set_base(options.base);
  return CallAll<v1::BeginCheckpointResponse>("BeginCheckpoint", request, options_.checkpoint_timeout,
                                              /*idempotent=*/false)
      .status();
}

absl::Status ClientImpl::LoadCheckpoint(const std::string& directory) {
  v1::LoadCheckpointRequest request;
  request.set_directory(directory);
  const absl::Status loaded =
      CallAll<v1::LoadCheckpointResponse>("LoadCheckpoint", request, options_.checkpoint_timeout,
                                          /*idempotent=*/false)
          .status();
  DropCached();  // some servers may have loaded the checkpoint even if others failed
  return loaded;
}

void ClientImpl::DropCached() {
  for (const auto& [name, cache] : Caches()) cache->Clear();
  for (const std::shared_ptr<ReadCache>& cache : ReadCaches()) cache->Clear();
}

std::vector<std::pair<std::string, std::shared_ptr<RowCache>>> ClientImpl::Caches() {
  std::vector<std::pair<std::string, std::shared_ptr<RowCache>>> caches;
  absl::MutexLock lock(&tables_mutex_);
  for (const auto& [name, table] : tables_) {
    if (table.cache != nullptr) caches.emplace_back(name, table.cache);
  }
  return caches;
}

void ClientImpl::Remember(const v1::TableConfig& config) {
  absl::MutexLock lock(&tables_mutex_);
  KnownTable& table = tables_[config.name()];
  // The responses of server 0 will contain positions.
  if (config.update_mode().kind() == v1::UpdateMode::GBA) *table.gets_position = true;
  // A table that is created again keeps its wire options.
  table.config = std::make_shared<const v1::TableConfig>(config);
  table.counts_occurrences = tandem::ps::CountsOccurrences(config);
}

absl::StatusOr<ClientImpl::KnownTable> ClientImpl::FindTable(const std::string& name) {
  absl::MutexLock lock(&tables_mutex_);
  auto found = tables_.find(name);
  if (found != tables_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [table, config] : tables_) known.push_back(table);
  std::sort(known.begin(), known.end());
  return absl::NotFoundError(absl::StrCat("this client knows no table '", name, "' (it has created: ",
                                          known.empty() ? "none" : absl::StrJoin(known, ", "),
                                          "); call CreateTable first"));
}

absl::Status ClientImpl::ChangeTable(const std::string& name, absl::FunctionRef<void(KnownTable&)> change) {
  absl::MutexLock lock(&tables_mutex_);
  const auto found = tables_.find(name);
  if (found == tables_.end()) {
    return absl::NotFoundError(absl::StrCat("table '", name, "' was dropped by this client meanwhile"));
  }
  change(found->second);
  return absl::OkStatus();
}

absl::StatusOr<ClientImpl::DenseRows> ClientImpl::FindDense(const std::string& name, size_t elements) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  const std::shared_ptr<const v1::TableConfig>& config = table.config;
  if (config->kind() != v1::TableConfig::DENSE || config->elements() != elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", name, "' is ", config->kind() == v1::TableConfig::DENSE ? "a dense" : "an embedding",
        " table of ", config->elements(), " elements; the array has ", elements));
  }
  DenseRows dense;
  dense.ids.resize((elements + config->dim() - 1) / config->dim());
  for (size_t i = 0; i < dense.ids.size(); ++i) dense.ids[i] = i;
  dense.padded.assign(dense.ids.size() * config->dim(), 0.0f);
  return dense;
}

}  // namespace tandem::ps
