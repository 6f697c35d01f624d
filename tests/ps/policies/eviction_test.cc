// SPDX-License-Identifier: Apache-2.0
#include "ps/policies/eviction.h"

#include <cstdint>
#include <string>
#include <vector>

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
          {"LfuByCount", EvictLfu(), {.age = 1000000, .count = 3}, {.age = 0, .count = 2}},
          {"LfuThenByAge", EvictLfu(), {.age = 6, .count = 2}, {.age = 7, .count = 2}},
          {"LfuHuge", EvictLfu(), {.age = 9, .count = 4294967295}, {.age = 0, .count = 4294967294}},
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

TEST(TtlTest, ExpiresAfterThatManyUpdates) {
  const std::unique_ptr<Eviction> eviction = EvictionOf(EvictAfter(10));
  EXPECT_FALSE(eviction->Expired({.age = 10}));
  EXPECT_TRUE(eviction->Expired({.age = 11}));
}

}  // namespace
}  // namespace tandem::ps
