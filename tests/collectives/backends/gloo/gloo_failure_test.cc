// SPDX-License-Identifier: Apache-2.0
// Failures of a group over Gloo: every one ends on every rank, by its deadline, with an error that names the
// rank, and leaves the process alive.

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "collectives/backends/gloo/gloo_backend.h"
#include "tests/collectives/backends/backend_fixture.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(GlooConnectTest, ARankThatNeverComesIsNamed) {
  MemoryStore store;
  BackendOptions options = OptionsOf(&store, 0, {"a", "a", "a"});
  options.deadline = absl::Now() + absl::Milliseconds(100);
  EXPECT_THAT(GlooBackendFactory().make(options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("backend gloo of group 'test'"), HasSubstr("ranks 1 and 2 of 3"))));
}

TEST(GlooConnectTest, AnAddressThatIsNotThisMachinesIsNamed) {
  MemoryStore store;
  EXPECT_THAT(GlooBackendFactory().make(OptionsOf(&store, 0, {"a", "a"}, "192.0.2.7")).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("192.0.2.7")));
}

TEST(GlooSupportsTest, WhatGlooLacksIsRefusedWithTheBackendThatHasIt) {
  RunRanks(GlooBackendFactory(), 2, [](Backend& backend, int) {
    Operation operation;
    operation.kind = OpKind::kReduceScatter;
    operation.dtype = DType::kF32;
    EXPECT_THAT(backend.Supports(operation),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("backend gloo, reduce_scatter"), HasSubstr("backend tcp"))));
    EXPECT_TRUE(absl::IsUnimplemented(backend.Run(operation)));
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));  // the group remains usable
  });
}

TEST(GlooFailureTest, TheRankThatIsMissingInAnOperationIsNamedToAll) {
  absl::BlockingCounter failed(2);
  RunRanks(GlooBackendFactory(), 3, [&](Backend& backend, int rank) {
    TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
    std::vector<float> values(1024, 1.0f);
    if (rank == 1) failed.Wait();  // comes when the others have given up
    const absl::Status first = backend.Run(AllReduceOf(&values, 1, absl::Milliseconds(300)));
    EXPECT_THAT(first,
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr(absl::StrCat(rank == 1 ? "" : "all_reduce #1 (sum of f32 x 1024)",
                                                " on group 'test': rank 1 did not arrive within 300ms"))));
    // The group is broken from now on, for the same reason.
    EXPECT_EQ(backend.Run(MakeBarrier(2)), first);
    EXPECT_EQ(backend.RunPointToPoint(MakeSend(values, (rank + 1) % 3)).status(), first);
    if (rank != 1) failed.DecrementCount();
  });
}

TEST(GlooFailureTest, AnErrorDetectedLocallyLeavesTheGroupUsable) {
  RunRanks(GlooBackendFactory(), 2, [&](Backend& backend, int rank) {
    std::vector<float> values(4);
    Operation o = AllReduceOf(&values, 0);
    o.kind = OpKind::kBroadcast;
    o.root = 2;
    EXPECT_THAT(backend.Run(o), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not 2")));
    EXPECT_THAT(backend.RunPointToPoint(MakeSend(values, rank)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("other ranks")));
    EXPECT_THAT(backend.RunPointToPoint(MakeSend(values, 1 - rank, 0xffffffff)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keeps this tag for itself")));
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));
  });
}

TEST(GlooFailureTest, ARankThatHasLeftIsNamed) {
  MemoryStore store;
  absl::Notification left;
  std::thread leaver([&] {
    BackendOptions options = OptionsOf(&store, 1, {"a", "a"});
    options.timeout = absl::Milliseconds(100);
    auto backend = GlooBackendFactory().make(options);
    TANDEM_ASSERT_OK(backend);
    backend->reset();
    left.Notify();
  });
  auto backend = GlooBackendFactory().make(OptionsOf(&store, 0, {"a", "a"}));
  TANDEM_ASSERT_OK(backend);
  left.WaitForNotification();
  EXPECT_THAT((*backend)->Run(MakeBarrier(0)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 has left the group")));
  leaver.join();
}

TEST(GlooFailureTest, RanksThatLeaveTogetherDoNotWait) {
  absl::Time start;
  RunRanks(GlooBackendFactory(), 3, [&](Backend& backend, int rank) {
    TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
    if (rank == 0) start = absl::Now();
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
}

// Each rank reduces the count that is given for it; all must get an error that describes both sides.
void ExpectDisagreement(const std::vector<size_t>& counts) {
  RunRanks(GlooBackendFactory(), static_cast<int>(counts.size()), [&](Backend& backend, int rank) {
    std::vector<float> values(counts[rank]);
    const absl::Status status = backend.Run(AllReduceOf(&values, 0, absl::Seconds(20)));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr(absl::StrCat("(sum of f32 x ", counts.front(), ")")),
                                       HasSubstr(absl::StrCat("(sum of f32 x ", counts.back(), ")")))));
    EXPECT_EQ(backend.Run(MakeBarrier(1)), status);
  });
}

TEST(GlooDisagreementTest, DifferentSizesAreNamedOnAllRanks) {
  ExpectDisagreement({10, 11});
  ExpectDisagreement({100, 100, 5 << 20});
  ExpectDisagreement({0, 1});
}

TEST(GlooDisagreementTest, DifferentOperationsAreNamedOnAllRanks) {
  RunRanks(GlooBackendFactory(), 3, [&](Backend& backend, int rank) {
    std::vector<float> values(100);
    EXPECT_THAT(backend.Run(rank == 2 ? MakeBarrier(0) : AllReduceOf(&values, 0)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank 2 calls barrier #0"), HasSubstr("all_reduce #0"))));
  });
}

TEST(GlooDisagreementTest, PairsWithDifferentCountsAreNamedOnAllRanks) {
  RunRanks(GlooBackendFactory(), 3, [&](Backend& backend, int rank) {
    std::vector<float> in(300), out(300);
    std::vector<ConstPart> ins;
    std::vector<Part> outs;
    for (int s = 0; s < 3; ++s) {
      ins.push_back({in.data() + 100 * s, rank == 0 && s == 2 ? size_t{12} : size_t{10}});
      outs.push_back({out.data() + 100 * s, 10});
    }
    Operation o = MakeBarrier(0);
    o.kind = OpKind::kAllToAll;
    o.dtype = DType::kF32;
    o.even = false;
    o.ins = ins;
    o.outs = outs;
    EXPECT_THAT(backend.Run(o), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("rank 0 has 12 elements for rank 2, which expects 10")));
  });
}

TEST(GlooAbortTest, AnAbortFromAnotherThreadEndsTheOperationAndReachesThePeers) {
  absl::Notification aborted;
  absl::BlockingCounter running(3);
  RunRanks(GlooBackendFactory(), 3, [&](Backend& backend, int rank) {
    std::vector<float> values(4 << 20, 1.0f);
    TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
    running.DecrementCount();
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
        running.Wait();
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

TEST(GlooAbortTest, AnAbortInTheMiddleOfAnOperationEndsItOnAllRanks) {
  RunRanks(GlooBackendFactory(), 3, [&](Backend& backend, int rank) {
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

TEST(GlooAbortTest, AnAbortEndsMessagesThatWait) {
  RunRanks(GlooBackendFactory(), 2, [&](Backend& backend, int rank) {
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
