// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_CHECKPOINT_TRAINED_TABLE_H_
#define TANDEM_TESTS_PS_CHECKPOINT_TRAINED_TABLE_H_

#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/checksummed_file.h"
#include "base/random.h"
#include "base/status.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/format.h"
#include "ps/storage/table_storage.h"
#include "ps/table.h"
#include "tests/ps/storage/spill/memory_tier.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {

constexpr uint32_t kBuckets = 16;
constexpr uint32_t kDim = 4;

inline v1::TableConfig Table(const v1::OptimizerConfig& optimizer) {
  v1::TableConfig config = EmbeddingTable("user", kDim, optimizer, Uniform(-1, 1));
  config.set_seed(3);
  return config;
}

// A table and the checkpoints that are taken of it.
class TrainedTable {
 public:
  TrainedTable(const v1::TableConfig& config, std::string root, RowsComeFrom from = RowsComeFrom::kAdmission)
      : config_(config), root_(std::move(root)) {
    storage_ = TableStorage::Create(
        config, kBuckets, [](uint32_t) { return true; },
        config.spill() ? std::make_unique<testing::MemoryTier>(&disk_) : nullptr, from);
  }
  TableStorage& storage() { return *storage_; }

  // Pulls, pushes and writes rows of ids below `ids`.
  void Train(int updates, uint64_t ids, size_t batch) {
    std::vector<float> values;
    for (int u = 0; u < updates; ++u) {
      std::vector<uint64_t> some(batch);
      for (uint64_t& id : some) id = random_.Below(ids);
      values.resize(some.size() * kDim);
      TANDEM_EXPECT_OK(storage_->Gather(some, /*create=*/true, values.data()));
      for (float& value : values) value = static_cast<float>(random_.Below(1000)) * 1e-3f - 0.5f;
      if (random_.Below(4) > 0) some.resize(batch / 2);  // the other rows were pulled only
      TANDEM_EXPECT_OK(storage_->Apply(some, values.data(), {}));
      if (random_.Below(8) > 0) continue;
      const std::vector<uint64_t> one = {random_.Below(ids)};
      const std::vector<float> row(storage_->row_floats(), 0.25f);
      TANDEM_EXPECT_OK(storage_->WriteRows(one, row.data()));
    }
  }

  // Saves a checkpoint that builds on the one before, unless it is the first, or `complete`.
  absl::StatusOr<std::string> Save(uint64_t step, bool complete = false,
                                   const OpenFile& open = OpenPosixFile) {
    TANDEM_ASSIGN_OR_RETURN(const std::string unfinished, BeginCheckpoint(root_, step));
    v1::TableFileHeader header;
    *header.mutable_config() = config_;
    header.set_num_servers(1);
    header.set_num_buckets(kBuckets);
    header.set_row_floats(storage_->row_floats());
    header.set_version(storage_->clock());
    header.add_worker_clock(0);
    header.set_save_id(step * 1000 + 1);
    if (save_id_ != 0 && !complete) {
      header.mutable_base()->set_checkpoint(base_);
      header.mutable_base()->set_save_id(save_id_);
    }
    std::vector<uint32_t> buckets(kBuckets);
    std::iota(buckets.begin(), buckets.end(), 0);
    TANDEM_ASSIGN_OR_RETURN(
        const TableFileSummary summary,
        WriteTableFile(unfinished + "/user.0-of-1.table", header, buckets, *storage_, cancel_, open));
    TANDEM_RETURN_IF_ERROR(WriteDenseState(unfinished, {}));
    v1::SavedFile written;
    written.set_name("user.0-of-1.table");
    written.set_bytes(summary.bytes);
    written.set_crc32(summary.crc32);
    written.set_clock(header.version());
    written.set_footer_crc32(summary.footer_crc32);
    written.set_base(header.base().checkpoint());
    v1::CheckpointManifest manifest;
    manifest.set_step(step);
    TANDEM_ASSIGN_OR_RETURN(const std::string path, CommitCheckpoint(unfinished, manifest, {&written, 1}));
    storage_->MarkCut();
    save_id_ = header.save_id();
    base_ = CheckpointName(step);
    bytes_ = summary.bytes;
    return path;
  }
  uint64_t bytes() const { return bytes_; }  // of the last table file

 private:
  const v1::TableConfig config_;
  const std::string root_;
  testing::MemoryDisk disk_;
  std::unique_ptr<TableStorage> storage_;
  CounterRandom random_{7, 1};
  const std::atomic<bool> cancel_{false};
  std::string base_;
  uint64_t save_id_ = 0, bytes_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_TESTS_PS_CHECKPOINT_TRAINED_TABLE_H_
