// SPDX-License-Identifier: Apache-2.0
#include "ps/client/route/routed_channel.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/earlier_attempts.h"
#include "rpc/server.h"
#include "tests/ps/client/route/fake_copies.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kTestTimeout;
using testing::StatusIs;

rpc::CallOptions Repeated(std::stop_token cancel = {}) {
  return {.timeout = kTestTimeout, .idempotent = true, .cancel = std::move(cancel)};
}
rpc::CallOptions Once() { return {.timeout = kTestTimeout}; }

// A call that is under way.
class Pending {
 public:
  Pending(rpc::Channel& channel, const std::string& text, const rpc::CallOptions& options) {
    channel.CallAsync(FakeCopies::kEcho, Bytes(text), options, [this](absl::StatusOr<Bytes> answer) {
      answer_ = std::move(answer);
      over_.Notify();
    });
  }
  bool over() const { return over_.HasBeenNotified(); }
  // Returns the answer, "COPY:TEXT".
  absl::StatusOr<std::string> Wait() {
    over_.WaitForNotification();
    if (!answer_.ok()) return answer_.status();
    return answer_->Flatten();
  }

 private:
  absl::Notification over_;
  absl::StatusOr<Bytes> answer_;
};

std::unique_ptr<rpc::Channel> Connect(RoutedChannelOptions options) {
  absl::StatusOr<std::unique_ptr<rpc::Channel>> channel = ConnectRouted(std::move(options));
  TANDEM_CHECK(channel.ok());
  return *std::move(channel);
}

size_t Threads() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

// Blocks until the channel knows the followers of the first document.
void AwaitFollowersKnown(FakeCopies& copies, rpc::Channel& channel) {
  copies.Hold(0, true);
  Pending call(channel, "moved", Repeated());
  ASSERT_TRUE(copies.AwaitHeld(0, 1));
  copies.Promote(1);
  EXPECT_EQ(*call.Wait(), "1:moved");
  copies.Hold(0, false);
  copies.Promote(0);
  // Calls at copy 1 are refused from here on, so this one ends at copy 0.
  EXPECT_EQ(*Pending(channel, "back", Repeated()).Wait(), "0:back");
}

TEST(RoutedChannelTest, CallsGoToThePrimary) {
  FakeCopies copies(2);
  const auto channel = Connect(copies.Options());
  EXPECT_EQ(*Pending(*channel, "x", Once()).Wait(), "0:x");
  EXPECT_EQ(channel->transport(), "loopback");
  EXPECT_EQ(channel->target(), "the primary of shard 3");
  EXPECT_THAT(copies.executed(1), IsEmpty());
}

TEST(RoutedChannelTest, AChannelNeedsAnAddress) {
  EXPECT_THAT(ConnectRouted({.shard = 7}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shard 7 needs the address")));
}

TEST(RoutedChannelTest, ACallInFlightAtAPrimaryThatDiesIsRepeatedAtTheNextOne) {
  FakeCopies copies(2);
  const auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  copies.Hold(0, true);
  Pending call(*channel, "same bytes", Repeated());
  ASSERT_TRUE(copies.AwaitHeld(0, 1));
  copies.Kill(0);
  copies.Promote(1);
  EXPECT_EQ(*call.Wait(), "1:same bytes");
}

TEST(RoutedChannelTest, ACallInFlightAtAPrimaryThatIsStoppedIsRepeatedAtTheNextOne) {
  FakeCopies copies(2);
  const auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  copies.Stop(0);
  Pending call(*channel, "x", Repeated());
  ASSERT_TRUE(copies.AwaitHeld(0, 1));
  copies.Promote(1);
  EXPECT_EQ(*call.Wait(), "1:x");
  // The old primary goes on, and calls itself the primary. The calls stay with the new one.
  copies.Continue(0);
  EXPECT_EQ(*Pending(*channel, "y", Repeated()).Wait(), "1:y");
}

TEST(RoutedChannelTest, OfACallThatIsNotIdempotentNobodyKnowsAfterTheDeathOfThePrimary) {
  FakeCopies copies(2);
  const auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  const size_t before = copies.executed(1).size();
  copies.Hold(0, true);
  Pending killed(*channel, "x", Once());
  ASSERT_TRUE(copies.AwaitHeld(0, 1));
  copies.Kill(0);
  EXPECT_THAT(killed.Wait(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("copy-0")));
  copies.Promote(1);
  copies.Hold(1, true);
  Pending stopped(*channel, "y", Once());
  ASSERT_TRUE(copies.AwaitHeld(1, 1));
  copies.Continue(0);
  copies.Hold(0, false);
  copies.Promote(0);
  EXPECT_THAT(stopped.Wait(), StatusIs(absl::StatusCode::kUnavailable,
                                       AllOf(HasSubstr("copy-0, has become the primary"),
                                             HasSubstr("may or may not have been executed"))));
  EXPECT_EQ(copies.executed(1).size(), before);
}

TEST(RoutedChannelTest, CallsThatStartWithoutAPrimaryWaitForOneWithoutAThreadEach) {
  FakeCopies copies(2);
  const auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  copies.Kill(0);
  std::deque<Pending> calls;
  const size_t threads = Threads();
  for (int i = 0; i < 200; ++i) {
    calls.emplace_back(*channel, absl::StrCat(i), Repeated());
  }
  EXPECT_FALSE(calls.front().over());
  EXPECT_LT(Threads(), threads + 5);
  copies.Promote(1);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(*calls[static_cast<size_t>(i)].Wait(), absl::StrCat("1:", i));
}

TEST(RoutedChannelTest, ACallThatHasNotBeenSentWaitsEvenIfItIsNotIdempotent) {
  FakeCopies copies(2);
  const auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  copies.Kill(0);
  // The first call finds out that the primary is gone.
  EXPECT_THAT(Pending(*channel, "first", Once()).Wait(), StatusIs(absl::StatusCode::kUnavailable));
  Pending second(*channel, "second", Once());
  copies.Promote(1);
  EXPECT_EQ(*second.Wait(), "1:second");
}

TEST(RoutedChannelTest, ARefusalOfARepeatedCallHasEarlierAttempts) {
  FakeCopies copies(2);
  const auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  copies.Hold(0, true);
  Pending call(*channel, "x", Repeated());
  ASSERT_TRUE(copies.AwaitHeld(0, 1));
  copies.Refuse(1, absl::FailedPreconditionError("an older epoch"));
  copies.Kill(0);
  copies.Promote(1);
  const absl::Status refused = call.Wait().status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("copy-1: an older epoch")));
  EXPECT_TRUE(rpc::HadEarlierAttempts(refused));
}

TEST(RoutedChannelTest, AnErrorAtTheDeadlineNamesTheShardTheLastPrimaryAndWhatWasTried) {
  FakeCopies copies(2);
  RoutedChannelOptions options = copies.Options();
  options.locate = [](absl::Duration) -> absl::StatusOr<v1::ShardPlacement> {
    return absl::UnavailableError("the store is away");
  };
  const auto channel = Connect(std::move(options));
  AwaitFollowersKnown(copies, *channel);
  copies.Kill(0);
  absl::Status late;
  do {  // until the store has been asked
    late = Pending(*channel, "x", {.timeout = absl::Milliseconds(500), .idempotent = true}).Wait().status();
  } while (absl::IsDeadlineExceeded(late) && !absl::StrContains(late.message(), "the store is away"));
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded,
                             AllOf(HasSubstr("shard 3 has no primary; the last one was copy-0"),
                                   HasSubstr("copy-0 (the last primary): "), HasSubstr("connection refused"),
                                   HasSubstr("copy-1: is FOLLOWER"), HasSubstr("the store is away"))));
  const absl::Status unsent = Pending(*channel, "x", {.timeout = absl::Milliseconds(50)}).Wait().status();
  EXPECT_THAT(unsent, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("shard 3 has no primary")));
}

TEST(RoutedChannelTest, TheStoreNamesAPrimaryThatNoCopyKnows) {
  FakeCopies copies(2);
  RoutedChannelOptions options = copies.Options();
  options.locate = [&](absl::Duration) -> absl::StatusOr<v1::ShardPlacement> { return copies.document(); };
  const auto channel = Connect(std::move(options));
  copies.Kill(0);
  Pending call(*channel, "x", Repeated());
  copies.Promote(1, /*tell=*/false);
  EXPECT_TRUE(copies.AwaitReached(1));  // only the store has named it
  copies.Promote(1);
  EXPECT_EQ(*call.Wait(), "1:x");
}

TEST(RoutedChannelTest, APrimaryThatStopsBeforeItHasNamedItsFollowersIsReplacedByTheStoresWord) {
  FakeCopies copies(2);
  RoutedChannelOptions options = copies.Options();
  options.locate = [&](absl::Duration) -> absl::StatusOr<v1::ShardPlacement> { return copies.document(); };
  copies.Stop(0);
  const auto channel = Connect(std::move(options));
  Pending call(*channel, "x", Repeated());
  ASSERT_TRUE(copies.AwaitHeld(0, 1));
  copies.Promote(1);
  EXPECT_EQ(*call.Wait(), "1:x");
}

TEST(RoutedChannelTest, AFollowerThatJoinsIsKnownThoughAnotherCopyOwesAnAnswer) {
  FakeCopies copies(3);
  const auto channel = Connect(copies.Options());
  ASSERT_TRUE(copies.AwaitQuestion(1));
  copies.Stop(0);
  Pending call(*channel, "x", Repeated());
  ASSERT_TRUE(copies.AwaitHeld(0, 1));
  copies.Promote(1);
  EXPECT_EQ(*call.Wait(), "1:x");
  copies.SetInSync(-1);
  ASSERT_TRUE(copies.AwaitQuestion(1));
  copies.SetInSync(2);
  ASSERT_TRUE(copies.AwaitQuestion(2));
  copies.Kill(1);
  Pending next(*channel, "y", Repeated());
  copies.Promote(2);
  EXPECT_EQ(*next.Wait(), "2:y");
}

TEST(RoutedChannelTest, AnOlderDocumentDoesNotBringCallsBack) {
  FakeCopies copies(3);
  const auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  copies.Stop(0);  // it takes itself for the primary for ever
  Pending first(*channel, "x", Repeated());
  ASSERT_TRUE(copies.AwaitHeld(0, 1));
  copies.Promote(1);
  EXPECT_EQ(*first.Wait(), "1:x");
  copies.Continue(0);
  copies.Kill(1);
  Pending second(*channel, "y", Repeated());
  copies.Promote(2, /*tell=*/false);  // copy 0 still believes what it knew
  EXPECT_FALSE(second.over());
  copies.Promote(2);
  EXPECT_EQ(*second.Wait(), "2:y");
}

TEST(RoutedChannelTest, APrimaryThatRefusesForAWhileKeepsItsCalls) {
  FakeCopies copies(2);
  const auto channel = Connect(copies.Options());
  copies.Refuse(0, absl::UnavailableError("it has lost its followers"));
  Pending call(*channel, "x", Repeated());
  ASSERT_TRUE(copies.AwaitReached(0));
  EXPECT_FALSE(call.over());
  copies.Refuse(0, absl::OkStatus());
  EXPECT_EQ(*call.Wait(), "0:x");
  EXPECT_EQ(copies.opened(), 1);
}

TEST(RoutedChannelTest, ConnectionsToOldPrimariesAreClosed) {
  FakeCopies copies(3);
  const auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  for (int i = 0; i < 10; ++i) {
    const int next = (i + 1) % 3;
    copies.Promote(next);
    EXPECT_EQ(*Pending(*channel, "x", Repeated()).Wait(), absl::StrCat(next, ":x"));
  }
  EXPECT_TRUE(copies.AwaitOpen(1));
  EXPECT_GE(copies.opened(), 10);
}

TEST(RoutedChannelTest, CallsAreCancelledInEveryState) {
  FakeCopies copies(2);
  const auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  // A call in flight.
  copies.Hold(0, true);
  std::stop_source in_flight;
  Pending first(*channel, "x", Repeated(in_flight.get_token()));
  ASSERT_TRUE(copies.AwaitHeld(0, 1));
  in_flight.request_stop();
  EXPECT_THAT(first.Wait(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  // Calls that wait for a primary.
  copies.Kill(0);
  std::stop_source waiting;
  std::deque<Pending> calls;
  for (int i = 0; i < 20; ++i) {
    calls.emplace_back(*channel, "x", Repeated(waiting.get_token()));
  }
  waiting.request_stop();
  for (Pending& call : calls) {
    EXPECT_THAT(call.Wait(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  }
  // A call that is cancelled before it starts.
  EXPECT_THAT(Pending(*channel, "x", Repeated(waiting.get_token())).Wait(),
              StatusIs(absl::StatusCode::kCancelled));
  copies.Promote(1);
  EXPECT_EQ(*Pending(*channel, "y", Repeated()).Wait(), "1:y");
}

TEST(RoutedChannelTest, TheDestructorEndsCallsInEveryState) {
  FakeCopies copies(2);
  auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  copies.Hold(0, true);
  Pending in_flight(*channel, "x", Repeated());
  ASSERT_TRUE(copies.AwaitHeld(0, 1));
  channel.reset();
  EXPECT_THAT(in_flight.Wait(), StatusIs(absl::StatusCode::kCancelled));
  channel = Connect(copies.Options());
  copies.Kill(0);
  Pending waiting(*channel, "x", Repeated());
  channel.reset();
  EXPECT_THAT(waiting.Wait(), StatusIs(absl::StatusCode::kCancelled));
}

TEST(RoutedChannelTest, AChannelMayBeDestroyedInTheDoneOfACallThatHasMoved) {
  FakeCopies copies(2);
  auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  copies.Hold(0, true);
  absl::Notification destroyed;
  channel->CallAsync(FakeCopies::kEcho, Bytes(std::string("x")), Once(), [&](absl::StatusOr<Bytes>) {
    channel.reset();
    destroyed.Notify();
  });
  ASSERT_TRUE(copies.AwaitHeld(0, 1));
  copies.Promote(1);
  destroyed.WaitForNotification();
  EXPECT_TRUE(copies.AwaitOpen(0));
}

class Counter {
 public:
  void Add() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  bool AwaitMore(int more) {
    absl::MutexLock lock(&mutex_);
    const auto there = [this, wanted = count_ + more] { return count_ >= wanted; };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), kTestTimeout);
  }

 private:
  absl::Mutex mutex_;
  int count_ = 0;
};

TEST(RoutedChannelTest, EveryCallIsAnsweredWhilePrimariesComeAndGo) {
  FakeCopies copies(3);
  const auto channel = Connect(copies.Options());
  AwaitFollowersKnown(copies, *channel);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  Counter answered;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      CounterRandom random(static_cast<uint64_t>(t) + 1, 5);
      for (int i = 0; !over; ++i) {
        const std::string text = absl::StrCat(t, "/", i);
        std::stop_source stop;
        const bool stops = random.Below(8) == 0;
        Pending call(*channel, text, Repeated(stops ? stop.get_token() : std::stop_token()));
        if (stops) stop.request_stop();
        const absl::StatusOr<std::string> answer = call.Wait();
        if (answer.ok()) {
          EXPECT_EQ(answer->substr(2), text);
          answered.Add();
        } else {
          EXPECT_TRUE(stops && absl::IsCancelled(answer.status())) << answer.status();
        }
      }
    });
  }
  const auto join = absl::MakeCleanup([&] {
    over = true;
    for (std::thread& thread : threads) thread.join();
  });
  CounterRandom random(9, 9);
  int primary = 0;
  for (int event = 0; event < 30; ++event) {
    ASSERT_TRUE(answered.AwaitMore(20));
    const int next = (primary + 1 + static_cast<int>(random.Below(2))) % 3;
    const uint64_t how = random.Below(3);
    if (how == 0) copies.Kill(primary);
    if (how == 1) copies.Stop(primary);
    copies.Promote(next);
    ASSERT_TRUE(answered.AwaitMore(1));
    copies.Continue(primary);
    copies.Promote(next);  // tells the old one
    primary = next;
  }
}

// A process with an Echo service that takes the place of another one.
class RealCopy {
 public:
  explicit RealCopy(std::shared_ptr<v1::ShardPlacement> document, std::shared_ptr<absl::Mutex> mutex)
      : document_(std::move(document)), mutex_(std::move(mutex)) {
    absl::StatusOr<std::unique_ptr<rpc::Server>> server = rpc::Server::Start(
        {}, {{"test.Shard",
              {{"Echo", rpc::Right::kRead,
                [](std::shared_ptr<rpc::ServerCall> call) { call->Finish(Bytes(call->request())); }}}},
             {"tandem.v1.Failover",
              {{"GetPlacement", rpc::Right::kObserve,
                rpc::ProtoHandler<v1::GetPlacementRequest, v1::ReplicaStatus>(
                    [this](const v1::GetPlacementRequest&) -> absl::StatusOr<v1::ReplicaStatus> {
                      absl::MutexLock lock(mutex_.get());
                      v1::ReplicaStatus status;
                      *status.mutable_placement() = *document_;
                      return status;
                    })}}}});
    TANDEM_CHECK(server.ok());
    server_ = *std::move(server);
    address_ = absl::StrCat("127.0.0.1:", server_->port());
  }
  const std::string& address() const { return address_; }
  void End() { server_.reset(); }

 private:
  const std::shared_ptr<v1::ShardPlacement> document_;
  const std::shared_ptr<absl::Mutex> mutex_;
  std::unique_ptr<rpc::Server> server_;
  std::string address_;
};

TEST(RoutedChannelTest, ARequestInSharedMemoryOfAPrimaryThatHasEndedReachesTheNextOne) {
  auto document = std::make_shared<v1::ShardPlacement>();
  auto mutex = std::make_shared<absl::Mutex>();
  auto first = std::make_unique<RealCopy>(document, mutex);
  RealCopy second(document, mutex);
  const auto name = [&](const RealCopy& primary) {
    absl::MutexLock lock(mutex.get());
    document->set_version(document->version() + 1);
    document->mutable_primary()->set_address(primary.address());
    document->mutable_primary()->set_id(primary.address());
  };
  name(*first);
  const auto channel = Connect({.shard = 0,
                                .addresses = {first->address(), second.address()},
                                .connect = {.offer_timeout = kTestTimeout}});
  ASSERT_EQ(channel->transport(), "shm");
  constexpr size_t kBytes = size_t{1} << 20;
  std::shared_ptr<char> memory = channel->RequestMemory(kBytes);
  ASSERT_NE(memory, nullptr);
  std::memset(memory.get(), 'a', kBytes);
  first->End();
  name(second);
  // The connection to the first one is closed by now or soon; the memory lives on.
  const Slice slice(memory, memory.get(), kBytes);
  for (int i = 0; i < 3; ++i) {
    absl::Notification over;
    channel->CallAsync(FakeCopies::kEcho, Bytes(slice), Repeated(), [&](absl::StatusOr<Bytes> answer) {
      TANDEM_EXPECT_OK(answer);
      EXPECT_TRUE(answer.ok() && answer->Flatten() == std::string(kBytes, 'a'));
      over.Notify();
    });
    over.WaitForNotification();
  }
  EXPECT_EQ(channel->transport(), "shm");
  std::memset(memory.get(), 'b', kBytes);
  memory.reset();
}

TEST(RoutedChannelTest, AThreadThatPollsForItselfIsAnsweredByTheNextPrimary) {
  auto document = std::make_shared<v1::ShardPlacement>();
  auto mutex = std::make_shared<absl::Mutex>();
  auto first = std::make_unique<RealCopy>(document, mutex);
  RealCopy second(document, mutex);
  const auto name = [&](const RealCopy& primary) {
    absl::MutexLock lock(mutex.get());
    document->set_version(document->version() + 1);
    document->mutable_primary()->set_address(primary.address());
    document->mutable_primary()->set_id(primary.address());
  };
  name(*first);
  const auto channel = Connect({.shard = 0, .addresses = {first->address(), second.address()}});
  const auto call = [&] {
    absl::Notification over;
    absl::Status status;
    channel->PrepareInlinePoll();
    channel->CallAsync(FakeCopies::kEcho, Bytes(std::string("x")), Repeated(),
                       [&](absl::StatusOr<Bytes> answer) {
                         status = answer.status();
                         over.Notify();
                       });
    channel->InlinePoll([&] { return over.HasBeenNotified(); }, MonotonicNow() + kTestTimeout);
    over.WaitForNotification();
    return status;
  };
  for (int i = 0; i < 10; ++i) TANDEM_EXPECT_OK(call());
  first->End();
  name(second);
  for (int i = 0; i < 10; ++i) TANDEM_EXPECT_OK(call());
}

}  // namespace
}  // namespace tandem::ps
