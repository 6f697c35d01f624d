// SPDX-License-Identifier: Apache-2.0
#include "ps/replicated/hot_set.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

HotSetOptions Options(uint64_t budget_rows) {
  return {.min_staleness = 2.0, .keep_fraction = 0.5, .budget_bytes = 100 * budget_rows};
}

TEST(HotSetTest, RowsJoinAboveTheLimitAndLeaveWellBelowIt) {
  const std::vector<HotSetTable> tables = {{.bytes_per_row = 100,
                                            .replicated = {{1, 5.0}, {2, 1.5}, {3, 0.9}},
                                            .candidates = {{4, 2.1}, {5, 1.9}}}};
  uint64_t refused = 0;
  const std::vector<HotSetChange> changes = DecideHotSet(tables, Options(10), &refused);
  EXPECT_THAT(changes[0].added, ElementsAre(4));
  EXPECT_THAT(changes[0].removed, ElementsAre(3));
  EXPECT_EQ(refused, 0u);
}

TEST(HotSetTest, TheBudgetTakesTheStalestRowsOfAllTables) {
  const std::vector<HotSetTable> tables = {
      {.bytes_per_row = 100, .replicated = {}, .candidates = {{1, 3.0}, {2, 8.0}}},
      {.bytes_per_row = 100, .replicated = {}, .candidates = {{3, 9.0}, {4, 2.5}}}};
  uint64_t refused = 0;
  const std::vector<HotSetChange> changes = DecideHotSet(tables, Options(3), &refused);
  EXPECT_THAT(changes[0].added, ElementsAre(2, 1));
  EXPECT_THAT(changes[1].added, ElementsAre(3));
  EXPECT_EQ(refused, 1u);
}

TEST(HotSetTest, ARowInPlaceGivesWayOnlyToAMuchHotterOne) {
  uint64_t refused = 0;
  HotSetTable table{.bytes_per_row = 100, .replicated = {{1, 3.0}}, .candidates = {{2, 4.0}}};
  std::vector<HotSetChange> changes = DecideHotSet({table}, Options(1), &refused);
  EXPECT_THAT(changes[0].added, IsEmpty());
  EXPECT_THAT(changes[0].removed, IsEmpty());
  table.candidates[0].staleness = 7.0;
  changes = DecideHotSet({table}, Options(1), &refused);
  EXPECT_THAT(changes[0].added, ElementsAre(2));
  EXPECT_THAT(changes[0].removed, ElementsAre(1));
}

TEST(HotSetTest, WantedRowsComeFirstAndStayWhateverTheirStaleness) {
  const std::vector<HotSetTable> tables = {
      {.bytes_per_row = 100, .replicated = {{1, 0.0, true}}, .candidates = {{2, 9.0}, {3, 0.0, true}}}};
  uint64_t refused = 0;
  const std::vector<HotSetChange> changes = DecideHotSet(tables, Options(2), &refused);
  EXPECT_THAT(changes[0].added, ElementsAre(3));
  EXPECT_THAT(changes[0].removed, IsEmpty());
  EXPECT_EQ(refused, 1u);
}

}  // namespace
}  // namespace tandem::ps
