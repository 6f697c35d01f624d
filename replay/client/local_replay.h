// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_LOCAL_REPLAY_H_
#define TANDEM_REPLAY_CLIENT_LOCAL_REPLAY_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "replay/client/replay.h"
#include "replay/table/table.h"
#include "replay/table/table_registry.h"

namespace tandem::replay {

// Tables in this process. Thread-safe.
//
//   LocalReplay replay;
//   replay.CreateTable(TableOptions::Prioritized("replay", /*size=*/100'000, /*min_size=*/1000));
//   auto writer = Writer::Create(&replay, {{"observation", DType::kF32, {4}}, {"reward"}}, {});
//   writer->Append({observation, reward}); writer->CreateItem("replay", std::nullopt, writer->Last(1));
//   auto batch = replay.Sample("replay", {.batch = 32});
class LocalReplay : public Replay {
 public:
  // `clock` must outlive this object.
  explicit LocalReplay(Clock* clock = Clock::Real()) : tables_(clock) {}
  // Ends all waiting calls, as Stop does.
  ~LocalReplay() override;

  absl::Status CreateTable(const TableOptions& options) override;
  absl::StatusOr<std::unique_ptr<InsertStream>> OpenStream(absl::string_view writer) override;
  absl::StatusOr<Batch> Sample(absl::string_view table, const SampleSize& size,
                               absl::Time deadline = DefaultDeadline(),
                               absl::string_view sampler = "") override;
  absl::StatusOr<uint64_t> UpdatePriorities(absl::string_view table, absl::Span<const uint64_t> keys,
                                            absl::Span<const double> priorities) override;
  absl::StatusOr<std::vector<Ticket>> Admit(absl::string_view table, const AdmitRequest& request,
                                            absl::Time deadline = DefaultDeadline()) override;
  absl::StatusOr<uint64_t> Renew(absl::string_view table, absl::Span<const uint64_t> tickets) override;
  absl::StatusOr<uint64_t> ReturnTickets(absl::string_view table,
                                         absl::Span<const uint64_t> tickets) override;
  absl::Status Commit(absl::string_view table, const CommittedVersion& version,
                      absl::Time deadline = DefaultDeadline()) override;
  absl::StatusOr<TableInfo> Info(absl::string_view table, absl::Time deadline = DefaultDeadline()) override;

  // Returns a table. NotFound, which lists the tables, if there is none of this name.
  absl::StatusOr<std::shared_ptr<Table>> Find(absl::string_view name) const;
  // Returns all tables, ordered by name.
  std::vector<std::shared_ptr<Table>> All() const;
  // Adds a table that was made elsewhere, such as one of a checkpoint. AlreadyExists if the name is in use.
  absl::Status Add(std::shared_ptr<Table> table);
  // Ends all waiting calls of all tables, and all later ones, with Cancelled.
  void Stop() { tables_.Stop(absl::CancelledError("it has been stopped")); }

 private:
  TableRegistry<> tables_;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_LOCAL_REPLAY_H_
