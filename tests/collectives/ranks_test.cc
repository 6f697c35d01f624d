// SPDX-License-Identifier: Apache-2.0
#include "collectives/ranks.h"

#include <vector>

#include "gtest/gtest.h"

namespace tandem::collectives {
namespace {

TEST(RanksTest, RanksAreRenamedWhereverTheyAreNamed) {
  const std::vector<int> names = {4, 10, 0};
  EXPECT_EQ(RenameRanks("rank 1 died, ranks 0, 2 and 1 wait for rank 0", names),
            "rank 10 died, ranks 4, 0 and 10 wait for rank 4");
  EXPECT_EQ(RenameRanks("ranks of group 'default' disagree: rank 1 calls a", names),
            "ranks of group 'default' disagree: rank 10 calls a");
}

TEST(RanksTest, ARankOfTheWholeGroupLosesTheGroupsSize) {
  const std::vector<int> names = {4, 10, 0};
  EXPECT_EQ(RenameRanks("ranks 0 and 2 of 3 did not come", names), "ranks 4 and 0 did not come");
  EXPECT_EQ(RenameRanks("rank 1 of 3", names), "rank 10");
  EXPECT_EQ(RenameRanks("rank 1 of 30, rank 1 of 3rd", names), "rank 10 of 30, rank 10 of 3rd");
}

TEST(RanksTest, OtherTextStays) {
  const std::vector<int> names = {4, 10, 0};
  for (const char* text : {"", "rank", "ranks ", "ranks , and", "rank 7 of 9 and frank 1", "no rank sent it",
                           "rank 99999999999999999999", "group 'rank 1'", "group 'rank 1"}) {
    EXPECT_EQ(RenameRanks(text, names), text);
  }
}

}  // namespace
}  // namespace tandem::collectives
