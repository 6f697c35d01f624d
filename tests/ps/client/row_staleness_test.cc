// SPDX-License-Identifier: Apache-2.0
// Row staleness from servers to a worker: by segment, by table, and the rows that are updated often.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::PsCluster;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kHotIds = 20;
constexpr uint32_t kColdIds = 30;
constexpr uint64_t kLate = 4;  // pushes

class RowStalenessTest : public ::testing::TestWithParam<int> {
 protected:
  // Pushes `steps` steps, each `kLate` steps after its pull. The first segment has ids that are in every
  // push, the second one those of one push only; ids repeat.
  void Run(v1::UpdateMode mode, uint64_t steps) {
    TANDEM_ASSERT_OK_AND_ASSIGN(client_, cluster_.Connect());
    v1::TableConfig config = EmbeddingTable("t", 2, Sgd(0.1f), Zeros());
    *config.mutable_update_mode() = mode;
    config.set_num_workers(1);
    TANDEM_ASSERT_OK(client_->CreateTable(config));
    std::vector<std::vector<uint64_t>> versions;
    for (uint64_t step = 0; step < steps; ++step) {
      std::vector<uint64_t> ids;
      for (uint64_t id = 0; id < kHotIds; ++id) ids.insert(ids.end(), {id, id, id});
      for (uint64_t i = 0; i < kColdIds; ++i) ids.push_back(1000 + step * kColdIds + i);
      const std::vector<uint32_t> segments = {3 * kHotIds, 3 * kHotIds + kColdIds};
      std::vector<float> rows(ids.size() * 2);
      TANDEM_ASSERT_OK_AND_ASSIGN(
          PullVersions pulled,
          client_->Pull(step, false, {{.table = "t", .ids = ids, .rows = rows.data(), .repeats = true}}));
      versions.push_back(pulled[0]);
      TANDEM_ASSERT_OK(client_->Push(step, {{.table = "t",
                                             .ids = ids,
                                             .gradients = rows.data(),
                                             .pulled_versions = versions[step - std::min(step, kLate)],
                                             .segments = segments}}));
    }
  }

  PsCluster cluster_{static_cast<uint32_t>(GetParam())};
  std::unique_ptr<Client> client_;
};

INSTANTIATE_TEST_SUITE_P(Servers, RowStalenessTest, ::testing::Values(1, 2, 3));

TEST_P(RowStalenessTest, SegmentsThatAreInEveryPushAreAsStaleAsThePushesAndOthersAreNot) {
  Run(Async(), 100);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto segments, client_->RowStalenessStatistics("t"));
  ASSERT_THAT(segments, SizeIs(2));
  EXPECT_EQ(segments[0].rows, 100u * kHotIds);
  EXPECT_EQ(segments[0].sum, kHotIds * (0 + 1 + 2 + 3 + kLate * 96));
  EXPECT_EQ(segments[0].max, kLate);
  EXPECT_EQ(segments[0].Quantile(0.99), kLate + 0u);
  EXPECT_EQ(segments[1].rows, 100u * kColdIds);
  EXPECT_EQ(segments[1].sum, 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tables, client_->ListTables());
  EXPECT_EQ(tables[0].statistics().row_staleness().rows(), segments[0].rows + segments[1].rows);
  EXPECT_EQ(tables[0].statistics().row_staleness().sum(), segments[0].sum);
  TANDEM_ASSERT_OK(client_->ResetRowStalenessStatistics("t"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reset, client_->RowStalenessStatistics("t"));
  EXPECT_THAT(reset, IsEmpty());
}

TEST_P(RowStalenessTest, TheRowsThatAreUpdatedOftenAreFoundOnAllServers) {
  Run(Async(), 100);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto hot, client_->FrequentlyUpdatedRows("t", 1.0, 1000));
  ASSERT_THAT(hot, SizeIs(kHotIds));
  for (const FrequentRow& row : hot) {
    EXPECT_LT(row.id, kHotIds);
    EXPECT_DOUBLE_EQ(row.update_rate, 1.0);
    EXPECT_NEAR(row.row_staleness, kLate, 0.2);
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto few, client_->FrequentlyUpdatedRows("t", 1.0, 3));
  EXPECT_THAT(few, SizeIs(3));
  EXPECT_THAT(client_->FrequentlyUpdatedRows("t", -1, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("min_row_staleness")));
}

TEST_P(RowStalenessTest, ASynchronousTableHasNone) {
  Run(Sync(), 20);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto segments, client_->RowStalenessStatistics("t"));
  EXPECT_THAT(segments, IsEmpty());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tables, client_->ListTables());
  EXPECT_EQ(tables[0].statistics().row_staleness().rows(), 0);
}

TEST_P(RowStalenessTest, ATableThatAggregatesGlobalBatchesIsMeasured) {
  Run(Gba(100), 50);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tables, client_->ListTables());
  EXPECT_EQ(tables[0].statistics().row_staleness().rows(), 50u * (kHotIds + kColdIds));
  EXPECT_EQ(tables[0].statistics().row_staleness().max(), kLate);
}

TEST_P(RowStalenessTest, SegmentsThatDoNotCoverTheIdsAreRefused) {
  Run(Async(), 0);
  const std::vector<uint64_t> ids = {1, 2};
  const std::vector<float> gradients(4);
  for (const std::vector<uint32_t>& segments : {std::vector<uint32_t>{1}, {2, 1, 2}, {3}}) {
    EXPECT_THAT(
        client_->Push(0, {{.table = "t", .ids = ids, .gradients = gradients.data(), .segments = segments}}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must ascend to the number of ids, 2")));
  }
}

}  // namespace
}  // namespace tandem::ps
