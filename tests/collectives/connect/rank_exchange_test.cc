// SPDX-License-Identifier: Apache-2.0
#include "collectives/connect/rank_exchange.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/store/memory_store.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

RankInfo Rank(int rank, int world_size) {
  RankInfo i;
  i.rank = rank;
  i.world_size = world_size;
  i.self = {"this host", "127.0.0.1", 100 + rank};
  i.backend = "auto";
  i.debug = "OFF";
  i.members = "all";
  return i;
}

auto Come(cluster::Store* store, const RankInfo& me, absl::Duration timeout = absl::Seconds(60)) {
  return ExchangeRankInfo(store, me, absl::Now() + timeout, timeout);
}

// Rank 1 of two comes, finds no other rank, and leaves `me` in the store.
void AnnounceAndLeave(cluster::Store* store, const RankInfo& me) {
  EXPECT_THAT(Come(store, me, absl::Milliseconds(10)), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(RendezvousTest, AllRanksGetAllEndpoints) {
  cluster::MemoryStore store;
  std::thread other([&] { TANDEM_EXPECT_OK(Come(&store, Rank(1, 2))); });
  auto peers = Come(&store, Rank(0, 2));
  other.join();
  TANDEM_ASSERT_OK(peers);
  ASSERT_EQ(peers->size(), 2u);
  EXPECT_EQ((*peers)[1].host, "this host");
  EXPECT_EQ((*peers)[1].address, "127.0.0.1");
  EXPECT_EQ((*peers)[0].pid, 100);
  EXPECT_EQ((*peers)[1].pid, 101);
}

TEST(RendezvousTest, AbsentRanksAreNamedWithTheWholeTimeout) {
  cluster::MemoryStore store;
  AnnounceAndLeave(&store, Rank(2, 4));
  EXPECT_THAT(
      ExchangeRankInfo(&store, Rank(0, 4), absl::Now() + absl::Milliseconds(150), absl::Milliseconds(200)),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("1 and 3 of 4 did not come"), HasSubstr("200ms"))));
}

TEST(RendezvousTest, ATakenRankIsRefused) {
  cluster::MemoryStore store;
  AnnounceAndLeave(&store, Rank(1, 2));
  EXPECT_THAT(Come(&store, Rank(1, 2)),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("rank 1 is already taken by process 101"), HasSubstr("name"))));
}

TEST(RendezvousTest, RanksWithOtherExpectationsAreNamed) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  auto meet = [](auto change) {
    cluster::MemoryStore store;
    RankInfo other = Rank(1, 2);
    change(&other);
    AnnounceAndLeave(&store, other);
    return Come(&store, Rank(0, 2), absl::Milliseconds(10));
  };
  EXPECT_THAT(meet([](RankInfo* i) { i->world_size = 3; }),
              StatusIs(kInvalid, HasSubstr("the world size: rank 0 has 2, rank 1 has 3")));
  EXPECT_THAT(meet([](RankInfo* i) { i->backend = "tcp"; }),
              StatusIs(kInvalid, HasSubstr("the backend: rank 0 has 'auto', rank 1 has 'tcp'")));
  EXPECT_THAT(meet([](RankInfo* i) { i->debug = "DETAIL"; }),
              StatusIs(kInvalid, HasSubstr("TANDEM_DEBUG): rank 0 has OFF, rank 1 has DETAIL")));
  EXPECT_THAT(
      meet([](RankInfo* i) { i->members = "ranks 0 and 3"; }),
      StatusIs(kInvalid, HasSubstr("members of the group: rank 0 has all, rank 1 has ranks 0 and 3")));
}

TEST(RendezvousTest, ARankOfALargerWorldIsNamedThoughThisWorldIsComplete) {
  cluster::MemoryStore store;
  AnnounceAndLeave(&store, Rank(2, 3));
  EXPECT_THAT(Come(&store, Rank(0, 2), absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 has 2, rank 2 has 3")));
}

TEST(RendezvousTest, AnotherHostsLoopbackAddressIsRefused) {
  cluster::MemoryStore store;
  RankInfo other = Rank(1, 2);
  other.machine = "another machine";
  other.self.address = "10.0.0.2";
  AnnounceAndLeave(&store, other);
  EXPECT_THAT(Come(&store, Rank(0, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rank 0 listens on 127.0.0.1"), HasSubstr("rank 1"))));
}

TEST(RendezvousTest, AMalformedAnnouncementIsAnError) {
  cluster::MemoryStore store;
  for (const char* nonsense : {"gibberish", "tandem-rank=1\nworld_size=many", "2\n10.0.0.2\nhost\ntoken"}) {
    TANDEM_ASSERT_OK(store.Set("rank/1", nonsense));
    EXPECT_THAT(Come(&store, Rank(0, 2)), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   AllOf(HasSubstr("rank 1"), HasSubstr("version"))));
    TANDEM_ASSERT_OK(store.Delete("rank/0"));
  }
}

TEST(RendezvousTest, TheFailureOfOneRankReachesAll) {
  cluster::MemoryStore store;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      TANDEM_EXPECT_OK(AgreeOnStatus(&store, "first", rank, 3, absl::OkStatus(), deadline));
      const absl::Status mine = rank == 1 ? absl::UnimplementedError("no memory to share") : absl::OkStatus();
      EXPECT_THAT(AgreeOnStatus(&store, "second", rank, 3, mine, deadline),
                  StatusIs(absl::StatusCode::kUnimplemented, "rank 1: no memory to share"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(AgreeOnStatus(&store, "third", 1, 3, absl::OkStatus(), absl::Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("ranks 0 and 2 of 3")));
}

}  // namespace
}  // namespace tandem::collectives
