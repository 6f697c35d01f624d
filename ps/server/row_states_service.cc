// SPDX-License-Identifier: Apache-2.0
#include "ps/server/row_states_service.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "ps/server/table/replay_filter.h"
#include "ps/server/table/row_staleness_meter.h"

namespace tandem::ps {
namespace {

std::string Who(const ServerTable& table) { return absl::StrCat("table '", table.name(), "'"); }

// Checks that this server owns the ids, and that `row_floats` floats for each fit into a message.
absl::Status CheckIds(absl::Span<const uint64_t> ids, uint64_t row_floats, const ServerTable& table,
                      const TableRegistry& tables) {
  if (ids.size() > RowStatesService::kMaxValueBytes / sizeof(float) / row_floats) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Who(table), ": the states of ", ids.size(), " rows of ", row_floats, " floats need more than ",
        RowStatesService::kMaxValueBytes, " bytes: move fewer at a time"));
  }
  const uint64_t dense_rows = table.dense() ? (table.elements() + table.dim() - 1) / table.dim() : 0;
  for (const uint64_t id : ids) {
    if (const uint32_t owner = tables.shard_map().OwnerOf(id); owner != tables.server()) {
      return absl::FailedPreconditionError(absl::StrCat(Who(table), ": id ", id, " belongs to server ", owner,
                                                        ", this is server ", tables.server(),
                                                        ": the client's shard map is out of date"));
    }
    if (table.dense() && id >= dense_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat(Who(table), ": id ", id, " is outside this dense table of ", dense_rows, " rows"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::FrequentlyUpdatedRowsResponse> RowStatesService::Frequent(
    const v1::FrequentlyUpdatedRowsRequest& request) const {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServerTable> table, tables_.Find(request.table()));
  if (!(request.min_row_staleness() >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(Who(*table), ": min_row_staleness is ",
                                                   request.min_row_staleness(), ", must be 0 or more"));
  }
  const RowStalenessMeter::FrequentRows frequent =
      table->row_staleness().Frequent(request.min_row_staleness(), request.limit());
  v1::FrequentlyUpdatedRowsResponse response;
  response.set_mean_staleness(frequent.mean_staleness);
  response.set_updates(frequent.updates);
  for (const RowStalenessMeter::Row& row : frequent.rows) {
    v1::FrequentRow* const out = response.add_rows();
    out->set_id(row.id);
    out->set_row_staleness(row.row_staleness);
    out->set_update_rate(row.update_rate);
  }
  return response;
}

absl::StatusOr<v1::ReadRowStatesResponse> RowStatesService::Read(
    const v1::ReadRowStatesRequest& request) const {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServerTable> table, tables_.Find(request.table()));
  const std::shared_ptr<TableStorage> storage = table->storage();
  const uint32_t row_floats = storage->row_floats();
  TANDEM_RETURN_IF_ERROR(CheckIds(request.ids(), row_floats, *table, tables_));
  v1::ReadRowStatesResponse response;
  response.set_dim(table->dim());
  response.set_state_floats(row_floats - table->dim());
  response.mutable_values()->Resize(static_cast<int>(request.ids_size() * row_floats), 0.0f);
  std::string& exists = *response.mutable_exists();
  exists.resize(request.ids_size());
  TANDEM_RETURN_IF_ERROR(storage->ReadRows(request.ids(), response.mutable_values()->mutable_data(),
                                           reinterpret_cast<uint8_t*>(exists.data())));
  return response;
}

absl::StatusOr<v1::WriteRowStatesResponse> RowStatesService::Write(
    const v1::WriteRowStatesRequest& request) const {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServerTable> table, tables_.Find(request.table()));
  const std::string who = absl::StrCat("worker ", request.worker(), ": ", Who(*table));
  TANDEM_RETURN_IF_ERROR(table->CheckRank(request.worker(), who));
  const std::shared_ptr<TableStorage> storage = table->storage();
  const uint32_t row_floats = storage->row_floats();
  if (request.dim() != table->dim() || request.state_floats() != row_floats - table->dim()) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": rows of ", request.dim(), " weights and ", request.state_floats(),
                     " floats of optimizer state, but its rows have ", table->dim(), " and ",
                     row_floats - table->dim(), " (", table->created_config().optimizer().kind(), ")"));
  }
  TANDEM_RETURN_IF_ERROR(CheckIds(request.ids(), row_floats, *table, tables_));
  if (static_cast<uint64_t>(request.values_size()) != uint64_t{row_floats} * request.ids_size()) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": ", request.values_size(), " values for ",
                                                   request.ids_size(), " rows of ", row_floats, " floats"));
  }
  absl::flat_hash_set<uint64_t> seen;
  for (const uint64_t id : request.ids()) {
    if (seen.insert(id).second) continue;
    return absl::InvalidArgumentError(absl::StrCat(who, ": id ", id, " occurs twice"));
  }
  const auto bad = std::find_if(request.values().begin(), request.values().end(),
                                [](float v) { return !std::isfinite(v); });
  if (bad != request.values().end()) {
    const int at = static_cast<int>(bad - request.values().begin());
    return absl::InvalidArgumentError(absl::StrCat(who, ": the state of id ", request.ids(at / row_floats),
                                                   " has the value ", *bad, "; no row was written"));
  }
  v1::WriteRowStatesResponse response;
  TANDEM_ASSIGN_OR_RETURN(const bool is_new,
                          requests_.IsNewSequence(request.worker(), request.epoch(), request.sequence()));
  if (!is_new) {
    response.set_duplicate(true);
    return response;
  }
  if (const absl::Status memory = tables_.CheckMemory(); !memory.ok()) {
    // Rows that exist may come back from workers.
    std::vector<float> rows(request.values_size());
    std::vector<uint8_t> exists(request.ids_size());
    TANDEM_RETURN_IF_ERROR(storage->ReadRows(request.ids(), rows.data(), exists.data()));
    if (std::find(exists.begin(), exists.end(), 0) != exists.end()) return memory;
  }
  const auto write = [&](RequestHandler::Waiters*) -> absl::Status {
    const ServerTable::WriteScope scope(table.get());
    TANDEM_RETURN_IF_ERROR(storage->WriteRows(request.ids(), request.values().data()));
    // Not before: after an error the client repeats the call, and no row may be left out then.
    requests_.LogChange(RecordKind::kWriteRows, request);
    requests_.TakeSequence(request.worker(), request.epoch(), request.sequence());
    return absl::OkStatus();
  };
  // A push that a log had before the record, and the rows after it, would be undone by a replay.
  TANDEM_RETURN_IF_ERROR(requests_.log() != nullptr ? requests_.BetweenPushes(write) : write(nullptr));
  table->row_staleness().Restart();
  return response;
}

absl::Status RowStatesService::ReplayWrite(const v1::WriteRowStatesRequest& request, uint64_t log_position) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServerTable> table, tables_.Find(request.table()));
  const std::shared_ptr<TableStorage> storage = table->storage();
  const size_t row_floats = storage->row_floats();
  if (static_cast<uint64_t>(request.values_size()) != uint64_t{row_floats} * request.ids_size()) {
    return absl::DataLossError(absl::StrCat(Who(*table), ": a logged write of rows has ",
                                            request.values_size(), " values for ", request.ids_size(),
                                            " rows"));
  }
  const ReplayFilter* const filter = table->replay_filter();
  std::vector<uint64_t> ids;
  std::vector<float> values;
  for (int i = 0; i < request.ids_size(); ++i) {
    if (filter != nullptr && filter->Contains(request.ids(i), log_position)) continue;
    ids.push_back(request.ids(i));
    const float* const row = request.values().data() + i * row_floats;
    values.insert(values.end(), row, row + row_floats);
  }
  const ServerTable::WriteScope scope(table.get());
  TANDEM_RETURN_IF_ERROR(storage->WriteRows(ids, values.data()));
  requests_.TakeSequence(request.worker(), request.epoch(), request.sequence());
  return absl::OkStatus();
}

absl::StatusOr<v1::ScanRowsResponse> RowStatesService::Scan(const v1::ScanRowsRequest& request) const {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServerTable> table, tables_.Find(request.table()));
  const uint32_t buckets = tables_.shard_map().num_buckets();
  if (request.bucket() >= buckets) {
    return absl::InvalidArgumentError(
        absl::StrCat(Who(*table), ": there is no bucket ", request.bucket(), "; there are ", buckets));
  }
  if (const uint32_t owner = tables_.shard_map().OwnerOfBucket(request.bucket()); owner != tables_.server()) {
    return absl::FailedPreconditionError(
        absl::StrCat(Who(*table), ": bucket ", request.bucket(), " belongs to server ", owner,
                     ", this is server ", tables_.server(), ": the client's shard map is out of date"));
  }
  const std::shared_ptr<TableStorage> storage = table->storage();
  const uint32_t row_floats = storage->row_floats();
  size_t limit = std::max<size_t>(1, kMaxValueBytes / sizeof(float) / row_floats);
  if (request.limit() > 0) limit = std::min<size_t>(limit, request.limit());
  v1::ScanRowsResponse response;
  response.set_dim(table->dim());
  response.set_state_floats(row_floats - table->dim());
  const auto add = [&](uint64_t id, const float* row, const RowHistory&) {
    response.add_ids(id);
    response.mutable_values()->Add(row, row + row_floats);
  };
  TANDEM_ASSIGN_OR_RETURN(const bool more,
                          storage->VisitRows(request.bucket(), request.first_id(), limit, add));
  response.set_more(more);
  return response;
}

}  // namespace tandem::ps
