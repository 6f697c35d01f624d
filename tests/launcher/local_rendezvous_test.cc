// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_rendezvous.h"

#include <thread>

#include "absl/time/clock.h"

#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

using cluster::RendezvousEvent;
using cluster::Round;
using ::tandem::testing::StatusIs;

TEST(LocalRendezvousTest, RoundsAreCountedUpToTheLimitOfRestarts) {
  LocalRendezvous rendezvous(/*max_restarts=*/1);
  TANDEM_ASSERT_OK_AND_ASSIGN(Round round, rendezvous.Join({.id = "n", .processes = {{"worker", 2}}}));
  EXPECT_EQ(round.epoch, 1);
  EXPECT_EQ(round.restarts, 0);
  EXPECT_EQ(round.WorldSize("worker"), 2);
  EXPECT_THAT(rendezvous.WaitForEvent(1, absl::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  TANDEM_ASSERT_OK(rendezvous.RequestRestart(1, "a worker died", 9));
  TANDEM_ASSERT_OK_AND_ASSIGN(RendezvousEvent event, rendezvous.WaitForEvent(1, absl::InfiniteFuture()));
  EXPECT_EQ(event.kind, RendezvousEvent::Kind::kRestart);
  EXPECT_EQ(event.reason, "a worker died");
  TANDEM_ASSERT_OK_AND_ASSIGN(round, rendezvous.Join({.id = "n"}));
  EXPECT_EQ(round.epoch, 2);
  EXPECT_EQ(round.restarts, 1);
  TANDEM_EXPECT_OK(rendezvous.RequestRestart(1, "late", 9));  // of a round that is over
  EXPECT_THAT(rendezvous.RequestRestart(2, "again", 9), StatusIs(absl::StatusCode::kFailedPrecondition));
  TANDEM_ASSERT_OK_AND_ASSIGN(event, rendezvous.WaitForEvent(2, absl::InfiniteFuture()));
  EXPECT_EQ(event.kind, RendezvousEvent::Kind::kClosed);
  EXPECT_TRUE(event.failed);
  EXPECT_EQ(event.exit_code, 9);
  EXPECT_THAT(rendezvous.Join({.id = "n"}), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(LocalRendezvousTest, TheJobEndsOnce) {
  LocalRendezvous rendezvous(0);
  TANDEM_ASSERT_OK(rendezvous.Join({.id = "n"}).status());
  TANDEM_ASSERT_OK(rendezvous.Finish(1));
  TANDEM_ASSERT_OK(rendezvous.Close(/*failed=*/true, "too late", 7));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent event,
                              rendezvous.WaitForEvent(1, absl::InfiniteFuture()));
  EXPECT_EQ(event.kind, RendezvousEvent::Kind::kClosed);
  EXPECT_FALSE(event.failed);
}

TEST(LocalRendezvousTest, LeavingEndsAWait) {
  LocalRendezvous rendezvous(0);
  TANDEM_ASSERT_OK(rendezvous.Join({.id = "n"}).status());
  std::thread waiter([&] {
    EXPECT_THAT(rendezvous.WaitForEvent(1, absl::InfiniteFuture()), StatusIs(absl::StatusCode::kCancelled));
  });
  TANDEM_EXPECT_OK(rendezvous.Leave());
  waiter.join();
}

}  // namespace
}  // namespace tandem::launcher
