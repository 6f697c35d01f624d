// The parts of `tandem bench ps`: what it draws, what it plans, and that it would notice wrong rows.

#include <cmath>
#include <set>
#include <vector>

#include "base/random.h"
#include "cli/bench/ps/id_batches.h"
#include "cli/bench/ps/ps_flags.h"
#include "cli/bench/ps/row_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/partition/shard_map.h"
#include "ps/storage/table_storage.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

TEST(ZipfRanksTest, RanksComeAsOftenAsZipfSays) {
  constexpr uint64_t kRanks = 50;
  constexpr int kDraws = 200000;
  for (const double exponent : {0.8, 1.05, 2.0}) {
    const ZipfRanks ranks(kRanks, exponent);
    CounterRandom random(3, 0);
    std::vector<int> seen(kRanks, 0);
    for (int i = 0; i < kDraws; ++i) {
      const uint64_t rank = ranks.Draw(&random);
      ASSERT_LT(rank, kRanks);
      ++seen[rank];
    }
    double total = 0;
    for (uint64_t k = 1; k <= kRanks; ++k) total += std::pow(static_cast<double>(k), -exponent);
    for (uint64_t k = 1; k <= kRanks; ++k) {
      const double p = std::pow(static_cast<double>(k), -exponent) / total;
      EXPECT_NEAR(seen[k - 1], kDraws * p, 5 * std::sqrt(kDraws * p))
          << "rank " << k - 1 << " of " << exponent;
    }
  }
}

TEST(IdBatchesTest, EachBatchIsOfDistinctIdsOfTheTableAndTheSameEveryTime) {
  for (const PsDistribution distribution : AllPsDistributions()) {
    const auto batches = MakeIdBatches(500, 4000, distribution);
    EXPECT_EQ(batches.size(), (size_t{1} << 19) / 500);
    for (const auto& batch : batches) {
      EXPECT_EQ(std::set<uint64_t>(batch.begin(), batch.end()).size(), 500u);
      for (const uint64_t id : batch) ASSERT_LT(id, 4000u);
    }
    EXPECT_NE(batches[0], batches[1]);
    EXPECT_EQ(batches, MakeIdBatches(500, 4000, distribution));
  }
}

TEST(IdBatchesTest, ZipfBatchesShareTheirCommonIdsAndUniformOnesDoNot) {
  const auto common = [](PsDistribution distribution) {
    const auto batches = MakeIdBatches(1000, 100000, distribution);
    const std::set<uint64_t> first(batches[0].begin(), batches[0].end());
    int both = 0;
    for (const uint64_t id : batches[1]) both += static_cast<int>(first.count(id));
    return both;
  };
  EXPECT_LT(common(PsDistribution::kUniform), 50);
  EXPECT_GT(common(PsDistribution::kZipf), 150);
}

TEST(PsFlagsTest, EveryChoiceIsMadeWhereNoneIsNarrowed) {
  const absl::StatusOr<std::vector<PsGroup>> groups = PsGroupsOf({});
  TANDEM_ASSERT_OK(groups);
  size_t in_process = 0, remote = 0;
  for (const PsGroup& group : *groups) {
    for (const PsCase& c : group.cases) {
      EXPECT_EQ(c.dim, group.dim);
      EXPECT_EQ(c.servers, group.servers);
      EXPECT_EQ(c.workers, group.workers);
      ++(c.transport == PsTransport::kInProcess ? in_process : remote);
    }
  }
  EXPECT_EQ(in_process, 3u * 3 * 3 * 2);          // operations, ids, dims, distributions
  EXPECT_EQ(remote, 3u * 3 * 3 * 3 * 2 * 3 * 2);  // transports, ..., processes, in flight, distributions
}

TEST(PsFlagsTest, ServersAndWorkersGoInPairs) {
  const auto processes = [](const char* servers, const char* workers) {
    PsFlags flags{.transports = "tcp", .dims = "8", .servers = servers, .workers = workers};
    std::vector<std::pair<int, int>> pairs;
    const std::vector<PsGroup> groups = PsGroupsOf(flags).value();
    for (const PsGroup& group : groups) pairs.emplace_back(group.servers, group.workers);
    return pairs;
  };
  using Pairs = std::vector<std::pair<int, int>>;
  EXPECT_EQ(processes("", ""), (Pairs{{1, 1}, {2, 2}}));
  EXPECT_EQ(processes("2", ""), (Pairs{{2, 2}}));
  EXPECT_EQ(processes("", "3"), (Pairs{{3, 3}}));
  EXPECT_EQ(processes("1", "1,4"), (Pairs{{1, 1}, {1, 4}}));
  EXPECT_EQ(processes("1,2", "3,4"), (Pairs{{1, 3}, {2, 4}}));
}

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
}  // namespace tandem::cli
