// SPDX-License-Identifier: Apache-2.0
// Failures of a group across hosts: an error on one host is reported on all, with the rank numbers and
// operation names of the group's users.

#include <algorithm>
#include <barrier>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "collectives/backends/hierarchical/hierarchical_backend.h"
#include "tests/collectives/backends/backend_fixture.h"
#include "tests/collectives/backends/hierarchical/hosts.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// All ranks but `missing` call an all-reduce; all of them, and `missing` when it comes, must get an error
// that names it.
void ExpectMissing(const Hosts& hosts, int missing) {
  SCOPED_TRACE(missing);
  absl::BlockingCounter failed(static_cast<int>(hosts.size()) - 1);
  // The time-out of the first rank to arrive runs while others leave the barrier.
  std::barrier<> all_have_left(static_cast<ptrdiff_t>(hosts.size()));
  RunRanks(Factory(), hosts, [&](Backend& backend, int rank) {
    std::vector<float> values(1024, 1.0f);
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));
    all_have_left.arrive_and_wait();
    if (rank == missing) failed.Wait();
    const absl::Time start = absl::Now();
    const absl::Status first = backend.Run(AllReduceOf(&values, 1, absl::Seconds(3)));
    EXPECT_THAT(first, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                AllOf(HasSubstr("all_reduce #1 (sum of f32 x 1024) on group 'test': "),
                                      HasSubstr(absl::StrCat("rank ", missing)), HasSubstr("within 3s"))));
    EXPECT_LT(absl::Now() - start, absl::Seconds(30));
    EXPECT_EQ(backend.Run(MakeBarrier(2)), first);
    EXPECT_EQ(backend.RunPointToPoint(MakeSend(values, (rank + 1) % static_cast<int>(hosts.size()))).status(),
              first);
    if (rank != missing) failed.DecrementCount();
  });
}

TEST(HierarchicalFailureTest, TheRankThatIsMissingIsNamedOnAllHosts) {
  // The groups run concurrently because they spend their time waiting.
  std::vector<std::thread> groups;
  groups.emplace_back([] { ExpectMissing({"a", "a", "b", "b"}, 3); });
  groups.emplace_back([] { ExpectMissing({"a", "a", "b", "b"}, 2); });  // the leader of its host
  groups.emplace_back([] { ExpectMissing({"a", "b", "a", "b", "b"}, 4); });
  groups.emplace_back([] { ExpectMissing({"a", "a", "a", "b"}, 3); });  // alone on its host
  for (std::thread& group : groups) group.join();
}

// Each rank runs what `operation` returns for it; all must get an error that describes both sides.
void ExpectDisagreement(const Hosts& hosts,
                        const std::function<Operation(int, std::vector<char>*)>& operation,
                        const std::string& one, const std::string& other) {
  RunRanks(Factory(), hosts, [&](Backend& backend, int rank) {
    std::vector<char> memory(1 << 20);
    Operation o = operation(rank, &memory);
    o.timeout = absl::Seconds(20);
    const absl::Time start = absl::Now();
    const absl::Status status = backend.Run(o);
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(one), HasSubstr(other))));
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    EXPECT_EQ(backend.Run(MakeBarrier(1)), status);
  });
}

Operation InPlace(OpKind kind, size_t count, std::vector<char>* memory) {
  Operation o;
  o.kind = kind;
  o.dtype = DType::kF32;
  o.in = {memory->data(), count};
  o.out = {memory->data(), count};
  return o;
}

TEST(HierarchicalDisagreementTest, InsideAHostBothSidesAreNamedOnAllHosts) {
  ExpectDisagreement(
      {"a", "a", "b", "b"},
      [](int rank, std::vector<char>* memory) {
        return InPlace(OpKind::kAllReduce, rank == 3 ? 11 : 10, memory);
      },
      "rank 2 calls all_reduce #0 (sum of f32 x 10)", "rank 3 calls all_reduce #0 (sum of f32 x 11)");
}

TEST(HierarchicalDisagreementTest, BetweenHostsBothSidesAreNamedOnAllRanks) {
  ExpectDisagreement(
      {"a", "b", "a", "b"},
      [](int rank, std::vector<char>* memory) {
        return rank % 2 == 0 ? MakeBarrier(0) : InPlace(OpKind::kAllReduce, 1000, memory);
      },
      "rank 0 calls barrier #0", "rank 1 calls all_reduce #0 (sum of f32 x 1000)");
}

TEST(HierarchicalDisagreementTest, RootsOnTheSameHostAreToldApart) {
  ExpectDisagreement(
      {"a", "a", "b", "b"},
      [](int rank, std::vector<char>* memory) {
        Operation o = InPlace(OpKind::kReduce, 100, memory);
        o.root = rank < 2 ? 0 : 1;
        return o;
      },
      "rank 0 calls reduce #0 (sum of f32 x 100 to rank 0)",
      "rank 2 calls reduce #0 (sum of f32 x 100 to rank 1)");
}

TEST(HierarchicalDisagreementTest, AStraightCallAgainstALayeredOneIsNamed) {
  ExpectDisagreement(
      {"a", "a", "b", "b"},
      [](int rank, std::vector<char>* memory) {
        Operation o = InPlace(rank < 2 ? OpKind::kAllReduce : OpKind::kGather, 100, memory);
        o.root = rank < 2 ? 0 : 1;  // no rank is its own root, so that no parts are needed
        return o;
      },
      "rank 0 calls all_reduce #0", "rank 2 calls gather #0 (f32 x 100 to rank 1)");
}

TEST(HierarchicalDisagreementTest, PairsWithDifferentCountsAreNamed) {
  RunRanks(Factory(), Hosts{"a", "a", "b"},
           [&](Backend& backend, int rank) { CallAllToAllWithPairsThatDiffer(backend, rank); });
}

TEST(HierarchicalFailureTest, AnErrorDetectedLocallyLeavesTheGroupUsable) {
  RunRanks(Factory(), Hosts{"a", "a", "b"}, [&](Backend& backend, int rank) {
    std::vector<float> values(4);
    Operation o = AllReduceOf(&values, 0);
    o.kind = OpKind::kBroadcast;
    o.root = 3;
    EXPECT_THAT(backend.Run(o), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not 3")));
    EXPECT_THAT(backend.RunPointToPoint(MakeSend(values, rank)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument));
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));
  });
}

// Rank `who` aborts while the others wait for rank `absent`; all must get the reason.
void ExpectAbort(const Hosts& hosts, int who, int absent) {
  SCOPED_TRACE(who);
  absl::BlockingCounter ended(static_cast<int>(hosts.size()) - 1);
  // A rank may leave the barrier of the group while others are still in it, which an abort would end.
  std::barrier<> all_have_left(static_cast<ptrdiff_t>(hosts.size()));
  RunRanks(Factory(), hosts, [&](Backend& backend, int rank) {
    std::vector<float> values(100000, 1.0f);
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));
    all_have_left.arrive_and_wait();
    if (rank == absent) return ended.Wait();
    std::thread other;
    if (rank == who) other = std::thread([&] { backend.Abort(absl::CancelledError("no more of it")); });
    const absl::Time start = absl::Now();
    const absl::Status status = backend.Run(AllReduceOf(&values, 1, absl::Seconds(20)));
    EXPECT_THAT(status.message(), HasSubstr("no more of it"));
    if (rank == who) {
      EXPECT_EQ(status, absl::CancelledError("no more of it"));
    } else {
      EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("rank ", who)));
    }
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    EXPECT_EQ(backend.Run(MakeBarrier(2)), status);
    if (other.joinable()) other.join();
    ended.DecrementCount();
  });
}

TEST(HierarchicalAbortTest, AnAbortOnOneHostEndsAllHosts) {
  ExpectAbort({"a", "a", "b", "b"}, 3, 0);
  ExpectAbort({"a", "a", "b", "b"}, 1, 2);
  ExpectAbort({"a", "a", "a", "b"}, 0, 3);
}

TEST(HierarchicalFailureTest, RanksThatLeaveTogetherDoNotWait) {
  // A busy machine may delay a group, but not each of ten.
  absl::Duration shortest = absl::InfiniteDuration();
  for (int i = 0; i < 10 && shortest > absl::Seconds(2); ++i) {
    absl::Time start;
    RunRanks(Factory(), Hosts{"a", "a", "b", "b"}, [&](Backend& backend, int rank) {
      TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
      if (rank == 0) start = absl::Now();
    });
    shortest = std::min(shortest, absl::Now() - start);
  }
  EXPECT_LT(shortest, absl::Seconds(2));
}

TEST(HierarchicalConnectTest, ARankThatNeverComesIsNamedByTheGroupsNumbers) {
  cluster::MemoryStore store;
  std::vector<std::thread> ranks;
  for (const int rank : {0, 1, 2}) {
    ranks.emplace_back([&, rank] {
      BackendOptions options = OptionsOf(&store, rank, {"a", "a", "b", "b"});
      options.deadline = absl::Now() + absl::Seconds(2);
      EXPECT_THAT(
          Factory().make(options).status(),
          StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("backend shm+tcp of group 'test'"),
                                                              HasSubstr(rank == 2 ? "rank 3" : "rank"))));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace tandem::collectives
