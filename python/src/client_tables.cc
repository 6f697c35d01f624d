// SPDX-License-Identifier: Apache-2.0
#include "python/src/py_client.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nanobind/ndarray.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "ps/optimizers/optimizer.h"
#include "ps/table.h"
#include "python/src/config.h"
#include "python/src/errors.h"

namespace nb = nanobind;

namespace tandem::python {

void PyClient::CreateTable(const std::string& json, uint64_t first_step) {
  v1::TableConfig config;
  RaiseIfError(FromJson(json, &config));
  RaiseIfError(
      Blocking([=](Connection& connection) { return connection.client()->CreateTable(config, first_step); }));
}

void PyClient::DropTable(const std::string& table) {
  RaiseIfError(Blocking([=](Connection& connection) { return connection.client()->DropTable(table); }));
}

void PyClient::OpenTable(const std::string& table) {
  RaiseIfError(Blocking([=](Connection& connection) { return connection.client()->OpenTable(table); }));
}

void PyClient::SetUpdateMode(const std::string& table, const std::string& text) {
  const v1::UpdateMode mode = ValueOrRaise(ps::ParseUpdateMode(text));
  RaiseIfError(
      Blocking([=](Connection& connection) { return connection.client()->SetUpdateMode(table, mode); }));
}

void PyClient::SetWire(const std::string& table, int pull_values, int push_values) {
  const ps::WireOptions options{.pull_values = static_cast<v1::ValueFormat>(pull_values),
                                .push_values = static_cast<v1::ValueFormat>(push_values)};
  RaiseIfError(
      Blocking([=](Connection& connection) { return connection.client()->SetWire(table, options); }));
}

void PyClient::SetCache(const std::string& table, size_t bytes, uint32_t max_uses, uint64_t max_age,
                        uint32_t push_bound) {
  const ps::CacheOptions options{
      .bytes = bytes, .max_uses = max_uses, .max_age = max_age, .push_bound = push_bound};
  RaiseIfError(
      Blocking([=](Connection& connection) { return connection.client()->SetCache(table, options); }));
}

void PyClient::SetReadCache(const std::string& table, size_t bytes, double seconds) {
  const ps::ReadCacheOptions options{.bytes = bytes, .time_to_live = absl::Seconds(seconds)};
  RaiseIfError(
      Blocking([=](Connection& connection) { return connection.client()->SetReadCache(table, options); }));
}

void PyClient::ClearReadCache(const std::string& table) {
  RaiseIfError(Use().client()->ClearReadCache(table));
}

nb::dict PyClient::ReadCacheStatistics(const std::string& table) {
  const ps::ReadCacheStatistics s = ValueOrRaise(Use().client()->ReadCacheStatisticsOf(table));
  nb::dict result;
  const std::pair<const char*, uint64_t> counts[] = {
      {"lookups", s.lookups},     {"hits", s.hits},         {"expired", s.expired},  {"admitted", s.admitted},
      {"refused", s.refused},     {"evicted", s.evicted},   {"rows", s.rows},        {"bytes", s.bytes},
      {"forgotten", s.forgotten}, {"capacity", s.capacity}, {"bypassed", s.bypassed}};
  for (const auto& [name, count] : counts) result[name] = count;
  return result;
}

nb::dict PyClient::FollowerReads() {
  const ps::FollowerReadStatistics s = Use().client()->FollowerReads();
  nb::dict result;
  result["requests"] = s.requests;
  result["by_followers"] = s.by_followers;
  result["last_lag"] = absl::ToDoubleSeconds(s.last_lag);
  result["largest_lag"] = absl::ToDoubleSeconds(s.largest_lag);
  return result;
}

nb::tuple PyClient::ScanRows(const std::string& table, uint32_t bucket, uint64_t first_id, size_t max_rows) {
  auto* const scanned = new ps::ScannedRows(ValueOrRaise(Blocking([=](Connection& connection) {
    return connection.client()->ScanRows(table, {.bucket = bucket, .first_id = first_id}, max_rows);
  })));
  const nb::capsule owner(scanned, [](void* rows) noexcept { delete static_cast<ps::ScannedRows*>(rows); });
  nb::ndarray<nb::numpy, uint64_t> ids(scanned->ids.data(), {scanned->ids.size()}, owner);
  nb::ndarray<nb::numpy, float> rows(scanned->states.values.data(),
                                     {scanned->ids.size(), scanned->states.row_floats()}, owner);
  return nb::make_tuple(std::move(ids), std::move(rows), scanned->next.bucket, scanned->next.first_id,
                        scanned->at_end);
}

void PyClient::Flush(const std::string& table) {
  RaiseIfError(Blocking([=](Connection& connection) { return connection.client()->Flush(table); }));
}

void PyClient::PushDeferred() {
  RaiseIfError(Blocking([](Connection& connection) { return connection.client()->PushDeferred(); }));
}

std::vector<std::string> PyClient::ListTables(uint32_t hottest) {
  std::vector<std::string> tables;
  for (const v1::TableInfo& table : ValueOrRaise(
           Blocking([=](Connection& connection) { return connection.client()->ListTables(hottest); }))) {
    tables.push_back(ToJson(table));
  }
  return tables;
}

std::vector<std::string> PyClient::ListServers() {
  std::vector<std::string> servers;
  for (const v1::ServerStatistics& server :
       ValueOrRaise(Blocking([](Connection& connection) { return connection.client()->ListServers(); }))) {
    servers.push_back(ToJson(server));
  }
  return servers;
}

std::vector<std::string> PyClient::SaveCheckpoint(const std::string& directory) {
  std::vector<std::string> files;
  for (const v1::SavedFile& file : ValueOrRaise(Blocking(
           [=](Connection& connection) { return connection.client()->SaveCheckpoint(directory); }))) {
    files.push_back(ToJson(file));
  }
  return files;
}

void PyClient::LoadCheckpoint(const std::string& directory) {
  RaiseIfError(
      Blocking([=](Connection& connection) { return connection.client()->LoadCheckpoint(directory); }));
}

void PyClient::StartPushEpoch() {
  RaiseIfError(Blocking([](Connection& connection) { return connection.StartPushEpoch(); }));
}

void PyClient::WriteRows(const std::string& config_json, uint64_t ids, size_t count, uint64_t rows) {
  v1::TableConfig config;
  RaiseIfError(FromJson(config_json, &config));
  const std::unique_ptr<ps::Optimizer> optimizer = ValueOrRaise(ps::MakeOptimizer(config.optimizer()));
  ps::RowStates states{.dim = config.dim(),
                       .state_floats = static_cast<uint32_t>(optimizer->state_floats(config.dim()))};
  std::vector<uint64_t> copied_ids;
  {
    GilReleased release;
    const auto* const first_id = reinterpret_cast<const uint64_t*>(ids);
    copied_ids.assign(first_id, first_id + count);
    states.values.resize(count * states.row_floats());
    const auto* const weights = reinterpret_cast<const float*>(rows);
    for (size_t i = 0; i < count; ++i) {
      float* const row = states.row(i);
      std::copy_n(weights + i * states.dim, states.dim, row);
      optimizer->InitState(row, row + states.dim, states.dim);
    }
  }
  RaiseIfError(Blocking([name = config.name(), copied_ids = std::move(copied_ids),
                         states = std::move(states)](Connection& connection) {
    const absl::Status prepared = connection.PreparePush();
    return prepared.ok() ? connection.client()->WriteRowStates(name, copied_ids, states) : prepared;
  }));
}

}  // namespace tandem::python
