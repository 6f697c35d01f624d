// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/completion_loop.h"

#include <chrono>
#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "grpcpp/alarm.h"
#include "gtest/gtest.h"
#include "tests/rpc/echo_service.h"

namespace tandem::rpc {
namespace {

using testing::kTestTimeout;

struct Event final : CompletionTag {
  void OnEvent(bool) override { came.Notify(); }
  absl::Notification came;
};

// A thread in InlinePoll waits for a call that never ends. Stop must nevertheless return.
TEST(CompletionLoopTest, StoppingDoesNotWaitForWhatAHelperWaitsFor) {
  CompletionLoop loop(std::make_unique<grpc::CompletionQueue>());
  loop.Start();
  // After this call, the loop's own thread leaves the queue at its next event, because another thread could
  // not poll.
  loop.PrepareInlinePoll();
  loop.InlinePoll([] { return false; }, absl::Now() + absl::Milliseconds(1));
  Event event;
  grpc::Alarm alarm;
  alarm.Set(loop.queue(), std::chrono::system_clock::now(), event.tag());
  ASSERT_TRUE(event.came.WaitForNotificationWithTimeout(kTestTimeout));

  absl::Notification helps;
  std::thread helper([&] {
    // While the loop's own thread polls, InlinePoll returns at once. After that, it asks whether the call is
    // over.
    for (const absl::Time give_up = absl::Now() + kTestTimeout;
         !helps.HasBeenNotified() && absl::Now() < give_up;) {
      loop.PrepareInlinePoll();
      loop.InlinePoll(
          [&helps] {
            if (!helps.HasBeenNotified()) helps.Notify();
            return false;
          },
          absl::Now() + absl::Hours(1));
    }
  });
  EXPECT_TRUE(helps.WaitForNotificationWithTimeout(kTestTimeout));
  const absl::Time begin = absl::Now();
  loop.Stop();
  EXPECT_LT(absl::Now() - begin, kTestTimeout);
  helper.join();
}

}  // namespace
}  // namespace tandem::rpc
