// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/call/function_executor.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "tests/rpc/remote/cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::remote {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kTestTimeout;

class FakeCall : public Invocation {
 public:
  FakeCall(std::string caller, size_t bytes = 0) : caller_(std::move(caller)), bytes_(bytes) {}
  RpcAgent& agent() const override { std::abort(); }
  const std::string& caller() const override { return caller_; }
  absl::string_view function() const override { return "fake"; }
  absl::Time deadline() const override { return deadline_time; }
  bool IsCancelled() const override { return cancelled; }
  std::stop_token stop_token() override { return {}; }
  size_t bytes() const override { return bytes_; }
  Reader encoded_arguments() override { return Reader("", {}); }
  Form form(std::type_index) const override { return Form::kEncoded; }
  ReferenceScope* response_references() override { return nullptr; }
  void Fail(absl::Status why) override {
    absl::MutexLock lock(&mutex);
    failure = std::move(why);
  }
  void FinishEncoded(Encoded) override {}
  void FinishObject(StoredValue) override {}
  bool AwaitFailure() {
    const auto failed = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex) { return !failure.ok(); };
    absl::MutexLock lock(&mutex);
    return mutex.AwaitWithTimeout(absl::Condition(&failed), kTestTimeout);
  }
  absl::Status Failure() {
    absl::MutexLock lock(&mutex);
    return failure;
  }

  absl::Time deadline_time = absl::InfiniteFuture();
  std::atomic<bool> cancelled{false};

 private:
  const std::string caller_;
  const size_t bytes_;
  absl::Mutex mutex;
  absl::Status failure ABSL_GUARDED_BY(mutex);
};

// Occupies the only thread of an executor until it is opened.
class Gate {
 public:
  explicit Gate(FunctionExecutor* executor) {
    executor->Submit(std::make_shared<FakeCall>("gate"), "", [this](const auto&) {
      begun_.Notify();
      open_.WaitForNotification();
    });
    begun_.WaitForNotification();
  }
  void Open() { open_.Notify(); }

 private:
  absl::Notification begun_, open_;
};

TEST(FunctionExecutorTest, CallersTakeTurnsHoweverManyCallsEachHas) {
  FunctionExecutor executor("worker/0", {.threads = 1});
  Gate gate(&executor);
  std::vector<std::string> order;
  absl::BlockingCounter done(9);
  const auto submit = [&](const std::string& caller) {
    executor.Submit(std::make_shared<FakeCall>(caller), "", [&](const auto& call) {
      order.push_back(call->caller());
      done.DecrementCount();
    });
  };
  for (int i = 0; i < 6; ++i) submit("greedy");
  submit("modest");
  submit("modest");
  submit("late");
  gate.Open();
  done.Wait();
  EXPECT_THAT(order, ElementsAre("greedy", "modest", "late", "greedy", "modest", "greedy", "greedy", "greedy",
                                 "greedy"));
}

TEST(FunctionExecutorTest, EveryLimitRefusesByName) {
  FunctionExecutor executor(
      "worker/0", {.threads = 1, .max_queued = 3, .max_queued_per_caller = 2, .max_queued_bytes = 100});
  Gate gate(&executor);
  const auto refusal = [&](const std::string& caller, size_t bytes) {
    auto call = std::make_shared<FakeCall>(caller, bytes);
    executor.Submit(call, "", [](const auto&) {});
    return call->Failure();
  };
  auto large = std::make_shared<FakeCall>("a", 1000);
  absl::Notification large_runs;
  executor.Submit(large, "", [&](const auto&) { large_runs.Notify(); });
  TANDEM_EXPECT_OK(large->Failure()) << "a single call may be large";
  EXPECT_THAT(refusal("a", 1), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_bytes")));
  gate.Open();
  ASSERT_TRUE(large_runs.WaitForNotificationWithTimeout(kTestTimeout));
  Gate again(&executor);
  TANDEM_EXPECT_OK(refusal("a", 1));
  TANDEM_EXPECT_OK(refusal("a", 1));
  EXPECT_THAT(refusal("a", 1),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_calls_per_caller")));
  TANDEM_EXPECT_OK(refusal("b", 1));
  EXPECT_THAT(refusal("c", 1),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_calls)")));
  again.Open();
}

TEST(FunctionExecutorTest, ACallThatIsLateOrCancelledIsNotRun) {
  FunctionExecutor executor("worker/0", {.threads = 1});
  Gate gate(&executor);
  auto late = std::make_shared<FakeCall>("a");
  late->deadline_time = absl::Now();
  auto cancelled = std::make_shared<FakeCall>("a");
  std::atomic<int> ran{0};
  for (const auto& call : {late, cancelled}) executor.Submit(call, "", [&](const auto&) { ++ran; });
  cancelled->cancelled = true;
  absl::Notification behind_them;
  executor.Submit(std::make_shared<FakeCall>("a"), "", [&](const auto&) { behind_them.Notify(); });
  gate.Open();
  ASSERT_TRUE(behind_them.WaitForNotificationWithTimeout(kTestTimeout));
  TANDEM_EXPECT_OK(executor.Stop(kTestTimeout));
  EXPECT_EQ(ran, 0);
  EXPECT_THAT(late->Failure(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("waited in the queue of worker/0")));
  EXPECT_THAT(cancelled->Failure(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("waited in the queue of worker/0")));
}

TEST(FunctionExecutorTest, ExclusiveGroupsDoNotHoldUpOthers) {
  FunctionExecutor executor("worker/0", {.threads = 2});
  absl::Notification open, second_done, other_done;
  const auto call = [] { return std::make_shared<FakeCall>("a"); };
  executor.Submit(call(), "group", [&](const auto&) { open.WaitForNotification(); });
  executor.Submit(call(), "group", [&](const auto&) { second_done.Notify(); });
  executor.Submit(call(), "", [&](const auto&) { other_done.Notify(); });
  EXPECT_TRUE(other_done.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_FALSE(second_done.HasBeenNotified());
  EXPECT_EQ(executor.queued(), 1);
  open.Notify();
  EXPECT_TRUE(second_done.WaitForNotificationWithTimeout(kTestTimeout));
}

TEST(FunctionExecutorTest, ACallIsNotLeftBehindOneThatTookTheOnlyIdleThread) {
  FunctionExecutor executor("worker/0", {.threads = 2});
  for (int round = 0; round < 200; ++round) {
    auto open = std::make_shared<absl::Notification>(), done = std::make_shared<absl::Notification>();
    executor.Submit(std::make_shared<FakeCall>("a"), "",
                    [open](const auto&) { open->WaitForNotification(); });
    executor.Submit(std::make_shared<FakeCall>("a"), "", [done](const auto&) { done->Notify(); });
    ASSERT_TRUE(done->WaitForNotificationWithTimeout(kTestTimeout));
    open->Notify();
    EXPECT_EQ(executor.queued(), 0);
  }
}

TEST(FunctionExecutorTest, StoppingFailsWhatWaits) {
  auto waiting = std::make_shared<FakeCall>("a");
  auto exclusive = std::make_shared<FakeCall>("b");
  FunctionExecutor executor("worker/0", {.threads = 1});
  Gate gate(&executor);
  executor.Submit(waiting, "", [](const auto&) {});
  executor.Submit(exclusive, "group", [](const auto&) {});
  std::thread stop([&] { TANDEM_EXPECT_OK(executor.Stop(kTestTimeout)); });
  ASSERT_TRUE(waiting->AwaitFailure() && exclusive->AwaitFailure());
  gate.Open();
  stop.join();
  EXPECT_THAT(waiting->Failure(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(FunctionExecutorTest, NamesWhatStillRunsWhenItsTimeIsOver) {
  FunctionExecutor executor("worker/0", {.threads = 2});
  absl::Notification posted, open;
  executor.Post("a batch", [&] {
    posted.Notify();
    open.WaitForNotification();
  });
  Gate gate(&executor);
  posted.WaitForNotification();
  EXPECT_THAT(
      executor.Stop(absl::Milliseconds(20)),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               ::testing::ContainsRegex("still run 20ms after they were: (a batch|fake of gate) \\(for .*, "
                                        "(a batch|fake of gate) \\(for ")));
  open.Notify();
  gate.Open();
  TANDEM_EXPECT_OK(executor.Stop(kTestTimeout));
}

void RunForEver() {
  absl::Notification begun, never;
  FunctionExecutor executor("worker/0", {.threads = 1, .end_timeout = absl::Milliseconds(10)});
  executor.Submit(std::make_shared<FakeCall>("gate"), "", [&](const auto&) {
    begun.Notify();
    never.WaitForNotification();
  });
  begun.WaitForNotification();
}

TEST(FunctionExecutorDeathTest, WhatNeverReturnsIsTheProcessesLastWordRatherThanAHang) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(RunForEver(),
               "worker/0: functions that do not look .* still run 10ms after they were: fake of gate");
}

}  // namespace
}  // namespace tandem::rpc::remote
