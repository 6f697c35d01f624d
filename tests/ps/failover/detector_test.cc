// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/detector.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

constexpr absl::Duration kLease = absl::Seconds(2);
constexpr absl::Duration kSilence = absl::Seconds(1);

// Returns a moment at which both clocks show the same: the machine was never suspended.
ClockReading Both(absl::Time time) { return {.monotonic = time, .boot = time}; }

// Ticks every 100 ms until `to`.
void RunUntil(Detector* detector, absl::Time* now, absl::Time to) {
  for (; *now < to; *now += absl::Milliseconds(100)) detector->Tick(*now);
}

TEST(DetectorTest, APrimaryIsLostAfterALeaseWithoutAMessage) {
  Detector detector(kLease, kSilence);
  absl::Time now = absl::UnixEpoch();
  detector.Follow(now);
  RunUntil(&detector, &now, absl::UnixEpoch() + absl::Seconds(1));
  detector.PrimaryHeard(now);
  RunUntil(&detector, &now, absl::UnixEpoch() + absl::Milliseconds(2900));
  EXPECT_FALSE(detector.IsPrimaryLost(now));
  RunUntil(&detector, &now, absl::UnixEpoch() + absl::Seconds(3));
  EXPECT_TRUE(detector.IsPrimaryLost(now));
}

TEST(DetectorTest, TheTimeForWhichThisProcessSleptDoesNotCount) {
  Detector detector(kLease, kSilence);
  absl::Time now = absl::UnixEpoch();
  detector.Tick(now);
  detector.Follow(now);
  detector.StartLink("a", Both(now));
  now += absl::Seconds(60);
  detector.Tick(now);
  EXPECT_FALSE(detector.IsPrimaryLost(now));
  EXPECT_TRUE(detector.TakeChanges(now).silent.empty());
  // A follower may have taken over meanwhile.
  EXPECT_FALSE(detector.HoldsLease({"a"}, now));
}

TEST(DetectorTest, APrimaryWhoseMachineWasSuspendedHoldsNoLeaseAndTakesNoFollowerForSilent) {
  Detector detector(kLease, kSilence);
  // The monotonic clock stands still meanwhile.
  const absl::Time now = absl::UnixEpoch();
  const absl::Time resumed = now + absl::Hours(1);
  detector.Tick(now);
  detector.StartLink("a", Both(now));
  EXPECT_TRUE(detector.HoldsLease({"a"}, now));
  EXPECT_FALSE(detector.HoldsLease({"a"}, resumed));
  // A message that was sent before the suspension is answered: the follower may have taken over since.
  detector.FollowerHeard("a", Both(now));
  EXPECT_FALSE(detector.HoldsLease({"a"}, resumed));
  detector.Tick(now);
  EXPECT_TRUE(detector.TakeChanges(now).silent.empty());
  detector.FollowerHeard("a", {.monotonic = now, .boot = resumed});
  EXPECT_TRUE(detector.HoldsLease({"a"}, resumed));
}

TEST(DetectorTest, AFollowerWhoseMachineWasSuspendedWaitsForAWholeLease) {
  Detector detector(kLease, kSilence);
  const absl::Time now = absl::UnixEpoch();
  detector.Tick(now);
  detector.Follow(now);
  // An hour passes in which both machines are suspended.
  detector.Tick(now);
  EXPECT_FALSE(detector.IsPrimaryLost(now));
}

TEST(DetectorTest, MessagesThatWereHandledAfterASleepAreNotMovedToALaterTime) {
  Detector detector(kLease, kSilence);
  absl::Time now = absl::UnixEpoch();
  detector.Tick(now);
  detector.Follow(now);
  detector.StartLink("a", Both(now));
  now += absl::Seconds(60);
  detector.PrimaryHeard(now);
  detector.FollowerHeard("a", Both(now));
  detector.Tick(now);
  const absl::Time woken = now;
  RunUntil(&detector, &now, woken + kSilence);
  EXPECT_EQ(detector.TakeChanges(now).silent, std::vector<std::string>{"a"});
  RunUntil(&detector, &now, woken + kLease);
  EXPECT_TRUE(detector.IsPrimaryLost(now));
}

TEST(DetectorTest, AFollowerThatIsStillSilentIsReportedAgainOnRequest) {
  Detector detector(kLease, kSilence);
  absl::Time now = absl::UnixEpoch();
  detector.StartLink("a", Both(now));
  RunUntil(&detector, &now, absl::UnixEpoch() + kSilence);
  EXPECT_EQ(detector.TakeChanges(now).silent, std::vector<std::string>{"a"});
  // The answer to a message that was sent longer ago than `silence`.
  detector.FollowerHeard("a", Both(now - kSilence));
  EXPECT_TRUE(detector.TakeChanges(now).silent.empty());
  detector.ReportSilenceAgain("a", now);
  EXPECT_EQ(detector.TakeChanges(now).silent, std::vector<std::string>{"a"});
  detector.ReportSilenceAgain("a", now);
  detector.FollowerHeard("a", Both(now));
  EXPECT_TRUE(detector.TakeChanges(now).silent.empty());
}

TEST(DetectorTest, ASilentFollowerIsReportedOnceAndAgainWhenItIsHeard) {
  Detector detector(kLease, kSilence);
  absl::Time now = absl::UnixEpoch();
  detector.StartLink("a", Both(now));
  RunUntil(&detector, &now, absl::UnixEpoch() + kSilence);
  EXPECT_EQ(detector.TakeChanges(now).silent, std::vector<std::string>{"a"});
  EXPECT_TRUE(detector.TakeChanges(now).silent.empty());
  detector.FollowerHeard("a", Both(now));
  EXPECT_EQ(detector.TakeChanges(now).heard, std::vector<std::string>{"a"});
  EXPECT_TRUE(detector.TakeChanges(now).heard.empty());
}

TEST(DetectorTest, AFollowerThatIsTakenForDeadIsReportedOnceItAnswersSomethingLater) {
  Detector detector(kLease, kSilence);
  absl::Time now = absl::UnixEpoch();
  detector.StartLink("a", Both(now));
  detector.StartLink("b", Both(now));
  now += absl::Milliseconds(500);
  detector.TakeForDead("a", now);
  detector.TakeForDead("b", absl::InfiniteFuture());
  detector.FollowerHeard("a", Both(now - absl::Milliseconds(1)));
  EXPECT_TRUE(detector.TakeChanges(now).heard.empty());
  for (const char* id : {"a", "b"}) detector.FollowerHeard(id, Both(now + absl::Milliseconds(1)));
  EXPECT_EQ(detector.TakeChanges(now).heard, std::vector<std::string>{"a"});
  // The lease counts from these answers: neither can have taken over before it ends.
  EXPECT_TRUE(detector.HoldsLease({"a", "b"}, now + kLease));
}

// A detector with the link "a", which answers at each call of After.
class StallTest : public ::testing::Test {
 protected:
  StallTest() { detector_.StartLink("a", Both(now_)); }

  Detector::Changes After(absl::Duration time, uint64_t stored, uint64_t last) {
    now_ += time;
    detector_.FollowerHeard("a", Both(now_));
    detector_.FollowerStored("a", stored, last, now_);
    return detector_.TakeChanges(now_);
  }

  static constexpr absl::Duration kStall = absl::Seconds(10);
  static constexpr absl::Duration kStep = absl::Seconds(4);
  Detector detector_{kLease, kSilence, kStall};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(StallTest, AFollowerThatAnswersButStoresNothingIsReported) {
  EXPECT_TRUE(After(kStep, 5, 5).silent.empty());
  EXPECT_TRUE(After(kStep, 5, 6).silent.empty());  // has all that there was before
  EXPECT_TRUE(After(kStep, 5, 9).silent.empty());
  EXPECT_TRUE(After(kStep, 5, 9).silent.empty());
  EXPECT_EQ(After(kStep, 5, 9).silent, std::vector<std::string>{"a"});
  // It comes back once it has everything that was in the log a moment ago, not with its next record.
  EXPECT_TRUE(After(kStep, 6, 9).heard.empty());
  EXPECT_EQ(After(kStep, 9, 12).heard, std::vector<std::string>{"a"});
}

TEST_F(StallTest, AFollowerThatIsSlowOrHasNothingToStoreIsNotReported) {
  for (uint64_t i = 0; i < 10; ++i) EXPECT_TRUE(After(kStep, i, 100).silent.empty());
  for (uint64_t i = 0; i < 10; ++i) EXPECT_TRUE(After(kStep, 100, 100).silent.empty());
}

TEST_F(StallTest, AFollowerThatJoinsHasTheWholeTime) {
  for (int i = 0; i < 9; ++i) After(kStep, 0, 100);  // it is copied
  detector_.ReportSilenceAgain("a", now_);
  EXPECT_TRUE(After(kStep, 0, 100).silent.empty());
  EXPECT_TRUE(After(kStep, 0, 100).silent.empty());
  EXPECT_EQ(After(kStep, 0, 100).silent, std::vector<std::string>{"a"});
}

TEST(DetectorTest, TheLeaseCountsFromTheTimeAtWhichTheAnsweredMessageWasSent) {
  Detector detector(kLease, kSilence);
  absl::Time now = absl::UnixEpoch();
  detector.StartLink("a", Both(now));
  const absl::Time sent = now + absl::Milliseconds(500);
  RunUntil(&detector, &now, absl::UnixEpoch() + absl::Milliseconds(1900));
  detector.FollowerHeard("a", Both(sent));
  EXPECT_TRUE(detector.HoldsLease({"a"}, sent + kLease - absl::Milliseconds(1)));
  EXPECT_FALSE(detector.HoldsLease({"a"}, sent + kLease));
  EXPECT_FALSE(detector.HoldsLease({"a", "unknown"}, now));
  EXPECT_TRUE(detector.HoldsLease({}, now));
}

}  // namespace
}  // namespace tandem::ps
