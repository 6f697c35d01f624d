// SPDX-License-Identifier: Apache-2.0
#include "collectives/group/global_ranks.h"

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "collectives/process_group.h"
#include "tests/collectives/conformance/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Named(absl::string_view message, const std::vector<int>& global_ranks) {
  return std::string(NameGlobalRanks(absl::UnavailableError(message), global_ranks).message());
}

TEST(GlobalRanksTest, RanksOfTheGroupBecomeGlobalRanks) {
  EXPECT_EQ(Named("rank 1 was lost", {3, 5}), "rank 5 was lost (global ranks; the group has ranks 3 and 5)");
  EXPECT_EQ(Named("ranks 0 and 2 of 3 did not come", {4, 0, 7}),
            "ranks 4 and 7 did not come (global ranks; the group has ranks 4, 0 and 7)");
  EXPECT_EQ(Named("rank 1 calls a, rank 0 calls b", {3, 5}),
            "rank 5 calls a, rank 3 calls b (global ranks; the group has ranks 3 and 5)");
}

TEST(GlobalRanksTest, ALargeGroupIsNotListed) {
  std::vector<int> evens;
  for (int r = 0; r < 17; ++r) evens.push_back(2 * r);
  EXPECT_EQ(Named("rank 3 was lost", evens), "rank 6 was lost (global ranks; the group has 17 ranks)");
}

TEST(GlobalRanksTest, TheTextOfAnAbortingRankStays) {
  EXPECT_EQ(
      Named("rank 1 aborted the group: group 'g' was aborted by rank 5: rank 0 says so", {3, 5}),
      "rank 5 aborted the group: group 'g' was aborted by rank 5: rank 0 says so (global ranks; the group "
      "has ranks 3 and 5)");
  EXPECT_EQ(Named("rank 1 aborted: rank 3 was lost (global ranks; the group has ranks 3 and 5)", {3, 5}),
            "rank 5 aborted: rank 3 was lost (global ranks; the group has ranks 3 and 5)");
}

TEST(GlobalRanksTest, ErrorsThatNeedNoneStayAsTheyAre) {
  for (const char* message : {"", "no rank sent it", "frank 1", "rank", "rank 2 of another group"}) {
    EXPECT_EQ(Named(message, {3, 5}), message);
  }
  EXPECT_EQ(Named("rank 1 was lost", {0, 1}), "rank 1 was lost");
  const std::string once = Named("rank 1 was lost", {1, 0});
  EXPECT_EQ(Named(once, {1, 0}), once);
  TANDEM_EXPECT_OK(NameGlobalRanks(absl::OkStatus(), {3, 5}));
}

TEST(GlobalRanksTest, ErrorsOfASubgroupNameGlobalRanks) {
  for (const char* backend : {"shm", "tcp"}) {
    RunRanks(4, {.backend = backend}, [](ProcessGroup& world) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto group, world.NewGroup({3, 1}));
      if (group == nullptr) return;
      std::vector<float> values(group->rank() == 0 ? 2 : 3);
      const absl::Status status = group->AllReduce(absl::MakeSpan(values)).status();
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("rank 3 calls"), HasSubstr("rank 1 calls"),
                                 Not(HasSubstr("rank 0")), HasSubstr("the group has ranks 3 and 1"))));
      // Later calls return the same error.
      EXPECT_EQ(group->Barrier().status(), status);
    });
  }
}

TEST(GlobalRanksTest, AMonitoredBarrierNamesGlobalRanks) {
  RunRanks(3, {.backend = "shm"}, [](ProcessGroup& world) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto group, world.NewGroup({1, 2}));
    if (world.rank() == 1) {
      EXPECT_THAT(
          group->MonitoredBarrier(absl::Milliseconds(50)),
          StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 2 did not come; rank 1 gave up")));
    }
    TANDEM_EXPECT_OK(world.Barrier().status());
  });
}

TEST(GlobalRanksTest, AnAbortNamesTheGlobalRank) {
  for (const char* backend : {"shm", "tcp"}) {
    RunRanks(3, {.backend = backend}, [](ProcessGroup& world) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto group, world.NewGroup({1, 2}));
      if (world.rank() == 2) group->Abort("rank 0 of the pipeline is tired");
      if (world.rank() == 1) {
        EXPECT_THAT(group->Barrier().status(),
                    StatusIs(absl::StatusCode::kAborted,
                             AllOf(HasSubstr("by rank 2: rank 0 of the pipeline is tired"),
                                   Not(HasSubstr("rank 1 ab")))));
      }
      TANDEM_EXPECT_OK(world.Barrier().status());
    });
  }
}

TEST(GlobalRanksTest, AGroupOfTheProgramsOwnMakingHasTheGlobalRanksThatItIsGiven) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto alone,
                              InitProcessGroup(nullptr, {.rank = 0, .world_size = 1, .global_ranks = {7}}));
  EXPECT_THAT(alone->global_ranks(), ::testing::ElementsAre(7));
  EXPECT_THAT(InitProcessGroup(nullptr, {.rank = 0, .world_size = 1, .global_ranks = {7, 8}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 global ranks for a world of 1")));
}

}  // namespace
}  // namespace tandem::collectives
