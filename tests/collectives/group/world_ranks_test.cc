// SPDX-License-Identifier: Apache-2.0
#include "collectives/group/world_ranks.h"

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "collectives/process_group.h"
#include "tests/collectives/conformance/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

std::string Added(absl::string_view message, const std::vector<int>& global_ranks) {
  return std::string(AddWorldRanks(absl::UnavailableError(message), global_ranks).message());
}

TEST(WorldRanksTest, EachNamedRankGetsItsRankOfTheWorld) {
  EXPECT_EQ(Added("rank 1 was lost", {3, 5}),
            "rank 1 was lost (rank 1 of this group is rank 5 of the world)");
  EXPECT_EQ(Added("ranks 0 and 2 of 3 did not come", {4, 0, 7}),
            "ranks 0 and 2 of 3 did not come (ranks 0 and 2 of this group are ranks 4 and 7 of the world)");
  EXPECT_EQ(Added("ranks 0, 1 and 2: no rank", {4, 0, 7}),
            "ranks 0, 1 and 2: no rank (ranks 0, 1 and 2 of this group are ranks 4, 0 and 7 of the world)");
  EXPECT_EQ(Added("rank 1 calls a, rank 0 calls b", {3, 5}),
            "rank 1 calls a, rank 0 calls b (ranks 0 and 1 of this group are ranks 3 and 5 of the world)");
}

TEST(WorldRanksTest, ErrorsThatNeedNoneStayAsTheyAre) {
  for (const char* message : {"", "no rank sent it", "frank 1", "rank", "rank 2 of another group",
                              "rank 99999999999999999999", "ranks , and"}) {
    EXPECT_EQ(Added(message, {3, 5}), message);
  }
  EXPECT_EQ(Added("rank 1 was lost", {0, 1}), "rank 1 was lost");
  const std::string once = Added("rank 1 was lost", {1, 0});
  EXPECT_EQ(Added(once, {1, 0}), once);
  TANDEM_EXPECT_OK(AddWorldRanks(absl::OkStatus(), {3, 5}));
}

TEST(WorldRanksTest, ASubgroupsErrorsNameTheWorldsRanks) {
  for (const char* backend : {"shm", "tcp"}) {
    RunRanks(4, {.backend = backend}, [](ProcessGroup& world) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto group, world.NewGroup({3, 1}));
      if (group == nullptr) return;
      std::vector<float> values(group->rank() == 0 ? 2 : 3);
      EXPECT_THAT(group->AllReduce(absl::MakeSpan(values)).status(),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr("(ranks 0 and 1 of this group are ranks 3 and 1 of the world)")));
      // Later calls return the same error.
      EXPECT_THAT(group->Barrier().status(),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world")));
    });
  }
}

}  // namespace
}  // namespace tandem::collectives
