// SPDX-License-Identifier: Apache-2.0
// Calls that any copy may answer, at copies that die, stop, refuse and change their roles.

#include "ps/client/route/follower_reading_channel.h"

#include <atomic>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/route/routed_channel.h"
#include "rpc/transport/loopback.h"
#include "tests/ps/client/route/fake_copies.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::testing::HasSubstr;
using testing::kTestTimeout;
using testing::StatusIs;

class FollowerReadingTest : public ::testing::Test {
 protected:
  static constexpr int kCopies = 3;

  void TearDown() override {
    channel_.reset();
    // Connections that a call has closed are closed by a thread of their own.
    EXPECT_TRUE(copies_.AwaitOpen(0));
  }
  void Connect(absl::Duration patience = kTestTimeout) {
    RoutedChannelOptions options = copies_.Options();
    options.follower_patience = patience;
    TANDEM_ASSERT_OK_AND_ASSIGN(channel_, ConnectRouted(std::move(options)));
  }
  // Starts a call of Read.
  void Start(const rpc::CallOptions& options, rpc::Channel::Done done) {
    auto* const copies = dynamic_cast<CopiesChannel*>(channel_.get());
    TANDEM_CHECK(copies != nullptr);
    copies->CallAnyCopy(FakeCopies::kRead, Bytes(std::string("r")), options, std::move(done));
  }
  absl::StatusOr<std::string> Read(absl::Duration timeout = kTestTimeout, std::stop_token cancel = {}) {
    absl::Notification over;
    absl::StatusOr<Bytes> answer;
    Start({.timeout = timeout, .idempotent = true, .cancel = std::move(cancel)},
          [&](absl::StatusOr<Bytes> result) {
            answer = std::move(result);
            over.Notify();
          });
    over.WaitForNotification();
    TANDEM_RETURN_IF_ERROR(answer);
    return answer->Flatten();
  }
  // Reads until `copy` has answered. Returns false after kTestTimeout or a failure.
  bool AwaitReadAt(int copy) {
    const absl::Time deadline = MonotonicNow() + kTestTimeout;
    while (MonotonicNow() < deadline) {
      const absl::StatusOr<std::string> answer = Read();
      if (!answer.ok()) {
        ADD_FAILURE() << answer.status();
        return false;
      }
      if (*answer == absl::StrCat(copy, ":r")) return true;
    }
    ADD_FAILURE() << "copy " << copy << " has answered no read";
    return false;
  }

  FakeCopies copies_{kCopies};
  std::unique_ptr<rpc::Channel> channel_;
};

TEST_F(FollowerReadingTest, ReadsAreSpreadOverAllCopiesAndOtherCallsGoToThePrimary) {
  Connect();
  for (int copy = 0; copy < kCopies; ++copy) ASSERT_TRUE(AwaitReadAt(copy));
  int answered[kCopies] = {};
  for (int i = 0; i < 30; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string answer, Read());
    ++answered[answer[0] - '0'];
  }
  EXPECT_THAT(answered, ::testing::ElementsAre(10, 10, 10));
  for (int i = 0; i < 10; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const Bytes echo,
                                channel_->Call(FakeCopies::kEcho, Bytes(std::string("e")),
                                               {.timeout = kTestTimeout, .idempotent = true}));
    EXPECT_EQ(echo.Flatten(), "0:e");
  }
}

TEST_F(FollowerReadingTest, WithoutSuchCallsNobodyConnectsToFollowers) {
  Connect();
  TANDEM_EXPECT_OK(channel_->Call(FakeCopies::kEcho, Bytes(std::string("e")),
                                  {.timeout = kTestTimeout, .idempotent = true}));
  EXPECT_EQ(copies_.opened(), 1);
}

TEST_F(FollowerReadingTest, ACallThatAFollowerRefusesOrLosesGoesOnAtThePrimary) {
  Connect();
  ASSERT_TRUE(AwaitReadAt(1));
  copies_.SetInSync(1);
  for (const absl::Status& error : {absl::OutOfRangeError("ask the primary"), absl::UnavailableError("gone"),
                                    absl::InternalError("odd")}) {
    copies_.Refuse(1, error);
    const int before = copies_.reached(1);
    const absl::Time deadline = MonotonicNow() + kTestTimeout;
    while (copies_.reached(1) == before) {
      ASSERT_LT(MonotonicNow(), deadline);
      TANDEM_ASSERT_OK_AND_ASSIGN(const std::string answer, Read());
      EXPECT_NE(answer, "1:r");
    }
    copies_.Refuse(1, absl::OkStatus());
    ASSERT_TRUE(AwaitReadAt(1));  // it has rested
  }
}

TEST_F(FollowerReadingTest, TheErrorOfThePrimaryIsTheError) {
  Connect();
  ASSERT_TRUE(AwaitReadAt(1));
  for (int copy = 0; copy < kCopies; ++copy) copies_.Refuse(copy, absl::NotFoundError("no such row"));
  for (int i = 0; i < 6; ++i) {
    EXPECT_THAT(Read(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("the primary of shard 3")));
  }
}

// A primary that is cut off, or is about to take over, refuses reads as a follower does.
TEST_F(FollowerReadingTest, AReadWaitsForAPrimaryThatDoesNotServeYet) {
  Connect();
  copies_.SetInSync(-1);
  copies_.Refuse(0, absl::OutOfRangeError("ask the primary"));
  const int before = copies_.reached(0);
  std::jthread reader([&] { TANDEM_EXPECT_OK(Read().status()); });
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  while (copies_.reached(0) == before) {
    ASSERT_LT(MonotonicNow(), deadline);
    std::this_thread::yield();
  }
  copies_.Refuse(0, absl::OkStatus());
}

TEST(FollowerSetTest, AFollowerWithoutAConnectionIsTriedOnceASecondHoweverOftenOthersAreRead) {
  const auto services = std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{
      {"test.Shard", {{"Read", rpc::Right::kRead, [](std::shared_ptr<rpc::ServerCall> call) {
                         call->Finish(call->request());
                       }}}}});
  std::atomic<int> tried{0}, opened{0};
  const auto set = std::make_shared<FollowerSet>(FollowerSet::Options{
      .open = [&](const std::string& address) -> absl::StatusOr<std::unique_ptr<rpc::Channel>> {
        if (address == "dead") {
          ++tried;
          return absl::UnavailableError("refused");
        }
        ++opened;
        return rpc::ConnectLoopback(services);
      }});
  v1::ShardPlacement placement;
  placement.add_in_sync()->set_address("dead");
  placement.add_in_sync()->set_address("alive");
  set->OnPlacement(placement);
  const std::unique_ptr<rpc::Channel> primary = rpc::ConnectLoopback(services);
  const absl::Time begin = MonotonicNow();
  int reads = 0;
  for (; reads < 300 || tried == 0 || opened == 0; ++reads) {
    ASSERT_LT(MonotonicNow() - begin, kTestTimeout);
    absl::Notification over;
    set->Call(*primary, FakeCopies::kRead, Bytes(std::string("r")),
              {.timeout = kTestTimeout, .idempotent = true}, [&](const absl::StatusOr<Bytes>& answer) {
                TANDEM_EXPECT_OK(answer.status());
                over.Notify();
              });
    over.WaitForNotification();
  }
  EXPECT_LE(tried, 1 + absl::ToDoubleSeconds(MonotonicNow() - begin));
  EXPECT_EQ(opened, 1);
  set->Close();
}

TEST_F(FollowerReadingTest, NoReadFailsWhileFollowersAndPrimariesDieAndStop) {
  Connect(/*patience=*/absl::Milliseconds(20));
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0};
  std::vector<std::jthread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&] {
      while (!stop) {
        const absl::StatusOr<std::string> answer = Read();
        TANDEM_EXPECT_OK(answer.status());
        ++reads;
      }
    });
  }
  const absl::Cleanup end = [&] { stop = true; };
  const auto more = [&] {
    const absl::Time deadline = MonotonicNow() + kTestTimeout;
    for (const int before = reads; reads < before + 30;) {
      if (MonotonicNow() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  };
  ASSERT_TRUE(more());
  copies_.Kill(1);
  ASSERT_TRUE(more());
  copies_.Stop(2);
  ASSERT_TRUE(more());
  copies_.Continue(2);
  ASSERT_TRUE(more());
  copies_.Kill(0);
  copies_.Promote(2);
  ASSERT_TRUE(more());
}

TEST_F(FollowerReadingTest, AFollowerThatIsNotInSyncAnyMoreGetsNoReads) {
  Connect();
  ASSERT_TRUE(AwaitReadAt(1));
  ASSERT_TRUE(AwaitReadAt(2));
  copies_.Hold(1, true);
  // A read is at the follower when that goes: it goes on at the primary.
  absl::Notification over;
  std::vector<std::jthread> readers;
  for (int r = 0; r < kCopies; ++r) {
    readers.emplace_back([&] { TANDEM_EXPECT_OK(Read().status()); });
  }
  ASSERT_TRUE(copies_.AwaitHeld(1, 1));
  copies_.SetInSync(2);
  readers.clear();
  copies_.Hold(1, false);
  const int before = copies_.reached(1);
  for (int i = 0; i < 20; ++i) TANDEM_EXPECT_OK(Read().status());
  EXPECT_EQ(copies_.reached(1), before);
}

TEST_F(FollowerReadingTest, ACallCanBeCancelledAndADeadlinePassesWhileAFollowerStandsStill) {
  Connect();
  ASSERT_TRUE(AwaitReadAt(1));
  for (int copy = 0; copy < kCopies; ++copy) copies_.Hold(copy, true);
  EXPECT_THAT(Read(absl::Milliseconds(50)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  std::vector<std::stop_source> stops(kCopies);
  std::vector<std::jthread> readers;
  for (int r = 0; r < kCopies; ++r) {
    readers.emplace_back([&, r] {
      EXPECT_THAT(Read(kTestTimeout, stops[static_cast<size_t>(r)].get_token()),
                  StatusIs(absl::StatusCode::kCancelled));
    });
  }
  for (std::stop_source& source : stops) source.request_stop();
}

TEST_F(FollowerReadingTest, TheEndOfTheChannelEndsReadsAtFollowersWithCancelled) {
  Connect();
  ASSERT_TRUE(AwaitReadAt(1));
  ASSERT_TRUE(AwaitReadAt(2));
  for (int copy = 0; copy < kCopies; ++copy) copies_.Hold(copy, true);
  std::atomic<int> cancelled{0};
  for (int i = 0; i < 6; ++i) {
    Start({.timeout = kTestTimeout, .idempotent = true}, [&](absl::StatusOr<Bytes> answer) {
      EXPECT_THAT(answer.status(), StatusIs(absl::StatusCode::kCancelled));
      ++cancelled;
    });
  }
  channel_.reset();
  EXPECT_EQ(cancelled, 6);
}

TEST_F(FollowerReadingTest, TheChannelMayBeDestroyedByTheLastCallThatItMakes) {
  Connect();
  ASSERT_TRUE(AwaitReadAt(1));
  for (int i = 0; i < kCopies; ++i) {
    absl::Notification over;
    Start({.timeout = kTestTimeout, .idempotent = true}, [&](absl::StatusOr<Bytes> answer) {
      TANDEM_EXPECT_OK(answer.status());
      channel_.reset();
      over.Notify();
    });
    ASSERT_TRUE(over.WaitForNotificationWithTimeout(kTestTimeout));
    Connect();
    if (i == 0) {
      ASSERT_TRUE(AwaitReadAt(2));
    }
  }
}

}  // namespace
}  // namespace tandem::ps
