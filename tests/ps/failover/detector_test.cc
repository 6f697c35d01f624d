// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/detector.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

constexpr absl::Duration kLease = absl::Seconds(2);
constexpr absl::Duration kSilence = absl::Seconds(1);

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
  detector.StartLink("a", now);
  now += absl::Seconds(60);
  detector.Tick(now);
  EXPECT_FALSE(detector.IsPrimaryLost(now));
  EXPECT_TRUE(detector.TakeChanges(now).silent.empty());
  // A follower may have taken over meanwhile.
  EXPECT_FALSE(detector.HoldsLease({"a"}, now));
}

TEST(DetectorTest, MessagesThatWereHandledAfterASleepAreNotMovedToALaterTime) {
  Detector detector(kLease, kSilence);
  absl::Time now = absl::UnixEpoch();
  detector.Tick(now);
  detector.Follow(now);
  detector.StartLink("a", now);
  now += absl::Seconds(60);
  detector.PrimaryHeard(now);
  detector.FollowerHeard("a", now);
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
  detector.StartLink("a", now);
  RunUntil(&detector, &now, absl::UnixEpoch() + kSilence);
  EXPECT_EQ(detector.TakeChanges(now).silent, std::vector<std::string>{"a"});
  // The answer to a message that was sent longer ago than `silence`.
  detector.FollowerHeard("a", now - kSilence);
  EXPECT_TRUE(detector.TakeChanges(now).silent.empty());
  detector.ReportSilenceAgain("a");
  EXPECT_EQ(detector.TakeChanges(now).silent, std::vector<std::string>{"a"});
  detector.ReportSilenceAgain("a");
  detector.FollowerHeard("a", now);
  EXPECT_TRUE(detector.TakeChanges(now).silent.empty());
}

TEST(DetectorTest, ASilentFollowerIsReportedOnceAndAgainWhenItIsHeard) {
  Detector detector(kLease, kSilence);
  absl::Time now = absl::UnixEpoch();
  detector.StartLink("a", now);
  RunUntil(&detector, &now, absl::UnixEpoch() + kSilence);
  EXPECT_EQ(detector.TakeChanges(now).silent, std::vector<std::string>{"a"});
  EXPECT_TRUE(detector.TakeChanges(now).silent.empty());
  detector.FollowerHeard("a", now);
  EXPECT_EQ(detector.TakeChanges(now).heard, std::vector<std::string>{"a"});
  EXPECT_TRUE(detector.TakeChanges(now).heard.empty());
}

TEST(DetectorTest, TheLeaseCountsFromTheTimeAtWhichTheAnsweredMessageWasSent) {
  Detector detector(kLease, kSilence);
  absl::Time now = absl::UnixEpoch();
  detector.StartLink("a", now);
  const absl::Time sent = now + absl::Milliseconds(500);
  RunUntil(&detector, &now, absl::UnixEpoch() + absl::Milliseconds(1900));
  detector.FollowerHeard("a", sent);
  EXPECT_TRUE(detector.HoldsLease({"a"}, sent + kLease - absl::Milliseconds(1)));
  EXPECT_FALSE(detector.HoldsLease({"a"}, sent + kLease));
  EXPECT_FALSE(detector.HoldsLease({"a", "unknown"}, now));
  EXPECT_TRUE(detector.HoldsLease({}, now));
}

}  // namespace
}  // namespace tandem::ps
