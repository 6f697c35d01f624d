// SPDX-License-Identifier: Apache-2.0
// Calls of MPI that hang. No test initialises MPI.
#include "collectives/backends/mpi/engine.h"

#include <mpi.h>

#include <atomic>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace {

// While hanging, MPI_Init_thread waits for `release`, then it fails.
std::atomic<int> initialisations{0};
absl::Notification release;

}  // namespace

extern "C" int MPI_Init_thread(int*, char***, int, int*) {
  ++initialisations;
  release.WaitForNotification();
  return MPI_ERR_OTHER;
}

namespace tandem::collectives::mpi {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Milliseconds(20); }
absl::Time Late() { return absl::Now() + absl::Seconds(60); }

TEST(MpiEngineTest, CallsAreRefusedOnlyWhileAnEarlierOneHangs) {
  Engine engine;
  engine.Start([] { return absl::OkStatus(); });
  TANDEM_ASSERT_OK(engine.AwaitStarted(Late()));
  absl::Notification end;
  const auto hang = [&end] {
    end.WaitForNotification();
    return absl::OkStatus();
  };
  EXPECT_THAT(engine.Call("MPI_Comm_split", hang, Soon()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("MPI_Comm_split")));
  EXPECT_THAT(engine.Call(
                  "MPI_Comm_dup", [] { return absl::OkStatus(); }, Late()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("hangs in an earlier MPI_Comm_split")));
  end.Notify();
  // The call returns on the engine's thread; from then on others are taken.
  absl::Status status = absl::UnavailableError("not called");
  const absl::Time deadline = Late();
  while (absl::IsUnavailable(status) && absl::Now() < deadline) {
    status = engine.Call(
        "MPI_Comm_dup", [] { return absl::OkStatus(); }, Late());
  }
  TANDEM_EXPECT_OK(status);
  engine.Finish();
}

TEST(MpiEngineTest, AnInitialisationThatHangsIsAwaitedAndNotRepeated) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Engine::Get(Soon()).status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("MPI_Init_thread")));
  }
  release.Notify();
  EXPECT_THAT(Engine::Get(Late()).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("MPI_Init_thread failed")));
  EXPECT_EQ(initialisations, 1);
  // It has failed, so the next group may try again.
  EXPECT_THAT(Engine::Get(Late()).status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(initialisations, 2);
}

}  // namespace
}  // namespace tandem::collectives::mpi
