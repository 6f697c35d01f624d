// SPDX-License-Identifier: Apache-2.0
#include "replay/client/local_replay.h"

#include <utility>

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

absl::Status LocalReplay::CreateTable(const TableOptions& options) { return tables_.Create(options); }

absl::Status LocalReplay::Add(std::shared_ptr<Table> table) {
  return tables_.Add(std::make_shared<TableEntry>(TableEntry{.table = std::move(table)}));
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

absl::StatusOr<TableInfo> LocalReplay::Info(absl::string_view name, absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Table> table, Find(name));
  return table->Info();
}

absl::StatusOr<std::vector<Ticket>> LocalReplay::Admit(absl::string_view name, const AdmitRequest& request,
                                                       absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Table> table, Find(name));
  return table->Admit(request, deadline);
}

absl::StatusOr<uint64_t> LocalReplay::Renew(absl::string_view name, absl::Span<const uint64_t> tickets) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Table> table, Find(name));
  return table->Renew(tickets);
}

absl::StatusOr<uint64_t> LocalReplay::ReturnTickets(absl::string_view name,
                                                    absl::Span<const uint64_t> tickets) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Table> table, Find(name));
  return table->ReturnTickets(tickets);
}

absl::Status LocalReplay::Commit(absl::string_view name, const CommittedVersion& version, absl::Time) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Table> table, Find(name));
  return table->Commit(version);
}

absl::StatusOr<std::shared_ptr<Table>> LocalReplay::Find(absl::string_view name) const {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<TableEntry> entry, tables_.Find(name));
  return entry->table;
}

std::vector<std::shared_ptr<Table>> LocalReplay::All() const {
  std::vector<std::shared_ptr<Table>> all;
  for (const std::shared_ptr<TableEntry>& entry : tables_.All()) all.push_back(entry->table);
  return all;
}

}  // namespace tandem::replay
