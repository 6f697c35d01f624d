// SPDX-License-Identifier: Apache-2.0
// Read-only pulls at followers, without a network.

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/wire/bulk_codec.h"
#include "tests/ps/failover/copies.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kAnyLag = absl::Hours(1);

struct Answer {
  v1::PullResponse header;
  std::vector<float> rows;
};

// Pulls rows of the table "user" as a client with ClientOptions::max_lag does.
absl::StatusOr<Answer> Read(ServerCopy& copy, absl::Duration max_lag, const std::vector<uint64_t>& ids,
                            bool read_only = true, uint64_t step = 0) {
  v1::PullRequest header;
  Bytes payload;
  TANDEM_CHECK(
      rpc::DecodeBulk(PullRequestBytes(0, step, {{"user", ids}}, read_only), &header, &payload).ok());
  header.set_max_lag_us(static_cast<uint64_t>(absl::ToInt64Microseconds(max_lag)));
  TANDEM_ASSIGN_OR_RETURN(const Bytes response,
                          copy->Start("Pull", rpc::EncodeBulk(header, std::move(payload)))->Wait());
  Answer answer;
  Bytes rows;
  TANDEM_CHECK(rpc::DecodeBulk(response, &answer.header, &rows).ok());
  answer.rows.resize(rows.size() / sizeof(float));
  BytesReader reader(rows);
  TANDEM_CHECK(reader.Copy(answer.rows.data(), rows.size()));
  return answer;
}

// Waits until the follower has applied what the primary had at this moment: then every lag of a minute shows
// it. Returns false after a minute.
bool AwaitApplied(ServerCopy& primary, ServerCopy& follower) {
  const uint64_t position = primary.log().last_position();
  const absl::Time deadline = MonotonicNow() + kTestDeadline;
  while (follower.path().receiver().state().applied_position < position ||
         follower.path().follower_reads().lag == absl::InfiniteDuration()) {
    if (MonotonicNow() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(FollowerReads, AFollowerAnswersReadOnlyPullsThatAllowALagAndNothingElse) {
  ServerCopy follower("f"), primary("p");
  primary.Lead();
  TANDEM_ASSERT_OK(primary->CreateTable(CountTable(1, Async())));
  TANDEM_ASSERT_OK(primary->Push({.step = 0}, {CountPush(0, 0)}));
  primary.Attach(follower);
  primary.AwaitFollower(follower);
  TANDEM_ASSERT_OK(primary->Push({.step = 1}, {CountPush(0, 1)}));
  ASSERT_TRUE(AwaitApplied(primary, follower));

  TANDEM_ASSERT_OK_AND_ASSIGN(const Answer read, Read(follower, kAnyLag, {kShared, PrivateRow(0, 1), 999}));
  EXPECT_THAT(read.rows, ::testing::ElementsAre(2, 1, 0));
  EXPECT_TRUE(read.header.from_follower());
  EXPECT_LE(read.header.lag_us(), absl::ToInt64Microseconds(kAnyLag));
  // The absent row was not created, and the pull is not counted as one of training.
  EXPECT_EQ(follower->Table("user").statistics().rows(), 3u);
  EXPECT_EQ(follower->Table("user").statistics().pulled_rows(), 0u);

  const auto not_primary = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("does not serve"));
  EXPECT_THAT(Read(follower, kAnyLag, {kShared}, /*read_only=*/false), not_primary);
  EXPECT_THAT(Read(follower, absl::ZeroDuration(), {kShared}), not_primary);
  EXPECT_THAT(follower->Push({.step = 2}, {CountPush(0, 2)}), not_primary);
  EXPECT_THAT(
      Read(follower, absl::Microseconds(1), {kShared}),
      StatusIs(absl::StatusCode::kOutOfRange, AllOf(HasSubstr("behind its primary"), HasSubstr("allows 1us"),
                                                    HasSubstr("ask the primary"))));
  const DataPath::FollowerReads counts = follower.path().follower_reads();
  EXPECT_EQ(counts.served, 1u);
  EXPECT_EQ(counts.refused, 1u);

  // A primary answers whatever lag is allowed.
  TANDEM_ASSERT_OK_AND_ASSIGN(const Answer newest, Read(primary, absl::Microseconds(1), {kShared}));
  EXPECT_FALSE(newest.header.from_follower());
  EXPECT_THAT(newest.rows, ::testing::ElementsAre(2));
}

TEST(FollowerReads, AFollowerThatWasSuspendedIsBehindByThatTime) {
  std::atomic<int64_t> suspended_s{0};
  ServerCopy follower(
      "f", {.boot_time = [&suspended_s] { return BootTimeNow() + absl::Seconds(suspended_s.load()); }});
  ServerCopy primary("p");
  primary.Lead();
  TANDEM_ASSERT_OK(primary->CreateTable(CountTable(1, Async())));
  TANDEM_ASSERT_OK(primary->Push({.step = 0}, {CountPush(0, 0)}));
  primary.Attach(follower);
  primary.AwaitFollower(follower);
  ASSERT_TRUE(AwaitApplied(primary, follower));
  TANDEM_ASSERT_OK(Read(follower, kAnyLag, {kShared}));
  // It hears its primary no more, which may have more records since.
  follower.CutOff();
  suspended_s = absl::ToInt64Seconds(2 * kAnyLag);
  EXPECT_THAT(Read(follower, kAnyLag, {kShared}),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("behind its primary")));
}

TEST(FollowerReads, WrongRequestsAreRefusedByName) {
  ServerCopy follower("f"), primary("p");
  primary.Lead();
  TANDEM_ASSERT_OK(primary->CreateTable(CountTable(1, Async(), "other")));
  primary.Attach(follower);
  primary.AwaitFollower(follower);
  ASSERT_TRUE(AwaitApplied(primary, follower));
  EXPECT_THAT(Read(follower, kAnyLag, {kShared}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'user'")));
  EXPECT_THAT(follower->Start("Pull", Bytes(std::string("\xff\xff")))->Wait(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(FollowerReads, ACopyIsNotReadBeforeItIsCompleteNorWhileItTakesOver) {
  ServerCopy follower("f"), primary("p");
  primary.Lead();
  TANDEM_ASSERT_OK(primary->CreateTable(CountTable(1, Async())));
  const auto asks_primary = StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("ask the primary"));
  EXPECT_THAT(Read(follower, kAnyLag, {kShared}), asks_primary);
  follower.CutAfter(1);  // the rest of the copy does not come
  primary.Attach(follower);
  const absl::Time deadline = MonotonicNow() + kTestDeadline;
  while (follower.path().receiver().state().stored_number < 1) {
    ASSERT_LT(MonotonicNow(), deadline);
    std::this_thread::yield();
  }
  EXPECT_THAT(Read(follower, kAnyLag, {kShared}), asks_primary);
  follower.CutAfter(~uint64_t{0});
  primary.AwaitFollower(follower);
  ASSERT_TRUE(AwaitApplied(primary, follower));
  TANDEM_EXPECT_OK(Read(follower, kAnyLag, {kShared}));
  follower.path().receiver().Close("it takes over");
  EXPECT_THAT(Read(follower, kAnyLag, {kShared}), asks_primary);
  follower.ApplyReceived();
  follower.Lead(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Answer answer, Read(follower, absl::Microseconds(1), {kShared}));
  EXPECT_FALSE(answer.header.from_follower());
}

TEST(FollowerReads, APullThatWouldWaitForAPushIsSentToThePrimary) {
  ServerCopy follower("f"), primary("p");
  primary.Lead();
  TANDEM_ASSERT_OK(primary->CreateTable(CountTable(2, Sync())));
  primary.Attach(follower);
  primary.AwaitFollower(follower);
  TANDEM_ASSERT_OK(primary->Push({.worker = 0, .step = 0}, {CountPush(0, 0)}));
  ASSERT_TRUE(AwaitApplied(primary, follower));
  EXPECT_THAT(
      Read(follower, kAnyLag, {kShared}, /*read_only=*/true, /*step=*/1),
      StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("waits for the push of step 0 from worker 1")));
  TANDEM_ASSERT_OK(primary->Push({.worker = 1, .step = 0}, {CountPush(1, 0)}));
  ASSERT_TRUE(AwaitApplied(primary, follower));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Answer answer, Read(follower, kAnyLag, {kShared}, true, /*step=*/1));
  EXPECT_THAT(answer.rows, ::testing::ElementsAre(2));
}

// Pushes and reads at the same time, in the modes that apply pushes on arrival. The bound of each read is
// checked: the rows have every push that was acknowledged before the lag that the read tells.
TEST(FollowerReads, WhileThePrimaryIsUnderLoadReadsHaveEverythingThatIsOlderThanTheirLag) {
  for (const v1::UpdateMode& mode : {Async(), Bounded(3)}) {
    ServerCopy follower("f"), primary("p");
    primary.Lead();
    TANDEM_ASSERT_OK(primary->CreateTable(CountTable(1, mode)));
    primary.Attach(follower);
    primary.AwaitFollower(follower);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> acknowledged{0};
    std::jthread pushes([&] {
      for (uint64_t step = 0; !stop; ++step) {
        TANDEM_EXPECT_OK(primary->Push({.step = step}, {CountPush(0, step)}));
        acknowledged = step + 1;
      }
    });
    const absl::Cleanup end = [&] { stop = true; };
    // (time, number of pushes acknowledged before), oldest first.
    std::vector<std::pair<absl::Time, uint64_t>> history;
    const absl::Time deadline = MonotonicNow() + kTestDeadline;
    float before = 0;
    int checked = 0;
    while (checked < 300) {
      ASSERT_LT(MonotonicNow(), deadline);
      const uint64_t count = acknowledged;
      history.emplace_back(MonotonicNow(), count);
      const absl::StatusOr<Answer> read = Read(follower, absl::Milliseconds(300), {kShared});
      if (!read.ok()) {
        ASSERT_THAT(read, StatusIs(absl::StatusCode::kOutOfRange));
        continue;
      }
      ASSERT_LE(read->header.lag_us(), 300000u);
      const absl::Time certain = history.back().first - absl::Microseconds(read->header.lag_us() + 1);
      auto later = std::upper_bound(history.begin(), history.end(), certain,
                                    [](absl::Time time, const auto& entry) { return time < entry.first; });
      if (later != history.begin()) {
        ASSERT_GE(read->rows[0], static_cast<float>(std::prev(later)->second));
        if (std::prev(later)->second > 0) ++checked;
      }
      ASSERT_GE(read->rows[0], before);  // one copy never goes back
      before = read->rows[0];
    }
  }
}

}  // namespace
}  // namespace tandem::ps::testing
