// SPDX-License-Identifier: Apache-2.0
// The order of a group's operations, and how they end: queue, callbacks, abort, destroy.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "tests/collectives/group/fake_backend.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const AllReduceOptions kAsync = {.async = true};

class GroupOrderTest : public ::testing::Test {
 protected:
  Work Reduce(size_t count, const AllReduceOptions& options = {}) {
    return group_->AllReduce(absl::MakeSpan(values_).subspan(0, count), options);
  }

  std::shared_ptr<Script> script_ = std::make_shared<Script>();
  std::vector<float> values_ = std::vector<float>(1000);
  std::unique_ptr<ProcessGroup> group_ = FakeGroup(script_);
};

TEST_F(GroupOrderTest, AsynchronousOperationsRunInTheOrderIssued) {
  script_->CloseGate();
  std::vector<Work> works;
  for (size_t i = 1; i <= 5; ++i) works.push_back(Reduce(i, kAsync));
  for (const Work& work : works) {
    EXPECT_FALSE(work.IsCompleted());
    EXPECT_THAT(work.status(), StatusIs(absl::StatusCode::kUnavailable));
  }
  script_->OpenGate();
  for (const Work& work : works) TANDEM_EXPECT_OK(work.Wait());
  EXPECT_THAT(script_->begun(),
              ElementsAre("all_reduce #0 (sum of f32 x 1)", "all_reduce #1 (sum of f32 x 2)",
                          "all_reduce #2 (sum of f32 x 3)", "all_reduce #3 (sum of f32 x 4)",
                          "all_reduce #4 (sum of f32 x 5)"));
}

TEST_F(GroupOrderTest, ASynchronousCallWaitsBehindQueuedOnes) {
  script_->CloseGate();
  const Work first = Reduce(1, kAsync), second = Reduce(2, kAsync);
  script_->AwaitBegun(1);
  std::thread opener([&] { script_->OpenGate(); });
  TANDEM_EXPECT_OK(group_->Barrier().status());  // has run when the call returns
  EXPECT_THAT(script_->begun(),
              ElementsAre("all_reduce #0 (sum of f32 x 1)", "all_reduce #1 (sum of f32 x 2)", "barrier #2"));
  EXPECT_TRUE(first.IsCompleted() || first.Wait().ok());
  opener.join();
}

TEST_F(GroupOrderTest, CallsOfManyThreadsRunOneAtATimeAndEachOnce) {
  constexpr int kThreads = 8, kCalls = 300;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<float> mine(1);
      std::vector<Work> works;
      for (int i = 0; i < kCalls; ++i) {
        works.push_back(group_->AllReduce(absl::MakeSpan(mine), {.async = (i + t) % 3 == 0}));
      }
      for (const Work& work : works) TANDEM_EXPECT_OK(work.Wait());
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The fake objects to two operations at a time; the numbers have no gap and no duplicate.
  const std::vector<std::string> begun = script_->begun();
  ASSERT_THAT(begun, SizeIs(kThreads * kCalls));
  for (size_t i = 0; i < begun.size(); ++i) {
    EXPECT_EQ(begun[i], absl::StrCat("all_reduce #", i, " (sum of f32 x 1)"));
  }
}

TEST_F(GroupOrderTest, WaitEndsAtItsTimeOutWhileTheOperationGoesOn) {
  script_->CloseGate();
  const Work work = Reduce(1, kAsync);
  EXPECT_THAT(work.Wait(absl::Milliseconds(5)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("still runs after 5ms")));
  script_->OpenGate();
  TANDEM_EXPECT_OK(work.Wait());
}

TEST_F(GroupOrderTest, CallbacksRunOnceWhenCompletedOrAtOnceThereafter) {
  script_->CloseGate();
  const Work work = Reduce(1, kAsync);
  absl::Notification called;
  absl::Status seen = absl::UnknownError("");
  work.Then([&](const absl::Status& status) {
    seen = status;
    called.Notify();
  });
  EXPECT_FALSE(called.HasBeenNotified());
  script_->OpenGate();
  ASSERT_TRUE(called.WaitForNotificationWithTimeout(absl::Seconds(60)));
  TANDEM_EXPECT_OK(seen);
  int calls = 0;
  work.Then([&](const absl::Status& status) { calls += status.ok(); });
  Reduce(1).Then([&](const absl::Status& status) { calls += status.ok(); });
  EXPECT_EQ(calls, 2);
}

TEST_F(GroupOrderTest, ACallbackMayIssueMore) {
  absl::Notification done;
  Reduce(1, kAsync).Then([&](const absl::Status&) {
    Reduce(2, kAsync).Then([&](const absl::Status& status) {
      TANDEM_EXPECT_OK(status);
      done.Notify();
    });
  });
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

TEST_F(GroupOrderTest, AfterAFailureEverythingReturnsTheFirstError) {
  script_->CloseGate();
  script_->FailWith(absl::UnavailableError("rank 1 was lost"));
  const Work failing = Reduce(1, kAsync), queued = Reduce(2, kAsync);
  std::thread waiting(
      [&] { EXPECT_THAT(group_->Barrier().status(), StatusIs(absl::StatusCode::kUnavailable)); });
  script_->AwaitBegun(1);
  script_->OpenGate();
  const absl::Status lost = absl::UnavailableError("rank 1 was lost");
  EXPECT_EQ(failing.Wait(), lost);
  EXPECT_EQ(group_->error(), lost);  // as soon as the first work says so
  EXPECT_FALSE(group_->is_initialized());
  EXPECT_EQ(queued.Wait(), lost);
  waiting.join();
  script_->FailWith(absl::OkStatus());
  EXPECT_EQ(group_->Barrier().status(), lost);
  EXPECT_EQ(Reduce(3, kAsync).Wait(), lost);
  EXPECT_EQ(group_->AllGatherBytes("x").status(), lost);
  EXPECT_EQ(group_->NewGroup({0}).status(), lost);
  EXPECT_THAT(script_->begun(), SizeIs(1));
}

TEST_F(GroupOrderTest, AbortEndsWhatRunsAndWhatIsQueued) {
  script_->CloseGate();
  const Work running = Reduce(1, kAsync), queued = Reduce(2, kAsync);
  script_->AwaitBegun(1);
  absl::Status waited;
  std::thread waiting([&] { waited = group_->Barrier().status(); });
  group_->Abort("the user gave up");
  waiting.join();
  for (const absl::Status& status : {running.Wait(), queued.Wait(), waited, group_->error()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted,
                                 "group 'default' was aborted by rank 0: the user gave up"));
  }
  EXPECT_FALSE(group_->is_initialized());
  group_->Abort("again");
  EXPECT_THAT(group_->error(), StatusIs(absl::StatusCode::kAborted, HasSubstr("the user gave up")));
}

TEST_F(GroupOrderTest, AbortEndsASynchronousOperationOfAnotherThread) {
  script_->CloseGate();
  std::thread aborter([&] {
    script_->AwaitBegun(1);
    group_->Abort("enough");
  });
  EXPECT_THAT(Reduce(1).status(), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
  aborter.join();
}

TEST_F(GroupOrderTest, DestroyWaitsForWhatIsQueued) {
  script_->CloseGate();
  const Work first = Reduce(1, kAsync), second = Reduce(2, kAsync);
  script_->AwaitBegun(1);
  std::thread opener([&] { script_->OpenGate(); });
  group_->Destroy();
  opener.join();
  ASSERT_TRUE(first.IsCompleted() && second.IsCompleted());
  TANDEM_EXPECT_OK(first.status());
  TANDEM_EXPECT_OK(second.status());
  EXPECT_FALSE(group_->is_initialized());
  EXPECT_THAT(group_->Barrier().status(),
              StatusIs(absl::StatusCode::kAborted, "group 'default' was destroyed"));
  EXPECT_THAT(Reduce(1, kAsync).Wait(), StatusIs(absl::StatusCode::kAborted));
  group_->Destroy();
  group_->Abort("too late");
  EXPECT_THAT(group_->error(), StatusIs(absl::StatusCode::kAborted, HasSubstr("destroyed")));
}

TEST_F(GroupOrderTest, WorksOutliveTheirGroup) {
  const Work work = Reduce(1, kAsync);
  group_.reset();
  TANDEM_EXPECT_OK(work.Wait());
}

TEST_F(GroupOrderTest, DestroyFromOneThreadEndsCallsOfOthers) {
  absl::BlockingCounter started(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<float> mine(1);
      started.DecrementCount();
      absl::Status status;
      while (status.ok()) status = group_->AllReduce(absl::MakeSpan(mine), {.async = t % 2 == 0}).Wait();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted));
    });
  }
  started.Wait();
  group_->Destroy();
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GroupOrderTest, AnOperationsOwnTimeOutGoesBeforeTheGroups) {
  script_->CloseGate();
  EXPECT_THAT(Reduce(1, {.timeout = absl::Milliseconds(5)}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(GroupOrderTest, AnUnimplementedOperationLeavesTheGroupUsable) {
  EXPECT_THAT(Reduce(1, {.op = ReduceOp::kBitXor}).status(),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("all_reduce on group 'default'"), HasSubstr("bxor"))));
  TANDEM_EXPECT_OK(group_->Barrier().status());
  EXPECT_THAT(script_->begun(), ElementsAre("barrier #0"));  // no number was taken
}

TEST_F(GroupOrderTest, CoalescedTensorsShareOneOperationWhereTheyAreSmall) {
  std::vector<float> a(3), b(5), large(100000);
  std::vector<double> c(2), d(1);
  TANDEM_EXPECT_OK(group_
                       ->AllReduceCoalesced({absl::MakeSpan(a), absl::MakeSpan(c), absl::MakeSpan(large),
                                             absl::MakeSpan(b), absl::MakeSpan(d)},
                                            kAsync)
                       .Wait());
  EXPECT_THAT(script_->begun(),
              ElementsAre("all_reduce #0 (sum of f32 x 8)", "all_reduce #1 (sum of f64 x 3)",
                          "all_reduce #2 (sum of f32 x 100000)"));
  TANDEM_EXPECT_OK(group_->AllReduceCoalesced({}).Wait());
}

}  // namespace
}  // namespace tandem::collectives
