// SPDX-License-Identifier: Apache-2.0
#include "ps/subscription/directory_writer.h"

#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/checkpoint/chain.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/format.h"
#include "ps/policies/eviction.h"
#include "ps/table.h"

namespace tandem::ps {
namespace {

uint64_t NewSaveId() {
  std::random_device random;
  return uint64_t{random()} << 32 | random() | 1;
}

// Returns the configuration of a copy of a table whose rows have no optimizer state, and are neither created
// nor evicted.
v1::TableConfig CopyConfig(v1::TableConfig config) {
  *config.mutable_optimizer() = DefaultOptimizer("sgd");
  config.clear_admission();
  config.clear_eviction();
  config.clear_byte_budget();
  config.clear_spill();
  return config;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DirectoryWriter>> DirectoryWriter::Open(const std::string& root,
                                                                       const Options& options) {
  TANDEM_RETURN_IF_ERROR(RepairCheckpoints(root));
  auto writer = std::unique_ptr<DirectoryWriter>(new DirectoryWriter(root, options));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, ListCheckpoints(root));
  if (entries.empty()) return writer;
  const CheckpointEntry& newest = entries.back();
  if (newest.manifest.subscription_position().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        newest.path,
        " was not written by a subscription: choose another directory, it has a run's checkpoints"));
  }
  writer->step_ = newest.step;
  writer->position_ = newest.manifest.subscription_position();
  for (const v1::CheckpointFile& file : newest.manifest.files()) {
    if (!absl::EndsWith(file.name(), kTableFileSuffix)) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<TableFileReader> reader,
                            TableFileReader::Open(absl::StrCat(newest.path, "/", file.name())));
    const v1::TableFileHeader& header = reader->header();
    writer->num_buckets_ = header.num_buckets();
    writer->tables_[header.config().name()] = {.config = header.config(), .save_id = header.save_id()};
  }
  return writer;
}

absl::Status DirectoryWriter::Add(ChangeBatch batch) {
  if (num_buckets_ != 0 && batch.num_buckets != 0 && batch.num_buckets != num_buckets_) {
    return absl::InvalidArgumentError(absl::StrCat("server ", batch.server, " divides ids into ",
                                                   batch.num_buckets, " buckets, ", root_, " has ",
                                                   num_buckets_, ": use another directory for another job"));
  }
  if (batch.num_buckets != 0) num_buckets_ = batch.num_buckets;
  for (const v1::TableConfig& config : batch.tables) {
    Table& table = tables_[config.name()];
    v1::TableConfig copy = CopyConfig(config);
    if (table.save_id != 0 &&
        (copy.dim() != table.config.dim() || copy.row_type() != table.config.row_type())) {
      return absl::InvalidArgumentError(absl::StrCat("table '", config.name(),
                                                     "' has another dim or row_type than in ", root_,
                                                     ": use another directory"));
    }
    table.config = std::move(copy);
  }
  for (const RowChanges& changes : batch.changes) {
    const auto table = tables_.find(changes.table);
    if (table == tables_.end() || table->second.config.dim() != changes.dim ||
        changes.bucket >= num_buckets_) {
      return absl::InvalidArgumentError(
          absl::StrCat("server ", batch.server, ": bucket ", changes.bucket, " of table '", changes.table,
                       "' with rows of ", changes.dim, " does not fit what is known of the table"));
    }
    table->second.buckets[changes.bucket].Add(changes);
    has_changes_ = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DirectoryWriter::Commit(const std::string& position) {
  const uint64_t step = step_ + 1;
  TANDEM_ASSIGN_OR_RETURN(const std::string unfinished, BeginCheckpoint(root_, step));
  std::vector<uint32_t> buckets(num_buckets_);
  std::iota(buckets.begin(), buckets.end(), 0);
  std::vector<v1::SavedFile> written;
  std::map<std::string, uint64_t> save_ids;
  for (auto& [name, table] : tables_) {
    v1::TableFileHeader header;
    *header.mutable_config() = table.config;
    header.set_num_servers(1);
    header.set_num_buckets(num_buckets_);
    header.set_row_floats(table.config.dim());
    header.set_version(step);
    header.mutable_worker_clock()->Resize(static_cast<int>(table.config.num_workers()), 0);
    header.set_save_id(save_ids[name] = NewSaveId());
    if (table.save_id != 0) {
      header.mutable_base()->set_checkpoint(CheckpointName(step_));
      header.mutable_base()->set_save_id(table.save_id);
    }
    const auto source = [&](uint32_t number,
                            TableStorage::RowVisitor visit) -> absl::StatusOr<BucketChanges> {
      BucketChanges changes{.whole = table.save_id == 0};
      const auto bucket = table.buckets.find(number);
      if (bucket == table.buckets.end()) return changes;
      changes.whole = changes.whole || bucket->second.whole();
      bucket->second.ForEach([&](uint64_t id, const float* row) {
        if (row != nullptr) {
          visit(id, row, {.version = static_cast<uint32_t>(step), .count = Eviction::kOneOccurrence});
        } else if (!changes.whole) {
          changes.removed.push_back(id);
        }
      });
      return changes;
    };
    const std::string file_name = TableFileName(name, 0, 1);
    TANDEM_ASSIGN_OR_RETURN(
        const TableFileSummary summary,
        WriteTableFile(absl::StrCat(unfinished, "/", file_name), header, buckets, source, cancel_));
    v1::SavedFile& file = written.emplace_back();
    file.set_name(file_name);
    file.set_bytes(summary.bytes);
    file.set_crc32(summary.crc32);
    file.set_clock(header.version());
    file.set_footer_crc32(summary.footer_crc32);
    file.set_base(header.base().checkpoint());
  }
  TANDEM_RETURN_IF_ERROR(WriteDenseState(unfinished, {}));
  v1::CheckpointManifest manifest;
  manifest.set_step(step);
  manifest.set_subscription_position(position);
  TANDEM_ASSIGN_OR_RETURN(const std::string path, CommitCheckpoint(unfinished, std::move(manifest), written));
  step_ = step;
  position_ = position;
  has_changes_ = false;
  for (auto& [name, table] : tables_) {
    table.save_id = save_ids[name];
    table.buckets.clear();
  }
  // The checkpoint stays committed, and the next call tries to compact again.
  if (absl::Status compacted = Compact(); !compacted.ok()) {
    LogWarning(absl::StrCat(root_, ": older checkpoints stay: ", compacted.message()));
  }
  return path;
}

absl::Status DirectoryWriter::Compact() const {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, ListCheckpoints(root_));
  const auto deltas = static_cast<size_t>(options_.deltas);
  if (entries.size() < 2 * deltas + 1) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(CompactCheckpoint(entries[entries.size() - 1 - deltas].path).status());
  return PruneCheckpoints(root_, static_cast<int>(deltas) + 1, "");
}

}  // namespace tandem::ps
