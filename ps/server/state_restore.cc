// SPDX-License-Identifier: Apache-2.0
#include "ps/server/state_restore.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/server/state_capture.h"
#include "ps/server/table/update_order.h"
#include "ps/storage/row_evictor.h"
#include "ps/table.h"

namespace tandem::ps {
namespace {

template <typename Message>
absl::StatusOr<Message> Parse(const Record& record) {
  Message message;
  if (message.ParseFromArray(record.body.data(), static_cast<int>(record.body.size()))) return message;
  return absl::DataLossError(absl::StrCat("record ", record.position, " of kind ",
                                          static_cast<uint32_t>(record.kind), " does not parse"));
}

// A push that waits for others keeps its memory. Small ones are copied, so that they do not keep a whole
// message.
constexpr size_t kSharedBody = size_t{64} << 10;

Bytes BodyOf(const Record& record, const std::shared_ptr<const void>& memory) {
  if (memory == nullptr || record.body.size() < kSharedBody) return Bytes(std::string(record.body));
  return Bytes(Slice(memory, record.body.data(), record.body.size()));
}

}  // namespace

absl::Status StateRestore::RestoreState(const v1::SnapshotState& state) {
  for (const v1::SnapshotTable& table : state.tables()) {
    TANDEM_RETURN_IF_ERROR(Annotate(RestoreTable(table), source_));
  }
  server_.requests->RestoreFenceState(state.fences());
  for (const v1::LogRegister& one : state.registered()) server_.restore_registered(one.name(), one.rank());
  return absl::OkStatus();
}

absl::Status StateRestore::RestoreTable(const v1::SnapshotTable& saved) {
  // The bytes may come from a file or another process.
  size_t tables = 0;
  uint64_t bytes = 0;
  TANDEM_RETURN_IF_ERROR(ValidateTableConfig(saved.config()));
  TANDEM_RETURN_IF_ERROR(
      server_.tables->CheckNewTable(saved.config(), /*max_memory_bytes=*/0, &tables, &bytes));
  const std::string who = absl::StrCat("table '", saved.config().name(), "'");
  if (server_.tables->Find(saved.config().name()).ok()) {
    return absl::DataLossError(absl::StrCat(who, " was saved twice"));
  }
  TANDEM_RETURN_IF_ERROR(Annotate(ValidateUpdateMode(saved.update_mode()), who));
  TANDEM_RETURN_IF_ERROR(Annotate(
      UpdateOrder::CheckState(saved.order(), saved.config().dim(), saved.config().num_workers()), who));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<TableStorage> storage, server_.tables->NewStorage(saved.config()));
  if (storage->row_floats() != saved.row_floats()) {
    return absl::FailedPreconditionError(
        absl::StrCat("table '", saved.config().name(), "': rows of ", saved.row_floats(),
                     " floats were saved, this version of Tandem keeps ", storage->row_floats()));
  }
  storage->Clear();
  storage->SetClock(saved.version());
  const bool later = origin_ == Origin::kPrimary;
  filters_.push_back(
      std::make_shared<ReplayFilter>(server_.tables->shard_map().num_buckets(),
                                     later ? OwnBuckets(*server_.tables) : std::vector<uint32_t>()));
  tables_.push_back(server_.tables->NewTable(saved.config(), nullptr));
  tables_.back()->RestoreSnapshot(saved, storage, filters_.back());
  server_.tables->Add(tables_.back());
  storage_.push_back(std::move(storage));
  return absl::OkStatus();
}

absl::Status CheckWhole(const TableRegistry& tables) {
  for (const auto& table : tables.All()) {
    TANDEM_RETURN_IF_ERROR(table->storage()->CheckWhole());
  }
  return absl::OkStatus();
}

absl::StatusOr<RestoreRow> StateRestore::RestoreBucket(const v1::SnapshotBucket& bucket) {
  if (bucket.table() >= storage_.size() || bucket.bucket() >= server_.tables->shard_map().num_buckets()) {
    return absl::DataLossError(absl::StrCat(source_, ": there is no bucket ", bucket.bucket(), " of table ",
                                            bucket.table(), " of ", storage_.size()));
  }
  TableStorage* const storage = storage_[bucket.table()].get();
  if (filters_[bucket.table()]->IsMissing(bucket.bucket()) && bucket.queued_size() > 0) {
    const std::vector<uint64_t> queued = tables_[bucket.table()]->QueuedLogPositions();
    const std::set<uint64_t> here(queued.begin(), queued.end());
    for (const uint64_t position : bucket.queued()) {
      if (here.contains(position)) continue;
      return absl::AbortedError(absl::StrCat(source_, ": bucket ", bucket.bucket(), " of table '",
                                             tables_[bucket.table()]->name(), "' lacks the push at position ",
                                             position, ", which this copy has applied already: copy again"));
    }
  }
  filters_[bucket.table()]->SetBucket(bucket.bucket(), bucket.position(), bucket.queued());
  if (!bucket.filter().empty() && !storage->RestoreFilter(bucket.bucket(), bucket.filter())) {
    return absl::DataLossError(
        absl::StrCat(source_, ": bucket ", bucket.bucket(), " has admission counters of wrong size"));
  }
  // A bucket that was copied late has rows that are newer than the state from which the replay begins. They
  // keep their version, so that they are as old after the replay as they were. Eviction takes a row that is
  // further ahead than this for a very old one.
  constexpr uint32_t kFurthest = RowEvictor::kMostAhead - 1;
  const auto state_version = static_cast<uint32_t>(storage->clock());
  return RestoreRow([storage, state_version](uint64_t id, const float* row, RowHistory history) {
    if (static_cast<int32_t>(history.version - state_version) > static_cast<int32_t>(kFurthest)) {
      history.version = state_version + kFurthest;
    }
    return storage->Restore(id, row, history);
  });
}

uint64_t StateRestore::contained() const {
  uint64_t contained = 0;
  for (const auto& filter : filters_) contained = std::max(contained, filter->last());
  return contained;
}

absl::Status StateRestore::CheckComplete() const {
  for (size_t t = 0; t < filters_.size(); ++t) {
    if (filters_[t]->missing_buckets() == 0) continue;
    return absl::DataLossError(absl::StrCat(source_, ": ", filters_[t]->missing_buckets(),
                                            " buckets of table '", tables_[t]->name(), "' are missing"));
  }
  return absl::OkStatus();
}

void StateRestore::EndRows() {
  storage_.clear();
  filters_.clear();
  tables_.clear();
}

absl::Status StateRestore::Replay(const Record& record, const std::shared_ptr<const void>& memory) {
  switch (record.kind) {
    case RecordKind::kPush:
      if (const absl::Status replayed = server_.requests->ReplayPush(BodyOf(record, memory), record.position);
          !replayed.ok()) {
        if (origin_ == Origin::kPrimary) {
          return Annotate(replayed, absl::StrCat("the push at position ", record.position));
        }
        // A push that is refused now was not acknowledged as applied either: its sender has changed it, in
        // memory that it shares with the server, after the server had checked it.
        LogError(absl::StrCat("record ", record.position, " of the log is left out: ", replayed.message()));
      }
      if (origin_ == Origin::kPrimary) return CheckWhole(*server_.tables);
      return absl::OkStatus();
    case RecordKind::kCreateTable: {
      TANDEM_ASSIGN_OR_RETURN(const auto create, Parse<v1::LogCreateTable>(record));
      TANDEM_RETURN_IF_ERROR(server_.tables->Recreate(create.config(), create.first_step()));
      TANDEM_ASSIGN_OR_RETURN(const auto table, server_.tables->Find(create.config().name()));
      table->RaiseGeneration(create.generation());
      return absl::OkStatus();
    }
    case RecordKind::kDropTable: {
      TANDEM_ASSIGN_OR_RETURN(const auto drop, Parse<v1::DropTableRequest>(record));
      RequestHandler::Waiters released;  // nobody waits yet
      server_.tables->Drop(drop.table(), &released);
      return absl::OkStatus();
    }
    case RecordKind::kChangeMode: {
      TANDEM_ASSIGN_OR_RETURN(const auto change, Parse<v1::SetUpdateModeRequest>(record));
      TANDEM_ASSIGN_OR_RETURN(const auto table, server_.tables->Find(change.table()));
      TANDEM_RETURN_IF_ERROR(ValidateUpdateMode(change.update_mode()));
      RequestHandler::Waiters released;  // nobody waits yet
      table->SetUpdateMode(change.update_mode(), &released);
      return absl::OkStatus();
    }
    case RecordKind::kFlush: {
      TANDEM_ASSIGN_OR_RETURN(const auto flush, Parse<v1::FlushRequest>(record));
      TANDEM_ASSIGN_OR_RETURN(const auto table, server_.tables->Find(flush.table()));
      table->Flush();
      return absl::OkStatus();
    }
    case RecordKind::kWriteRows: {
      TANDEM_ASSIGN_OR_RETURN(const auto write, Parse<v1::WriteRowStatesRequest>(record));
      return server_.row_states->ReplayWrite(write, record.position);
    }
    case RecordKind::kStartEpoch: {
      TANDEM_ASSIGN_OR_RETURN(const auto start, Parse<v1::LogStartEpoch>(record));
      server_.requests->RepeatStartEpoch(start.worker(), start.epoch(), start.token());
      return absl::OkStatus();
    }
    case RecordKind::kRegister: {
      TANDEM_ASSIGN_OR_RETURN(const auto registered, Parse<v1::LogRegister>(record));
      server_.restore_registered(registered.name(), registered.rank());
      return absl::OkStatus();
    }
    default:
      return absl::FailedPreconditionError(
          absl::StrCat("record ", record.position, " has kind ", static_cast<uint32_t>(record.kind),
                       ", which this version of Tandem does not know: start the server with the version that "
                       "wrote it"));
  }
}

}  // namespace tandem::ps
