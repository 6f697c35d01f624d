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

// A helper waits for a call that never ends; the loop is stopped all the same.
TEST(CompletionLoopTest, StoppingDoesNotWaitForWhatAHelperWaitsFor) {
  CompletionLoop loop(std::make_unique<grpc::CompletionQueue>());
  loop.Start();
  // The thread steps back at its next event, since somebody could not help.
  loop.PrepareInlinePoll();
  loop.InlinePoll([] { return false; }, absl::Now() + absl::Milliseconds(1));
  Event event;
  grpc::Alarm alarm;
  alarm.Set(loop.queue(), std::chrono::system_clock::now(), event.tag());
  ASSERT_TRUE(event.came.WaitForNotificationWithTimeout(kTestTimeout));

  absl::Notification helps;
  std::thread helper([&] {
    // It is not this thread's turn before the other has stepped back: then it is asked whether its call is
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
