// SPDX-License-Identifier: Apache-2.0
// Abrupt shutdown: functions see that they are cancelled, and a function that does not check delays the
// shutdown no longer than the worker waits.

#include <atomic>
#include <string>
#include <tuple>
#include <vector>

#include "absl/synchronization/notification.h"
#include "rpc/remote/rpc_agent.h"
#include "tests/rpc/remote/cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::remote {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using testing::Cluster;
using ::testing::HasSubstr;
using testing::kTestTimeout;

constexpr Function<void()> kPatient{"patient"};
constexpr Function<void()> kStubborn{"stubborn"};
constexpr Function<int64_t(int64_t)> kStubbornBatch{"stubborn_batch"};
constexpr Function<bool(double)> kNap{"nap"};

class RemoteShutdownTest : public ::testing::TestWithParam<std::string> {
 protected:
  RemoteShutdownTest() : cluster(GetParam()) {}
  ~RemoteShutdownTest() override {
    if (!release.HasBeenNotified()) release.Notify();
  }

  Functions DefaultFunctions() {
    Functions functions;
    functions.Add(kPatient, [this](const Context& context) {
      running.Notify();
      saw_cancellation = context.WaitUntilCancelled(kTestTimeout);
    });
    functions.Add(kStubborn, [this] {
      running.Notify();
      release.WaitForNotification();
    });
    functions.AddBatched(kStubbornBatch, [this](const std::vector<std::tuple<int64_t>>& arguments) {
      running.Notify();
      release.WaitForNotification();
      return std::vector<absl::StatusOr<int64_t>>(arguments.size(), 1);
    });
    functions.Add(kNap, [](const Context& context, double seconds) {
      return context.WaitUntilCancelled(absl::Seconds(seconds));
    });
    return functions;
  }

  absl::Notification running, release;
  std::atomic<bool> saw_cancellation{false};
  Cluster cluster;
};

INSTANTIATE_TEST_SUITE_P(Transports, RemoteShutdownTest, ::testing::Values("grpc", "unix", "shm"),
                         [](const auto& info) { return info.param; });

TEST_P(RemoteShutdownTest, AFunctionThatLooksSeesItForItsCallersElsewhere) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  RpcAgent& b = cluster.Add(DefaultFunctions(), {.abrupt_timeout = kTestTimeout});
  Future<void> under_way = a.RpcAsync("worker/1", kPatient);
  ASSERT_TRUE(running.WaitForNotificationWithTimeout(kTestTimeout));
  TANDEM_EXPECT_OK(b.ShutdownNow());
  EXPECT_TRUE(saw_cancellation);
  EXPECT_THAT(under_way.Wait(kTestTimeout), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_P(RemoteShutdownTest, AFunctionThatLooksSeesItForItsOwnWorkersCalls) {
  RpcAgent& a = cluster.Add(DefaultFunctions(), {.abrupt_timeout = kTestTimeout});
  Future<void> under_way = a.RpcAsync("worker/0", kPatient);
  ASSERT_TRUE(running.WaitForNotificationWithTimeout(kTestTimeout));
  TANDEM_EXPECT_OK(a.ShutdownNow());
  EXPECT_TRUE(saw_cancellation);
  EXPECT_THAT(under_way.Wait(kTestTimeout), StatusIs(absl::StatusCode::kCancelled));
}

TEST_P(RemoteShutdownTest, AFunctionThatDoesNotLookIsNamedWhenTheTimeIsOver) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  RpcAgent& b = cluster.Add(DefaultFunctions(), {.abrupt_timeout = absl::Milliseconds(50)});
  Future<void> under_way = a.RpcAsync("worker/1", kStubborn);
  ASSERT_TRUE(running.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_THAT(b.ShutdownNow(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("worker/1: functions that do not look"),
                             HasSubstr("still run 50ms after they were: stubborn of worker/0 (for "))));
  // The caller receives the error while the function still runs.
  EXPECT_THAT(under_way.Wait(kTestTimeout), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(a.RpcSync(CallTarget("worker/1", {.timeout = absl::Milliseconds(50)}), kNap, 0),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("it has not registered")));
  release.Notify();
  absl::Status ended = b.ShutdownNow();
  for (int i = 0; i < 100 && !ended.ok(); ++i) ended = b.ShutdownNow();  // 5 s on a busy machine
  TANDEM_EXPECT_OK(ended);
}

TEST_P(RemoteShutdownTest, ABatchThatRunsIsNamed) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  RpcAgent& b = cluster.Add(DefaultFunctions(), {.abrupt_timeout = absl::Milliseconds(50)});
  Future<int64_t> under_way = a.RpcAsync("worker/1", kStubbornBatch, 7);
  ASSERT_TRUE(running.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_THAT(b.ShutdownNow(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(": stubborn_batch (for ")));
}

TEST_P(RemoteShutdownTest, AGracefulEndThatIsCutShortNamesItToo) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions(), {.abrupt_timeout = absl::Milliseconds(50)});
  Future<void> under_way = a.RpcAsync("worker/1", kStubborn);
  ASSERT_TRUE(running.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_THAT(
      cluster[1].Shutdown(absl::Milliseconds(50)),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("leaves although others are not done"), HasSubstr("stubborn of worker/0"))));
}

TEST_P(RemoteShutdownTest, AFunctionWaitsNoLongerThanItWantsNorThanItsDeadline) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions());
  for (const char* to : {"worker/0", "worker/1"}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const bool cancelled, a.RpcSync(to, kNap, 0.01));
    EXPECT_FALSE(cancelled);
    const absl::Time begin = absl::Now();
    EXPECT_THAT(a.RpcSync(CallTarget(to, {.timeout = absl::Milliseconds(50)}), kNap, 1000.0),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_LT(absl::Now() - begin, kTestTimeout);
  }
}

}  // namespace
}  // namespace tandem::rpc::remote
