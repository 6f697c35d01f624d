// SPDX-License-Identifier: Apache-2.0
#include "ps/subscription/directory_follower.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/checkpoint/chain.h"
#include "ps/checkpoint/format.h"

namespace tandem::ps {
namespace {

// Calls visit(reader) for each table file of a checkpoint.
absl::Status ForEachTable(
    const CheckpointEntry& entry,
    absl::FunctionRef<absl::Status(const std::string& name, TableFileReader& reader)> visit) {
  for (const v1::CheckpointFile& file : entry.manifest.files()) {
    if (!absl::EndsWith(file.name(), kTableFileSuffix)) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<TableFileReader> reader,
                            TableFileReader::Open(absl::StrCat(entry.path, "/", file.name())));
    TANDEM_RETURN_IF_ERROR(visit(file.name(), *reader));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> DirectoryFollower::FollowsLast(const CheckpointEntry& entry) const {
  bool follows = true;
  TANDEM_RETURN_IF_ERROR(ForEachTable(entry, [&](const std::string& name, TableFileReader& reader) {
    const auto last = save_ids_.find(name);
    follows = follows && reader.builds_on_another() && last != save_ids_.end() &&
              last->second == reader.header().base().save_id();
    return absl::OkStatus();
  }));
  return follows;
}

absl::Status DirectoryFollower::Read(const CheckpointEntry& entry, bool with_bases, Visitor visit,
                                     SaveIds* save_ids) {
  return ForEachTable(entry, [&](const std::string& name, TableFileReader& reader) -> absl::Status {
    const v1::TableConfig& config = reader.header().config();
    (*save_ids)[name] = reader.header().save_id();
    const auto read = [&](uint32_t bucket, auto source) -> absl::Status {
      RowChanges changes{.table = config.name(), .bucket = bucket, .dim = config.dim()};
      TANDEM_ASSIGN_OR_RETURN(BucketChanges rest,
                              source([&](uint64_t id, const float* row, const RowHistory&) {
                                changes.ids.push_back(id);
                                changes.rows.insert(changes.rows.end(), row, row + config.dim());
                              }));
      changes.whole = rest.whole;
      changes.removed = std::move(rest.removed);
      if (changes.whole || !changes.ids.empty() || !changes.removed.empty()) visit(config, changes);
      return absl::OkStatus();
    };
    if (with_bases) {
      TANDEM_ASSIGN_OR_RETURN(TableChain chain, TableChain::Open(&reader));
      for (const uint32_t bucket : chain.buckets()) {
        TANDEM_RETURN_IF_ERROR(read(bucket, [&](auto add) { return chain.ReadBucket(bucket, add); }));
      }
      return absl::OkStatus();
    }
    for (const v1::BucketIndex& bucket : reader.footer().buckets()) {
      TANDEM_RETURN_IF_ERROR(
          read(bucket.bucket(), [&](auto add) { return reader.ReadChanges(bucket, add); }));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> DirectoryFollower::Next(Visitor visit) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, ListCheckpoints(root_));
  std::vector<const CheckpointEntry*> newer;
  for (const CheckpointEntry& entry : entries) {
    if (entry.step > step_) newer.push_back(&entry);
  }
  if (newer.empty()) return false;
  const CheckpointEntry* entry = newer.front();
  bool follows = false;
  if (step_ != 0) {
    TANDEM_ASSIGN_OR_RETURN(follows, FollowsLast(*entry));
  }
  if (!follows) entry = newer.back();
  SaveIds save_ids;
  const absl::Status status = Read(*entry, /*with_bases=*/!follows, visit, &save_ids);
  if (!status.ok()) {
    step_ = 0;
    save_ids_.clear();
    return status;
  }
  step_ = entry->step;
  save_ids_ = std::move(save_ids);
  return true;
}

}  // namespace tandem::ps
