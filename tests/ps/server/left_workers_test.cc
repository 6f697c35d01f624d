// SPDX-License-Identifier: Apache-2.0
// Pulls that wait for a worker that has left the job.

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/server/count_pushes.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

std::shared_ptr<TestCall> StartPull(Driver& server, uint32_t worker, uint64_t step) {
  return server.StartPull(worker, step, {{"user", {kShared}}});
}

class LeftWorkersTest : public ::testing::TestWithParam<bool> {
 protected:
  // SYNC tables wait from step 1 on, these from step 1 + `slack`.
  const uint64_t slack_ = GetParam() ? 0 : 2;
  void SetUp() override {
    TANDEM_ASSERT_OK(server_.CreateTable(CountTable(3, GetParam() ? Sync() : Bounded(2))));
    // Worker 1 pushes nothing.
    for (uint32_t worker : {0, 2}) {
      for (uint64_t step = 0; step <= slack_; ++step) {
        TANDEM_ASSERT_OK(server_.Push({.worker = worker, .step = step}, {CountPush(worker, step)}));
      }
    }
  }
  Driver server_;
};

TEST_P(LeftWorkersTest, APullThatWaitsForOneFailsByItsNameAtOnce) {
  const auto waiting = StartPull(server_, 0, 1 + slack_);
  EXPECT_EQ(server_.server().waiting_calls(), 1u);
  server_.server().SetWorkersThatLeft({2});  // it has pushed what the pull needs
  EXPECT_EQ(server_.server().waiting_calls(), 1u);
  server_.server().SetWorkersThatLeft({1, 2});
  EXPECT_THAT(waiting->Wait().status(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                 HasSubstr("waits for the push of step 0 from worker 1")));
  EXPECT_EQ(server_.server().waiting_calls(), 0u);
  EXPECT_THAT(StartPull(server_, 2, 1 + slack_)->Wait().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("worker 1 has left the job")));
  // Pulls that need no push of it are served.
  EXPECT_THAT(StartPull(server_, 0, slack_)->Wait().status(), IsOk());
}

TEST_P(LeftWorkersTest, AWorkerThatComesBackIsWaitedFor) {
  server_.server().SetWorkersThatLeft({1});
  EXPECT_THAT(StartPull(server_, 0, 1 + slack_)->Wait().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("worker 1")));
  server_.server().SetWorkersThatLeft({});
  const auto waiting = StartPull(server_, 0, 1 + slack_);
  EXPECT_EQ(server_.server().waiting_calls(), 1u);
  TANDEM_ASSERT_OK(server_.Push({.worker = 1, .step = 0}, {CountPush(1, 0)}));
  EXPECT_THAT(waiting->Wait().status(), IsOk());
}

TEST_P(LeftWorkersTest, RanksOfWorkersThatTheTableDoesNotHaveChangeNothing) {
  const auto waiting = StartPull(server_, 0, 1 + slack_);
  server_.server().SetWorkersThatLeft({3, 1000});
  EXPECT_EQ(server_.server().waiting_calls(), 1u);
  TANDEM_ASSERT_OK(server_.Push({.worker = 1, .step = 0}, {CountPush(1, 0)}));
  EXPECT_THAT(waiting->Wait().status(), IsOk());
}

INSTANTIATE_TEST_SUITE_P(Modes, LeftWorkersTest, ::testing::Bool(),
                         [](const auto& mode) { return mode.param ? "sync" : "bounded"; });

}  // namespace
}  // namespace tandem::ps::testing
