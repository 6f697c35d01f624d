// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_CHECKPOINT_MAP_STORAGE_H_
#define TANDEM_TESTS_PS_CHECKPOINT_MAP_STORAGE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ps/shard_map.h"
#include "ps/table.h"

namespace tandem::ps {

// A table that keeps its rows in a map. It implements only what the file format needs.
class MapStorage : public TableStorage {
 public:
  using Rows = std::map<uint64_t, std::vector<float>>;
  static constexpr uint32_t kRowFloats = 3;

  explicit MapStorage(uint32_t num_buckets, Rows rows = {})
      : rows_(std::move(rows)), num_buckets_(num_buckets) {}

  absl::Status Gather(absl::Span<const uint64_t>, bool, float*) override { return absl::OkStatus(); }
  DType row_type() const override { return DType::kF32; }
  absl::Status GatherStored(absl::Span<const uint64_t>, bool, char*) override { return absl::OkStatus(); }
  absl::StatusOr<size_t> GatherNewer(absl::Span<const uint64_t>, const uint32_t*, uint64_t, bool, float*,
                                     uint8_t*) override {
    return 0;
  }
  absl::StatusOr<uint64_t> Apply(absl::Span<const uint64_t>, const float*, const ApplyOptions&) override {
    return 0;
  }
  absl::Status ReadRows(absl::Span<const uint64_t>, float*, uint8_t*) override { return absl::OkStatus(); }
  absl::Status WriteRows(absl::Span<const uint64_t>, const float*) override { return absl::OkStatus(); }
  uint64_t rows() const override { return rows_.size(); }
  StorageStatistics Statistics() const override { return {}; }
  uint32_t row_floats() const override { return kRowFloats; }
  absl::Status VisitBucket(uint32_t bucket, RowVisitor visit) override {
    for (const auto& [id, row] : rows_) {
      if (BucketOf(id, num_buckets_) == bucket) visit(id, row.data(), {});
    }
    return absl::OkStatus();
  }
  absl::StatusOr<bool> VisitRows(uint32_t, uint64_t, size_t, RowVisitor) override { return false; }
  absl::Status Restore(uint64_t id, const float* row, const RowHistory&) override {
    rows_[id].assign(row, row + kRowFloats);
    return absl::OkStatus();
  }
  std::string SaveFilter(uint32_t) const override { return {}; }
  bool RestoreFilter(uint32_t, absl::string_view) override { return false; }
  uint64_t clock() const override { return 0; }
  void SetClock(uint64_t) override {}
  void Clear() override { rows_.clear(); }

  Rows rows_;

 private:
  const uint32_t num_buckets_;
};

}  // namespace tandem::ps

#endif  // TANDEM_TESTS_PS_CHECKPOINT_MAP_STORAGE_H_
