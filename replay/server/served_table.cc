// SPDX-License-Identifier: Apache-2.0
#include "replay/server/served_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace tandem::replay {

absl::Status ServedTables::Create(const TableOptions& options) {
  auto served = std::make_shared<ServedTable>();
  TANDEM_ASSIGN_OR_RETURN(served->table, Table::Create(options, clock_));
  absl::MutexLock lock(&mutex_);
  const auto found = tables_.find(options.name);
  if (found != tables_.end()) {
    if (found->second->table->Info().options == options) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("table '", options.name, "' exists with other options; use its own, or another name"));
  }
  if (tables_.size() >= kMaxTables) {
    return absl::ResourceExhaustedError(
        absl::StrCat("table '", options.name, "': there are ", kMaxTables, " tables, which is the limit"));
  }
  tables_.emplace(options.name, std::move(served));
  return absl::OkStatus();
}

absl::Status ServedTables::Add(std::shared_ptr<ServedTable> table) {
  absl::MutexLock lock(&mutex_);
  const std::string name = table->table->name();
  if (tables_.emplace(name, std::move(table)).second) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("table '", name, "' exists"));
}

absl::StatusOr<std::shared_ptr<ServedTable>> ServedTables::Find(absl::string_view name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = tables_.find(name);
  if (found != tables_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat(
      "there is no table '", name, "'; there are: ",
      tables_.empty() ? "none" : absl::StrJoin(tables_, ", ", [](std::string* out, const auto& entry) {
        out->append(entry.first);
      })));
}

std::vector<std::shared_ptr<ServedTable>> ServedTables::All() const {
  std::vector<std::shared_ptr<ServedTable>> all;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, table] : tables_) all.push_back(table);
  return all;
}

void ServedTables::Stop() {
  for (const std::shared_ptr<ServedTable>& served : All()) served->table->Stop();
}

}  // namespace tandem::replay
