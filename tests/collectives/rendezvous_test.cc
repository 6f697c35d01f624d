#include "collectives/rendezvous.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/store/memory_store.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

ProcessGroupOptions Rank(int rank, int world_size, absl::Duration timeout = absl::Seconds(60)) {
  ProcessGroupOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = timeout;
  return options;
}

absl::Status Come(Store* store, const ProcessGroupOptions& options,
                  const std::string& address = "127.0.0.1") {
  return Meet(store, options, address, absl::Now() + options.timeout);
}

TEST(RendezvousTest, AllMeet) {
  MemoryStore store;
  std::thread other([&] { TANDEM_EXPECT_OK(Come(&store, Rank(1, 2))); });
  TANDEM_EXPECT_OK(Come(&store, Rank(0, 2)));
  other.join();
}

TEST(RendezvousTest, TheAbsentAreNamed) {
  MemoryStore store;
  std::thread other([&] {
    EXPECT_THAT(Come(&store, Rank(2, 4, absl::Milliseconds(200))),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  });
  EXPECT_THAT(Come(&store, Rank(0, 4, absl::Milliseconds(200))),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("1 and 3 of 4 did not come"), HasSubstr("200ms"))));
  other.join();
}

TEST(RendezvousTest, ATakenRankIsRefused) {
  MemoryStore store;
  EXPECT_THAT(Come(&store, Rank(1, 2, absl::Milliseconds(10))),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(Come(&store, Rank(1, 2)),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("rank 1 is already taken"), HasSubstr("process"))));
}

TEST(RendezvousTest, RanksThatExpectDifferentWorldsAreNamed) {
  MemoryStore store;
  EXPECT_THAT(Come(&store, Rank(2, 3, absl::Milliseconds(10))),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(
      Come(&store, Rank(0, 2, absl::Milliseconds(10))),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 expects 2 ranks, rank 2 expects 3")));
}

TEST(RendezvousTest, AnotherHostsLoopbackAddressIsRefused) {
  MemoryStore store;
  TANDEM_ASSERT_OK(store.Set("pg/default/rank/1", "2\n10.0.0.2\nanother host\ntoken"));
  EXPECT_THAT(Come(&store, Rank(0, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rank 0 listens on 127.0.0.1"), HasSubstr("rank 1"))));
}

TEST(RendezvousTest, AnAnnouncementThatIsNotUnderstoodIsAnError) {
  MemoryStore store;
  TANDEM_ASSERT_OK(store.Set("pg/default/rank/1", "gibberish"));
  EXPECT_THAT(Come(&store, Rank(0, 2)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("version")));
}

TEST(RendezvousTest, RanksAreListedAsInASentence) {
  EXPECT_EQ(NameRanks({3}), "rank 3");
  EXPECT_EQ(NameRanks({0, 2}), "ranks 0 and 2");
  EXPECT_EQ(NameRanks({0, 2, 5}), "ranks 0, 2 and 5");
}

}  // namespace
}  // namespace tandem::collectives
