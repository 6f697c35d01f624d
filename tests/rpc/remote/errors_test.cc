// SPDX-License-Identifier: Apache-2.0
// Tests each line of the table of errors in docs/rpc.md, except those that need a process to crash
// (process/crash_test.cc) and those about size limits (large_test.cc).

#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rpc/remote/rpc_agent.h"
#include "tests/rpc/remote/cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/watched.h"

namespace tandem::rpc::remote {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::Watched;
using ::testing::AllOf;
using testing::Cluster;
using ::testing::HasSubstr;
using testing::kTestTimeout;

constexpr Function<int64_t(int64_t)> kPlain{"plain"};
constexpr Function<int32_t(int32_t)> kPlainAsSomebodyElseHasIt{"plain"};
constexpr Function<void(int64_t)> kThrow{"throw"};
constexpr Function<void()> kWait{"wait"};
constexpr Function<void()> kWaitInline{"wait_inline"};
constexpr Function<int64_t(Tensor)> kSize{"size"};
constexpr Function<void()> kMissing{"missing"};

class RemoteErrorsTest : public ::testing::TestWithParam<std::string> {
 protected:
  RemoteErrorsTest() : cluster(GetParam()) {}
  ~RemoteErrorsTest() override { released = true; }

  Functions DefaultFunctions() {
    Functions functions;
    functions.Add(kPlain, [](int64_t value) { return value; });
    functions.Add(kThrow, [](int64_t what) {
      if (what == 0) throw std::runtime_error("out of luck");
      if (what == 1) throw 17;
      throw std::bad_alloc();
    });
    functions.Add(kWait, [this](const Context& context) {
      ++running;
      const std::stop_callback on_stop(context.stop_token(), [this] { released.LookAgain(); });
      released.Await([&](bool now) { return now || context.IsCancelled(); });
      if (context.IsCancelled()) ++saw_cancellation;
    });
    functions.Add(kSize, [](const Tensor& tensor) { return static_cast<int64_t>(tensor.bytes()); });
    return functions;
  }

  Watched<int> running, saw_cancellation;
  Watched<bool> released;
  Cluster cluster;
};

INSTANTIATE_TEST_SUITE_P(Transports, RemoteErrorsTest, ::testing::Values("grpc", "unix", "shm"),
                         [](const auto& info) { return info.param; });

TEST_P(RemoteErrorsTest, ACalleeThatNeverRegistersIsNamedWithThoseWhoDid) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  EXPECT_THAT(a.RpcSync(CallTarget("worker/7", {.timeout = absl::Milliseconds(50)}), kPlain, 1),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("worker/7: plain: it has not registered within"),
                             HasSubstr("there: worker/0"))));
}

TEST_P(RemoteErrorsTest, WorkersOfTwoEpochsOfAJobRefuseEachOtherByName) {
  const auto at = [](int64_t epoch, const char* name) {
    return RpcAgentOptions{.name = name, .caller = {.run_id = "job7", .epoch = epoch, .member = name}};
  };
  RpcAgent& left_behind = cluster.Add(DefaultFunctions(), at(5, "worker/0"));
  RpcAgent& gone_on = cluster.Add(DefaultFunctions(), at(6, "worker/1"));
  RpcAgent& of_no_job = cluster.Add(DefaultFunctions());
  EXPECT_THAT(left_behind.RpcSync(CallTarget("worker/1", {.timeout = kTestTimeout}), kPlain, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("worker/0 belongs to epoch 5; the job is at epoch 6, says worker/1")));
  EXPECT_THAT(
      gone_on.RpcSync(CallTarget("worker/0", {.timeout = kTestTimeout}), kPlain, 1),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker/0 at this address is still at epoch 5")));
  TANDEM_EXPECT_OK(of_no_job.RpcSync("worker/0", kPlain, 1));
}

TEST_P(RemoteErrorsTest, ADeadCalleeIsUnavailable) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions());
  TANDEM_ASSERT_OK(a.RpcSync("worker/1", kPlain, 1));
  Future<void> under_way = a.RpcAsync("worker/1", kWait);
  ASSERT_TRUE(running.AwaitValue(1));
  // The lease runs out although the connection seems well, as for a machine that has fallen silent.
  cluster.directory.Forget("worker/1");
  EXPECT_THAT(
      under_way.Wait(kTestTimeout),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker/1: wait: it has left, or was silent")));
  EXPECT_TRUE(saw_cancellation.AwaitValue(1)) << "the callee is told, should it live";
}

TEST_P(RemoteErrorsTest, ASlowCalleeMeetsTheDeadline) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions());
  for (const char* to : {"worker/0", "worker/1"}) {
    TANDEM_ASSERT_OK(a.RpcSync(to, kPlain, 1));  // connects, which takes no part of the call's time then
    const int before = saw_cancellation;
    EXPECT_THAT(a.RpcSync(CallTarget(to, {.timeout = absl::Seconds(1)}), kWait),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(absl::StrCat(to, ": wait: "))));
    EXPECT_TRUE(saw_cancellation.Await([&](int n) { return n > before; })) << to;
  }
}

TEST_P(RemoteErrorsTest, AnotherVersionOfTheProtocolIsNamedByBothSides) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions(), {.protocol = 7});
  EXPECT_THAT(
      a.RpcSync("worker/1", kPlain, 1),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("worker/1: plain: worker/1 speaks version 7 of remote calls, worker/0 version 1")));
}

TEST_P(RemoteErrorsTest, ASignatureThatDiffersIsNamedByBothSides) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions());
  for (const char* to : {"worker/0", "worker/1"}) {
    EXPECT_THAT(a.RpcSync(to, kPlainAsSomebodyElseHasIt, 1),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("the signatures differ: worker/0 calls plain(i32) -> i32"),
                               HasSubstr("has plain(i64) -> i64"), HasSubstr(to))));
  }
}

TEST_P(RemoteErrorsTest, AMissingFunctionIsNamedWithThoseThereAre) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions());
  for (const char* to : {"worker/0", "worker/1"}) {
    EXPECT_THAT(
        a.RpcSync(to, kMissing),
        StatusIs(absl::StatusCode::kUnimplemented,
                 HasSubstr(absl::StrCat(to, ": missing: there is no such function; there is plain"))));
  }
}

TEST_P(RemoteErrorsTest, ACalleeThatThrowsIsInternalWithWhatItSaid) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions());
  for (const char* to : {"worker/0", "worker/1"}) {
    EXPECT_THAT(a.RpcSync(to, kThrow, 0),
                StatusIs(absl::StatusCode::kInternal,
                         ::testing::StrEq(absl::StrCat(to, ": throw: it threw an exception: out of luck"))));
    EXPECT_THAT(a.RpcSync(to, kThrow, 1),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("of an unknown type")));
    EXPECT_THAT(a.RpcSync(to, kThrow, 2), StatusIs(absl::StatusCode::kInternal, HasSubstr("bad_alloc")));
  }
}

TEST_P(RemoteErrorsTest, AnArgumentOfNoBytesIsAnArgument) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions());
  TANDEM_ASSERT_OK_AND_ASSIGN(const int64_t size,
                              a.RpcSync("worker/1", kSize, Tensor::Allocate(DType::kU8, {0})));
  EXPECT_EQ(size, 0);
}

TEST_P(RemoteErrorsTest, ACallIsCancelledWhileItRuns) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions());
  for (const char* to : {"worker/0", "worker/1"}) {
    const int before = saw_cancellation, ran = running;
    Future<void> future = a.RpcAsync(to, kWait);
    ASSERT_TRUE(running.Await([&](int n) { return n > ran; }));
    future.Cancel();
    EXPECT_THAT(future.Wait(kTestTimeout),
                StatusIs(absl::StatusCode::kCancelled,
                         HasSubstr(absl::StrCat(to, ": wait: the call was cancelled"))));
    EXPECT_TRUE(saw_cancellation.Await([&](int n) { return n > before; })) << to;
  }
}

TEST_P(RemoteErrorsTest, ACallIsCancelledWhileItIsQueuedAndNeverRuns) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  RpcAgent& b = cluster.Add(DefaultFunctions(), {.threads = 1});
  Future<void> first = a.RpcAsync("worker/1", kWait);
  ASSERT_TRUE(running.AwaitValue(1));
  Future<void> second = a.RpcAsync("worker/1", kWait);
  ASSERT_TRUE(b.AwaitQueuedCalls(1, absl::Now() + kTestTimeout));
  second.Cancel();
  EXPECT_THAT(second.Wait(kTestTimeout), StatusIs(absl::StatusCode::kCancelled));
  first.Cancel();
  TANDEM_EXPECT_OK(a.RpcSync("worker/1", kPlain, 1)) << "behind it in the queue";
  EXPECT_EQ(b.queued_calls(), 0);
  EXPECT_EQ(running, 1);
}

TEST_P(RemoteErrorsTest, ACallIsCancelledBeforeItsCalleeHasRegistered) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  Future<int64_t> future = a.RpcAsync("worker/1", kPlain, 1);
  future.Cancel();
  EXPECT_THAT(future.Wait(kTestTimeout),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("worker/1: plain: ")));
}

TEST_P(RemoteErrorsTest, CancellingReachesTheEndOfAChainOfCalls) {
  constexpr Function<void(std::string)> kForward{"forward"};
  Functions functions;
  functions.Add(kForward, [](const Context& context, const std::string& to) {
    return context.agent().RpcSync(CallTarget(to, {.cancel = context.stop_token()}), kWait);
  });
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(std::move(functions));
  cluster.Add(DefaultFunctions());
  Future<void> future = a.RpcAsync("worker/1", kForward, "worker/2");
  ASSERT_TRUE(running.AwaitValue(1));
  future.Cancel();
  EXPECT_TRUE(saw_cancellation.AwaitValue(1));
}

TEST_P(RemoteErrorsTest, AFullQueueRefusesWithItsLimit) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions(), {.threads = 1, .max_queued_calls = 8, .max_queued_calls_per_caller = 4});
  std::vector<Future<void>> waiting = {a.RpcAsync("worker/1", kWait)};
  ASSERT_TRUE(running.AwaitValue(1));
  for (int i = 0; i < 4; ++i) waiting.push_back(a.RpcAsync("worker/1", kWait));
  EXPECT_THAT(a.RpcSync("worker/1", kPlain, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("worker/1: plain: its queue has 4 calls of this caller waiting")));
  // Another caller has its own limit.
  RpcAgent& c = cluster.Add(DefaultFunctions());
  Future<int64_t> other = c.RpcAsync("worker/1", kPlain, 5);
  released = true;
  TANDEM_EXPECT_OK(other.Wait(kTestTimeout));
  TANDEM_EXPECT_OK(WaitAll(waiting, kTestTimeout));
}

}  // namespace
}  // namespace tandem::rpc::remote
