// SPDX-License-Identifier: Apache-2.0
#include "ps/policies/eviction.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<Eviction> EvictionOf(const v1::EvictionConfig& config) {
  auto eviction = MakeEviction(config);
  TANDEM_EXPECT_OK(eviction);
  return *std::move(eviction);
}

struct EvictionCase {
  std::string name;
  v1::EvictionConfig config;
  RowStats better;  // is worth more than
  RowStats worse;
};
std::vector<EvictionCase> EvictionCases() {
  return {{"Lru", EvictLru(), {.age = 3}, {.age = 4}},
          {"LfuByCount", EvictLfu(), {.age = 90, .count = 512}, {.age = 0, .count = 256}},
          {"LfuByAge", EvictLfu(), {.age = 0, .count = 256}, {.age = 110, .count = 512}},
          {"LfuThenByAge", EvictLfu(), {.age = 6, .count = 256}, {.age = 7, .count = 256}},
          {"LfuUsed", EvictLfu(), {.age = 700, .count = 256}, {.age = 0, .count = 0}},
          {"LfuHuge", EvictLfu(), {.age = 0, .count = 4294967295}, {.age = 0, .count = 4294967294}},
          {"L2Norm", EvictL2Norm(), {.age = 9, .squared_norm = 0.2}, {.age = 1, .squared_norm = 0.1}},
          {"Ttl", EvictAfter(10), {.age = 3}, {.age = 4}}};
}

// Tests what holds for every eviction.
class EvictionConformanceTest : public ::testing::TestWithParam<EvictionCase> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EvictionConformanceTest, ::testing::ValuesIn(EvictionCases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EvictionConformanceTest, RanksRowsAndIsAFunctionOfTheirFacts) {
  const std::unique_ptr<Eviction> eviction = EvictionOf(GetParam().config);
  EXPECT_EQ(eviction->kind(), GetParam().config.kind());
  EXPECT_GT(eviction->Priority(GetParam().better), eviction->Priority(GetParam().worse));
  EXPECT_EQ(eviction->Priority(GetParam().better), eviction->Priority(GetParam().better));
  // Facts it does not ask for do not matter.
  RowStats other = GetParam().better;
  if (!eviction->needs_count()) other.count += 17;
  if (!eviction->needs_norm()) other.squared_norm += 17;
  EXPECT_EQ(eviction->Priority(GetParam().better), eviction->Priority(other));
}

TEST_P(EvictionConformanceTest, RowsExpireOnlyWhereBucketsAreSweptAndNeverYoung) {
  const std::unique_ptr<Eviction> eviction = EvictionOf(GetParam().config);
  EXPECT_FALSE(eviction->Expired({.age = 0}));
  EXPECT_EQ(eviction->Expired({.age = uint64_t{1} << 31}), eviction->sweeps());
}

TEST(EvictionRegistryTest, AllKindsAreCoveredAndAnEmptyKindIsNone) {
  for (const absl::string_view kind : EvictionKinds()) {
    bool covered = kind == "none";
    for (const EvictionCase& c : EvictionCases()) covered = covered || c.config.kind() == kind;
    EXPECT_TRUE(covered) << kind;
  }
  EXPECT_EQ(EvictionOf({}), nullptr);
  v1::EvictionConfig none;
  none.set_kind("none");
  EXPECT_EQ(EvictionOf(none), nullptr);
}

TEST(EvictionRegistryTest, WrongFieldsAreNamed) {
  v1::EvictionConfig config;
  config.set_kind("lro");
  EXPECT_THAT(MakeEviction(config), StatusIs(absl::StatusCode::kInvalidArgument,
                                             AllOf(HasSubstr("eviction.kind is 'lro'"), HasSubstr("lru"))));
  for (const uint64_t ttl : {uint64_t{0}, (uint64_t{1} << 31) + 1}) {
    EXPECT_THAT(MakeEviction(EvictAfter(ttl)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ttl")));
  }
}

TEST(EvictionRegistryTest, TheHalfLifeOfLfuIsChecked) {
  for (const uint64_t half_life : {uint64_t{0}, (uint64_t{1} << 31) + 1}) {
    EXPECT_THAT(MakeEviction(EvictLfu(half_life)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("half_life")));
  }
}

// An update of a row.
struct Update {
  uint64_t age;
  uint32_t occurrences;
};

// The sum of the weights of all occurrences of a row's id, half of which is lost in every half-life.
double Weight(const std::vector<Update>& updates, double half_life) {
  double sum = 0;
  for (const Update& update : updates) {
    sum = sum * std::exp2(-static_cast<double>(update.age) / half_life) + update.occurrences;
  }
  return sum;
}

TEST(LfuTest, CountsAreTheSumOfTheOccurrencesWeights) {
  CounterRandom random(/*seed=*/17, 0);
  for (const uint64_t half_life : {1ull, 3ull, 100ull, 12345ull, 1ull << 31}) {
    const std::unique_ptr<Eviction> eviction = EvictionOf(EvictLfu(half_life));
    for (const uint64_t longest : {1ull, 50ull, 5000ull, 1ull << 32}) {
      std::vector<Update> updates;
      uint32_t count = 0;
      for (int update = 0; update < 500; ++update) {
        const auto occurrences = static_cast<uint32_t>(1 + random.Below(1 + random.Below(300)));
        updates.push_back({random.Below(longest + 1), occurrences});
        count = eviction->Counted(count, updates.back().age, occurrences);
        const double expected = Weight(updates, static_cast<double>(half_life)) * Eviction::kOneOccurrence;
        // Each update may round by half a unit, and the ageing may be a little too slow.
        ASSERT_NEAR(count, expected, expected * 3e-3 + 1) << half_life << " " << longest << " " << update;
      }
    }
  }
}

TEST(LfuTest, CountsDoNotOverflow) {
  const std::unique_ptr<Eviction> eviction = EvictionOf(EvictLfu(uint64_t{1} << 31));
  constexpr uint32_t kMost = 4294967295;
  EXPECT_EQ(eviction->Counted(kMost, 0, 1), kMost);
  EXPECT_EQ(eviction->Counted(kMost, 1, 1), kMost);
  EXPECT_EQ(eviction->Counted(0, 0, kMost), kMost);
  EXPECT_EQ(eviction->Counted(kMost, 0, kMost), kMost);
  EXPECT_EQ(eviction->Counted(0, 0, (1 << 24) - 1), kMost - 255);
  EXPECT_EQ(EvictionOf(EvictLfu(1))->Counted(kMost, (uint64_t{1} << 32) - 1, 1), Eviction::kOneOccurrence);
  EXPECT_EQ(eviction->Counted(0, 7, 1), Eviction::kOneOccurrence);
  EXPECT_EQ(eviction->Counted(0, 7, 3), 3 * Eviction::kOneOccurrence);
}

TEST(TtlTest, ExpiresAfterThatManyUpdates) {
  const std::unique_ptr<Eviction> eviction = EvictionOf(EvictAfter(10));
  EXPECT_FALSE(eviction->Expired({.age = 10}));
  EXPECT_TRUE(eviction->Expired({.age = 11}));
}

}  // namespace
}  // namespace tandem::ps
