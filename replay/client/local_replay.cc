// SPDX-License-Identifier: Apache-2.0
#include "replay/client/local_replay.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace tandem::replay {
namespace {

class LocalStream : public InsertStream {
 public:
  LocalStream(LocalReplay* replay, absl::string_view writer) : replay_(replay), writer_(writer) {}

  absl::Status Insert(const std::string& name, absl::Span<const NewItem> items, absl::Time deadline,
                      size_t* inserted) override {
    *inserted = 0;
    if (table_ == nullptr || table_->name() != name) {
      TANDEM_ASSIGN_OR_RETURN(table_, replay_->Find(name));
    }
    return table_->Insert({items.begin(), items.end()}, writer_, deadline, inserted);
  }

 private:
  LocalReplay* const replay_;
  const std::string writer_;
  std::shared_ptr<Table> table_;  // of the last call
};

}  // namespace

LocalReplay::~LocalReplay() { Stop(); }

absl::Status LocalReplay::CreateTable(const TableOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Table> table, Table::Create(options, clock_));
  absl::MutexLock lock(&mutex_);
  const auto [found, added] = tables_.emplace(options.name, table);
  if (added || found->second->Info().options == options) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("table '", options.name, "' exists with other options; use its own, or another name"));
}

absl::Status LocalReplay::Add(std::shared_ptr<Table> table) {
  absl::MutexLock lock(&mutex_);
  if (tables_.emplace(table->name(), table).second) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("table '", table->name(), "' exists"));
}

absl::StatusOr<std::unique_ptr<InsertStream>> LocalReplay::OpenStream(absl::string_view writer) {
  return std::make_unique<LocalStream>(this, writer);
}

absl::StatusOr<Batch> LocalReplay::Sample(absl::string_view name, const SampleSize& size, absl::Time deadline,
                                          absl::string_view sampler) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Table> table, Find(name));
  TANDEM_ASSIGN_OR_RETURN(const replay::Sample sample, table->SampleItems(size, sampler, deadline));
  return GatherBatch(sample);
}

absl::StatusOr<uint64_t> LocalReplay::UpdatePriorities(absl::string_view name,
                                                       absl::Span<const uint64_t> keys,
                                                       absl::Span<const double> priorities) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Table> table, Find(name));
  return table->UpdatePriorities(keys, priorities);
}

absl::StatusOr<TableInfo> LocalReplay::Info(absl::string_view name) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Table> table, Find(name));
  return table->Info();
}

absl::StatusOr<std::shared_ptr<Table>> LocalReplay::Find(absl::string_view name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = tables_.find(name);
  if (found != tables_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat(
      "there is no table '", name, "'; there are: ",
      tables_.empty() ? "none" : absl::StrJoin(tables_, ", ", [](std::string* out, const auto& entry) {
        out->append(entry.first);
      })));
}

std::vector<std::shared_ptr<Table>> LocalReplay::All() const {
  std::vector<std::shared_ptr<Table>> all;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, table] : tables_) all.push_back(table);
  return all;
}

void LocalReplay::Stop() {
  for (const std::shared_ptr<Table>& table : All()) table->Stop();
}

}  // namespace tandem::replay
