// SPDX-License-Identifier: Apache-2.0
// Tests the contract of GatherNewer: versions decide which rows it sends, and it sends what Gather reads.

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/storage/table_storage.h"
#include "ps/table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kBuckets = 16;

std::map<uint64_t, uint32_t> Versions(TableStorage* table) {
  std::map<uint64_t, uint32_t> versions;
  for (uint32_t b = 0; b < kBuckets; ++b) {
    TANDEM_EXPECT_OK(table->VisitBucket(
        b, [&](uint64_t id, const float*, const RowHistory& history) { versions[id] = history.version; }));
  }
  return versions;
}

struct NewerCase {
  std::string name;
  uint32_t dim;
  v1::TableConfig::RowType row_type;
  uint64_t ttl;  // 0: rows stay
  uint64_t clock;
};

class GatherNewerTest : public ::testing::TestWithParam<NewerCase> {};
INSTANTIATE_TEST_SUITE_P(
    Tables, GatherNewerTest,
    ::testing::Values(NewerCase{"Floats", 16, v1::TableConfig::F32, 0, 0},
                      NewerCase{"OddDim", 7, v1::TableConfig::F32, 0, 5},
                      NewerCase{"HalvesThatExpire", 9, v1::TableConfig::F16, 30, 100},
                      NewerCase{"ClockWrapsRound", 3, v1::TableConfig::BF16, 0, 0xffffffff - 20},
                      NewerCase{"ClockWrapsRoundWhileRowsExpire", 64, v1::TableConfig::F32, 30, 0x1ffffffe8}),
    [](const auto& info) { return info.param.name; });

TEST_P(GatherNewerTest, SendsWhatCopiesLackAndNothingElse) {
  const NewerCase& param = GetParam();
  v1::TableConfig config = EmbeddingTable("t", param.dim, Adagrad(0.1f), Uniform(-1, 1));
  config.set_row_type(param.row_type);
  if (param.ttl > 0) *config.mutable_eviction() = EvictAfter(param.ttl);
  const auto table = TableStorage::Create(config, kBuckets, [](uint32_t) { return true; });
  table->SetClock(param.clock);
  CounterRandom random(/*seed=*/1, param.dim);
  std::vector<float> floats;
  size_t all_sent = 0, all_kept = 0, absent = 0;
  for (int round = 0; round < 120; ++round) {
    static constexpr size_t kSizes[] = {0, 1, 7, 8, 9, 63, 300, 1023, 1024, 1025, 2500};
    std::vector<uint64_t> ids(kSizes[random.Below(std::size(kSizes))]);
    for (uint64_t& id : ids) id = random.Below(3) == 0 ? random.Below(10) : random.Below(2000);
    floats.assign(ids.size() * param.dim, 0.25f);
    if (random.Below(2) == 0) {
      TANDEM_ASSERT_OK(table->Apply(ids, floats.data(), {}));
      continue;
    }
    const std::map<uint64_t, uint32_t> versions = Versions(table.get());
    const auto now = static_cast<uint32_t>(table->clock());
    const uint64_t max_age = random.Below(3) == 0 ? random.Below(20) : 0;
    std::vector<uint32_t> cached(ids.size());
    for (uint32_t& version : cached) {
      version = random.Below(5) == 0 ? 0 : now - static_cast<uint32_t>(random.Below(40));
    }
    const bool create = random.Below(2) == 0;
    std::vector<uint64_t> want_ids;
    std::vector<uint8_t> want_sent((ids.size() + 7) / 8, 0);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto row = versions.find(ids[i]);
      const bool newer = row == versions.end() || static_cast<int32_t>(row->second - cached[i]) > 0;
      if (cached[i] != 0 && (now - cached[i] <= max_age || !newer)) {
        ++all_kept;
        continue;
      }
      absent += row == versions.end();
      want_sent[i / 8] |= static_cast<uint8_t>(1 << i % 8);
      want_ids.push_back(ids[i]);
    }
    std::vector<float> want(want_ids.size() * param.dim);
    TANDEM_ASSERT_OK(table->Gather(want_ids, /*create=*/false, want.data()));
    std::vector<float> got(ids.size() * param.dim);
    std::vector<uint8_t> sent(want_sent.size(), 0xff);
    const absl::StatusOr<size_t> count =
        table->GatherNewer(ids, cached.data(), max_age, create, got.data(), sent.data());
    TANDEM_ASSERT_OK(count);
    ASSERT_EQ(*count, want_ids.size());
    ASSERT_EQ(sent, want_sent);
    got.resize(want.size());
    ASSERT_EQ(got, want);
    all_sent += *count;
    const std::map<uint64_t, uint32_t> after = Versions(table.get());
    for (const uint64_t id : want_ids) ASSERT_EQ(after.count(id) > 0, create || versions.count(id) > 0);
  }
  EXPECT_GT(all_sent, 1000);
  EXPECT_GT(all_kept, 1000);
  EXPECT_GT(absent, 100);
}

TEST(GatherNewerOrderTest, RowsFollowOneAnotherInTheOrderOfTheIdsAndRepeatedIdsAreSentEachTime) {
  const auto table = TableStorage::Create(EmbeddingTable("t", 1, Sgd(1.0f), Zeros()), kBuckets,
                                          [](uint32_t) { return true; });
  float rows[4];
  TANDEM_ASSERT_OK(table->Gather({1, 2, 3}, /*create=*/true, rows));
  const float first[] = {-1, -2, -3};
  TANDEM_ASSERT_OK(table->Apply({1, 2, 3}, first, {}));  // clock 1
  const float second[] = {-20};
  TANDEM_ASSERT_OK(table->Apply({2}, second, {}));  // clock 2
  const uint32_t cached[] = {1, 1, 0, 1};
  uint8_t sent = 0xff;
  const auto count = table->GatherNewer({3, 2, 1, 2}, cached, 0, /*create=*/false, rows, &sent);
  TANDEM_ASSERT_OK(count);
  EXPECT_EQ(*count, 3);
  EXPECT_EQ(sent, 0b1110);
  EXPECT_THAT(std::vector<float>(rows, rows + 3), ElementsAre(22, 1, 22));
  // Within the bound nothing is looked at.
  const uint32_t fresh[] = {1, 1, 1, 1};
  EXPECT_EQ(*table->GatherNewer({3, 2, 1, 2}, fresh, 1, /*create=*/false, rows, &sent), 0);
  EXPECT_EQ(sent, 0);
  const uint64_t any = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(*table->GatherNewer({3, 2, 1, 2}, cached, any, /*create=*/false, rows, &sent), 1);
}

}  // namespace
}  // namespace tandem::ps
