// SPDX-License-Identifier: Apache-2.0
// Callees that crash, are killed, or freeze: the call ends within a bounded time with an error that names
// them, and no other worker is affected.

#include <signal.h>

#include "absl/time/clock.h"
#include "tests/rpc/remote/await_members.h"
#include "tests/rpc/remote/process/worker_process.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::remote::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTestTimeout = absl::Seconds(60);

TEST(RemoteCrashTest, ACalleeThatCrashesOrExitsIsUnavailable) {
  WorkerProcesses workers(3);
  RpcAgent& agent = workers.agent();
  EXPECT_THAT(agent.RpcSync("worker/0", kCrash),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker/0: crash: ")));
  EXPECT_THAT(agent.RpcSync("worker/1", kExit),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker/1: exit: ")));
  TANDEM_EXPECT_OK(agent.RpcSync("worker/2", kPid));
  // Afterwards the error says that it has not registered.
  ASSERT_TRUE(
      AwaitMembers(agent.directory(), [](const auto& members) { return members.count("worker/0") == 0; }));
  EXPECT_THAT(agent.RpcSync(CallTarget("worker/0", {.timeout = absl::Milliseconds(100)}), kPid),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("worker/0: pid: it has not registered"), HasSubstr("worker/2"))));
}

TEST(RemoteCrashTest, ACalleeThatIsKilledInTheMiddleIsUnavailable) {
  WorkerProcesses workers(1);
  Future<void> under_way = workers.agent().RpcAsync("worker/0", kSleep, 1000.0);
  TANDEM_ASSERT_OK(workers.agent().RpcSync("worker/0", kPid));
  workers.Kill(0);
  EXPECT_THAT(under_way.Wait(kTestTimeout),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker/0: sleep: ")));
}

TEST(RemoteCrashTest, AFrozenCalleeIsGivenUpWithItsLeaseNotItsDeadline) {
  WorkerProcesses workers(1);
  RpcAgent& agent = workers.agent();
  workers.Signal(0, SIGSTOP);
  const absl::Time begin = absl::Now();
  EXPECT_THAT(
      agent.RpcSync(CallTarget("worker/0", {.timeout = kTestTimeout}), kPid),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker/0: pid: it has left, or was silent")));
  EXPECT_LT(absl::Now() - begin, kTestTimeout / 2);
  // It comes back after SIGCONT.
  workers.Signal(0, SIGCONT);
  TANDEM_EXPECT_OK(agent.RpcSync(CallTarget("worker/0", {.timeout = kTestTimeout}), kPid));
}

}  // namespace
}  // namespace tandem::rpc::remote::testing
