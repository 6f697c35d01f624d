// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/gloo/operation_guard.h"

#include <thread>

#include "base/clock.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives::gloo_library {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Counter final : public OperationGuard::Waiter {
 public:
  void Interrupt() override { ++interrupts; }
  int interrupts = 0;
};

TEST(OperationGuardTest, StopInterruptsTheWaitersOfNowAndRefusesLaterOnes) {
  OperationGuard guard;
  Counter stays, goes, late;
  EXPECT_TRUE(guard.Add(&stays));
  EXPECT_TRUE(guard.Add(&goes));
  guard.Remove(&goes);
  guard.Stop(absl::CancelledError("first"));
  guard.Stop(absl::AbortedError("second"));
  EXPECT_EQ(stays.interrupts, 1);
  EXPECT_EQ(goes.interrupts, 0);
  EXPECT_FALSE(guard.Add(&late));
  EXPECT_EQ(guard.stopped(), absl::CancelledError("first"));
}

TEST(OperationGuardTest, ANewOperationHasItsOwnDeadlineAndNoLateRanks) {
  OperationGuard guard;
  EXPECT_EQ(guard.deadline(), absl::InfiniteFuture());
  guard.NoteLate({1, 2});
  EXPECT_THAT(guard.late(), ElementsAre(1, 2));
  const absl::Time deadline = MonotonicNow();
  guard.Begin(deadline);
  EXPECT_EQ(guard.deadline(), deadline);
  EXPECT_THAT(guard.late(), IsEmpty());
}

TEST(OperationGuardTest, AwaitStopReturnsWhenStopIsCalledOrTheGraceIsOver) {
  OperationGuard guard;
  TANDEM_EXPECT_OK(guard.AwaitStop(absl::Milliseconds(1)));
  std::thread other([&] { guard.Stop(absl::CancelledError("enough")); });
  EXPECT_EQ(guard.AwaitStop(absl::Seconds(20)), absl::CancelledError("enough"));
  other.join();
}

}  // namespace
}  // namespace tandem::collectives::gloo_library
