// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/row_model.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/shard_map.h"
#include "ps/storage/table_storage.h"
#include "tests/testing/status_matchers.h"

namespace tandem::bench {
namespace {

using ::testing::HasSubstr;

class RowModelTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kRows = 100;
  const v1::TableConfig config_ = PsBenchTable(/*dim=*/6, /*workers=*/1);
  const std::unique_ptr<ps::TableStorage> table_ =
      ps::TableStorage::Create(config_, ps::kDefaultBuckets, [](uint32_t) { return true; });
  RowModel model_{config_, kRows};

  std::vector<float> Rows(absl::Span<const uint64_t> ids) {
    std::vector<float> rows(ids.size() * 6);
    TANDEM_EXPECT_OK(table_->Gather(ids, /*create=*/true, rows.data()));
    return rows;
  }
  void Push(absl::Span<const uint64_t> ids) {
    const std::vector<float> gradients(ids.size() * 6, RowModel::kGradient);
    TANDEM_EXPECT_OK(table_->Apply(ids, gradients.data(), {}).status());
  }
};

TEST_F(RowModelTest, ItFollowsATableThroughThousandsOfUpdates) {
  const std::vector<uint64_t> often = {7, 99}, ids = {3, 7, 99, 50};
  TANDEM_EXPECT_OK(model_.Check(ids, Rows(ids).data()));
  for (int i = 0; i < 5000; ++i) Push(often);
  Push(ids);
  model_.Push(often, 5000);
  model_.Push(ids, 1);
  TANDEM_EXPECT_OK(model_.Check(ids, Rows(ids).data()));
}

TEST_F(RowModelTest, RowsOfOtherIdsLostPushesAndPushesAppliedTwiceAreFound) {
  const std::vector<uint64_t> ids = {1, 2, 3}, swapped = {1, 3, 2};
  Rows(ids);
  EXPECT_THAT(model_.Check(ids, Rows(swapped).data()).message(), HasSubstr("row 2"));
  Push(ids);
  EXPECT_THAT(model_.Check(ids, Rows(ids).data()).message(), HasSubstr("after 0 updates"));
  model_.Push(ids, 2);
  EXPECT_THAT(model_.Check(ids, Rows(ids).data()).message(), HasSubstr("after 2 updates"));
  Push(ids);
  TANDEM_EXPECT_OK(model_.Check(ids, Rows(ids).data()));
}

}  // namespace
}  // namespace tandem::bench
