// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/follower_tables.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "ps/snapshot/snapshot_file.h"
#include "tandem/v1/durability.pb.h"

namespace tandem::ps {
namespace {

constexpr absl::string_view kSource = "the primary's copy";

}  // namespace

void FollowerTables::Clear() {
  restore_.reset();
  row_floats_.clear();
  server_.tables->Clear();
  server_.requests->RestoreFenceState(v1::PushFenceState());
  server_.clear_registered();
}

void FollowerTables::Adopt() {
  row_floats_.clear();
  restore_.emplace(&server_, StateRestore::Origin::kPrimary, std::string(kSource));
}

absl::Status FollowerTables::ApplyState(const Record& record) {
  v1::SnapshotState state;
  if (!state.ParseFromArray(record.body.data(), static_cast<int>(record.body.size()))) {
    return absl::DataLossError(absl::StrCat(kSource, " has a state that does not parse"));
  }
  TANDEM_RETURN_IF_ERROR(CheckOwner(kSource, state, *server_.tables,
                                    "the copies of a shard must be started with the same --index, "
                                    "--num-servers and version of Tandem"));
  if (restore_.has_value()) Clear();
  for (const v1::SnapshotTable& table : state.tables()) row_floats_.push_back(table.row_floats());
  restore_.emplace(&server_, StateRestore::Origin::kPrimary, std::string(kSource));
  return restore_->RestoreState(state);
}

absl::Status FollowerTables::ApplyContinue(const Record& record) {
  v1::LogContinue from;
  if (!from.ParseFromArray(record.body.data(), static_cast<int>(record.body.size()))) {
    return absl::DataLossError(absl::StrCat(kSource, " has a record CONTINUE that does not parse"));
  }
  for (const v1::LogContinue::Table& one : from.tables()) {
    TANDEM_ASSIGN_OR_RETURN(const auto table, server_.tables->Find(one.name()));
    table->RaiseGeneration(one.generation());
  }
  return absl::OkStatus();
}

absl::Status FollowerTables::Apply(const Record& record, const std::shared_ptr<const void>& memory) {
  if (record.kind == RecordKind::kState) return ApplyState(record);
  if (!restore_.has_value()) {
    return absl::DataLossError(absl::StrCat(kSource, " has a record before its state"));
  }
  if (record.kind == RecordKind::kContinue) return ApplyContinue(record);
  if (record.kind != RecordKind::kRows) return restore_->Replay(record, memory);
  return RestoreRows(
      record.body, row_floats_,
      [](absl::string_view how) { return absl::DataLossError(absl::StrCat(kSource, " ", how)); },
      [this](const v1::SnapshotBucket& bucket) { return restore_->RestoreBucket(bucket); });
}

absl::Status FollowerTables::Complete() {
  if (!restore_.has_value()) return absl::DataLossError(absl::StrCat(kSource, " ends without a state"));
  TANDEM_RETURN_IF_ERROR(restore_->CheckComplete());
  restore_->EndRows();
  return absl::OkStatus();
}

}  // namespace tandem::ps
