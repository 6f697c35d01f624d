// SPDX-License-Identifier: Apache-2.0
// Failures of a group over a network: every one ends on every rank, by its deadline, with an error that names
// the rank, and leaves the process alive.

#include <algorithm>
#include <array>
#include <barrier>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/collectives/backends/backend_fixture.h"
#include "tests/collectives/backends/network_backends.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class NetworkConnectTest : public NetworkBackendTest {};
TANDEM_TEST_ON_NETWORK_BACKENDS(NetworkConnectTest);
class NetworkFailureTest : public NetworkBackendTest {};
TANDEM_TEST_ON_NETWORK_BACKENDS(NetworkFailureTest);
class NetworkDisagreementTest : public NetworkBackendTest {};
TANDEM_TEST_ON_NETWORK_BACKENDS(NetworkDisagreementTest);
class NetworkAbortTest : public NetworkBackendTest {};
TANDEM_TEST_ON_NETWORK_BACKENDS(NetworkAbortTest);

TEST_P(NetworkConnectTest, ARankThatNeverComesIsNamed) {
  cluster::MemoryStore store;
  BackendOptions options = OptionsOf(&store, 0, {"a", "a", "a"});
  options.deadline = absl::Now() + absl::Milliseconds(100);
  EXPECT_THAT(Factory().make(options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr(absl::StrCat("backend ", GetParam(), " of group 'test'")),
                             HasSubstr("ranks 1 and 2 of 3 did not come"))));
}

TEST_P(NetworkConnectTest, AnAddressThatIsNotThisMachinesIsNamed) {
  cluster::MemoryStore store;
  auto with = [&](const std::string& address) {
    return Factory().make(OptionsOf(&store, 0, {"a", "a"}, address)).status();
  };
  EXPECT_THAT(with("example.org"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'example.org'")));
  EXPECT_THAT(with("192.0.2.7"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("192.0.2.7")));
}

TEST_P(NetworkFailureTest, TheRankThatIsMissingInAnOperationIsNamedToAll) {
  absl::BlockingCounter failed(2);
  std::barrier<> all_have_left(
      3);  // the time-out of the first rank runs while others leave the group's barrier
  RunRanks(Factory(), 3, [&](Backend& backend, int rank) {
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));
    std::vector<float> values(1024, 1.0f);
    all_have_left.arrive_and_wait();
    if (rank == 1) failed.Wait();  // comes when the others have given up
    const absl::Status first = backend.Run(AllReduceOf(&values, 1, absl::Seconds(2)));
    // Over gloo, the late rank finds the group broken before it has begun an operation of its own.
    const bool names_operation = GetParam() != "gloo" || rank != 1;
    EXPECT_THAT(first,
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr(absl::StrCat(names_operation ? "all_reduce #1 (sum of f32 x 1024)" : "",
                                                " on group 'test': rank 1 did not arrive within 2s"))));
    // The group is broken from now on, for the same reason.
    EXPECT_EQ(backend.Run(MakeBarrier(2)), first);
    EXPECT_EQ(backend.RunPointToPoint(MakeSend(values, (rank + 1) % 3)).status(), first);
    if (rank != 1) failed.DecrementCount();
  });
}

TEST_P(NetworkFailureTest, ARankThatIsMissingInALargeOperationIsNamedToAll) {
  absl::BlockingCounter failed(2);
  std::barrier<> all_here(3);
  RunRanks(Factory(), 3, [&](Backend& backend, int rank) {
    std::vector<float> values(4 << 20, 1.0f);
    all_here.arrive_and_wait();
    if (rank == 2) return failed.Wait();
    EXPECT_THAT(backend.Run(AllReduceOf(&values, 0, absl::Seconds(2))),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 2 did not arrive")));
    failed.DecrementCount();
  });
}

TEST_P(NetworkFailureTest, AnErrorDetectedLocallyLeavesTheGroupUsable) {
  RunRanks(Factory(), 2, [&](Backend& backend, int rank) {
    std::vector<float> values(4);
    Operation o = AllReduceOf(&values, 0);
    o.kind = OpKind::kBroadcast;
    o.root = 2;
    EXPECT_THAT(backend.Run(o), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not 2")));
    EXPECT_THAT(backend.RunPointToPoint(MakeSend(values, rank)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("other ranks")));
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));
  });
}

TEST_P(NetworkFailureTest, ARankThatHasLeftIsNamed) {
  cluster::MemoryStore store;
  absl::Notification made, left;
  std::thread leaver([&] {
    BackendOptions options = OptionsOf(&store, 1, {"a", "a"});
    options.timeout = absl::Milliseconds(100);
    auto backend = Factory().make(options);
    TANDEM_EXPECT_OK(backend);
    made.WaitForNotification();  // rank 0 may still be connecting
    if (backend.ok()) backend->reset();
    left.Notify();
  });
  auto backend = Factory().make(OptionsOf(&store, 0, {"a", "a"}));
  made.Notify();
  TANDEM_EXPECT_OK(backend);
  left.WaitForNotification();
  if (!backend.ok()) return leaver.join();
  EXPECT_THAT((*backend)->Run(MakeBarrier(0)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 has left the group")));
  leaver.join();
}

TEST_P(NetworkFailureTest, RanksThatLeaveTogetherDoNotWait) {
  // A busy machine may delay a group, but not each of ten.
  absl::Duration shortest = absl::InfiniteDuration();
  for (int i = 0; i < 10 && shortest > absl::Seconds(1); ++i) {
    absl::Time start;
    RunRanks(Factory(), 3, [&](Backend& backend, int rank) {
      TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
      if (rank == 0) start = absl::Now();
    });
    shortest = std::min(shortest, absl::Now() - start);
  }
  EXPECT_LT(shortest, absl::Seconds(1));
}

// Each rank runs what `operation` returns for it; all must get an error that describes both sides.
void ExpectDisagreement(const BackendFactory& factory, int world,
                        const std::function<Operation(int, std::vector<char>*)>& operation,
                        const std::string& one, const std::string& other) {
  RunRanks(factory, world, [&](Backend& backend, int rank) {
    std::vector<char> memory(32 << 20);
    Operation o = operation(rank, &memory);
    o.timeout = absl::Seconds(20);
    const absl::Status status = backend.Run(o);
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(one), HasSubstr(other))));
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

TEST_P(NetworkDisagreementTest, DifferentSizesAreNamedOnAllRanks) {
  // Small against small, small against large, large against larger.
  const std::array<size_t, 2> kSizes[] = {{10, 11}, {0, 1}, {100, 5 << 20}, {3 << 20, 4 << 20}};
  for (const auto& sizes : kSizes) {
    for (int world : {2, 3}) {
      ExpectDisagreement(
          Factory(), world,
          [&](int rank, std::vector<char>* memory) {
            return InPlace(OpKind::kAllReduce, sizes[rank == 1], memory);
          },
          absl::StrCat("all_reduce #0 (sum of f32 x ", sizes[0], ")"),
          absl::StrCat("rank 1 calls all_reduce #0 (sum of f32 x ", sizes[1], ")"));
    }
  }
}

TEST_P(NetworkDisagreementTest, DifferentOperationsAreNamedOnAllRanks) {
  ExpectDisagreement(
      Factory(), 3,
      [](int rank, std::vector<char>* memory) {
        return rank == 2 ? MakeBarrier(0) : InPlace(OpKind::kAllReduce, 1 << 20, memory);
      },
      "rank 2 calls barrier #0", "all_reduce #0 (sum of f32 x 1048576)");
}

TEST_P(NetworkDisagreementTest, AMissingCallIsNamedByItsNumber) {
  ExpectDisagreement(
      Factory(), 2,
      [](int rank, std::vector<char>* memory) {
        Operation o = InPlace(OpKind::kAllReduce, 10, memory);
        o.sequence = 7 + rank;
        return o;
      },
      "all_reduce #7", "all_reduce #8");
}

TEST_P(NetworkDisagreementTest, DifferentTypesRootsAndReductionsAreNamed) {
  auto disagree = [this](auto change, const std::string& one, const std::string& other) {
    ExpectDisagreement(
        Factory(), 2,
        [&](int rank, std::vector<char>* memory) {
          Operation o = InPlace(OpKind::kReduce, 8, memory);
          change(rank, &o);
          return o;
        },
        one, other);
  };
  disagree([](int rank, Operation* o) { o->dtype = rank == 0 ? DType::kF64 : DType::kI64; }, "f64 x 8",
           "i64 x 8");
  disagree([](int rank, Operation* o) { o->root = rank; }, "to rank 0", "to rank 1");
  disagree([](int rank, Operation* o) { o->reduce = rank == 0 ? ReduceOp::kMin : ReduceOp::kMax; }, "min of",
           "max of");
}

TEST_P(NetworkDisagreementTest, PairsWithDifferentCountsAreNamedOnAllRanks) {
  RunRanks(Factory(), 3, [&](Backend& backend, int rank) { CallAllToAllWithPairsThatDiffer(backend, rank); });
}

TEST_P(NetworkAbortTest, AnAbortFromAnotherThreadEndsTheOperationAndReachesThePeers) {
  absl::Notification aborted;
  std::barrier<> all_have_left(3);  // a rank still in the group's barrier would be ended there
  RunRanks(Factory(), 3, [&](Backend& backend, int rank) {
    std::vector<float> values(4 << 20, 1.0f);
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));
    all_have_left.arrive_and_wait();
    const absl::Time start = absl::Now();
    if (rank == 2) {  // takes no part
      aborted.WaitForNotification();
      EXPECT_THAT(backend.Run(AllReduceOf(&values, 1)),
                  StatusIs(absl::StatusCode::kCancelled, HasSubstr("no more of it")));
      return;
    }
    std::thread other;
    if (rank == 0) {
      other = std::thread([&] {
        backend.Abort(absl::CancelledError("no more of it"));
        aborted.Notify();
      });
    }
    const absl::Status status = backend.Run(AllReduceOf(&values, 1));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("no more of it")));
    if (rank != 0) {
      EXPECT_THAT(status.message(), HasSubstr("rank 0 of group 'test' aborted"));
    }
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    if (other.joinable()) other.join();
    EXPECT_EQ(backend.Run(MakeBarrier(2)), status);
    backend.Abort(absl::AbortedError("again"));
    EXPECT_EQ(backend.Run(MakeBarrier(2)), status);
  });
}

TEST_P(NetworkAbortTest, AnAbortInTheMiddleOfAnOperationEndsItOnAllRanks) {
  RunRanks(Factory(), 3, [&](Backend& backend, int rank) {
    std::vector<float> values(1 << 20, 1.0f);
    absl::Notification begun;
    std::thread other;
    if (rank == 1) {
      other = std::thread([&] {
        begun.WaitForNotification();
        backend.Abort(absl::CancelledError("enough"));
      });
    }
    absl::Status status;
    for (uint64_t round = 0; status.ok(); ++round) {
      status = backend.Run(AllReduceOf(&values, round, absl::Seconds(20)));
      if (round == 3) begun.Notify();
    }
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
    if (other.joinable()) other.join();
  });
}

TEST_P(NetworkAbortTest, ACallbackMayAbortWhileAnotherThreadBreaksTheGroup) {
  std::barrier<> all_made(2);  // an abort would fail a rank that is still connecting
  RunRanks(Factory(), 2, [&](Backend& backend, int rank) {
    all_made.arrive_and_wait();
    std::vector<float> message(10, 1.0f), values(1 << 20);
    absl::Notification aborted;
    if (rank == 0) {
      (void)backend.RunPointToPoint(MakeSend(message, 1));  // may be too late
    } else {
      backend.StartPointToPoint(RecvOf(&message, 0), [&](absl::StatusOr<int>) {
        backend.Abort(absl::CancelledError("from a callback"));
        aborted.Notify();
      });
      backend.Abort(absl::CancelledError("from a thread"));
      ASSERT_TRUE(aborted.WaitForNotificationWithTimeout(absl::Seconds(20)));
    }
    EXPECT_THAT(backend.Run(AllReduceOf(&values, 0)).message(), HasSubstr("from a "));
  });
}

TEST_P(NetworkAbortTest, AnAbortEndsMessagesThatWait) {
  std::barrier<> all_made(2);  // an abort would fail a rank that is still connecting
  RunRanks(Factory(), 2, [&](Backend& backend, int rank) {
    all_made.arrive_and_wait();
    std::vector<float> values(1 << 20);
    absl::Notification done;
    absl::Status status;
    backend.StartPointToPoint(rank == 0 ? RecvOf(&values, 1, 7) : RecvOf(&values, kAnySource, 9),
                              [&](absl::StatusOr<int> source) {
                                status = source.status();
                                done.Notify();
                              });
    if (rank == 0) backend.Abort(absl::AbortedError("enough"));
    ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20)));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
  });
}

}  // namespace
}  // namespace tandem::collectives
