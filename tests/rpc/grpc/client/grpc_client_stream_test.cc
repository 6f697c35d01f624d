// SPDX-License-Identifier: Apache-2.0
// Tests the client of /tandem.v1.Data/Stream: with servers that send invalid data or do not read, and with
// several calls that share a stream.

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/rpc/stream_peers.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using testing::Connect;
using testing::DeferredCalls;
using testing::DeferringService;
using testing::EchoService;
using testing::FakeServer;
using ::testing::HasSubstr;
using testing::kEcho;
using testing::kTestTimeout;
using testing::Pattern;
using testing::PlainEchoService;
using testing::StartServer;

TEST(GrpcClientStreamTest, RequestsThatAClientKeepsAreBounded) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls));
  auto channel = Connect(*server, {.max_outstanding_bytes = 1 << 20});
  absl::Notification first;
  // A single call may exceed the limit.
  channel->CallAsync(kEcho, Bytes(std::string(2 << 20, 'x')), {}, [&](absl::StatusOr<Bytes> response) {
    TANDEM_EXPECT_OK(response);
    first.Notify();
  });
  auto parked = deferred_calls.Take();
  ASSERT_NE(parked, nullptr);
  EXPECT_THAT(
      channel->Call(kEcho, Bytes(std::string("x")), {}),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("ChannelOptions::max_outstanding_bytes"), HasSubstr("2097152 bytes"))));
  parked->Finish(Bytes());
  ASSERT_TRUE(first.WaitForNotificationWithTimeout(kTestTimeout));
  absl::Notification second;
  channel->CallAsync(kEcho, Bytes(std::string("x")), {}, [&](absl::StatusOr<Bytes> response) {
    TANDEM_EXPECT_OK(response);
    second.Notify();
  });
  parked = deferred_calls.Take();
  ASSERT_NE(parked, nullptr);
  parked->Finish(Bytes());
  EXPECT_TRUE(second.WaitForNotificationWithTimeout(kTestTimeout));
}

TEST(GrpcClientStreamTest, AServerThatSendsNonsenseIsNamedAndTheNextCallOpensAnotherStream) {
  v1::StreamFrame good;
  good.set_call(1);
  good.set_payload("at last");
  v1::StreamFrame stray;
  stray.set_call(77);
  v1::StreamFrame large;
  large.set_call(1);
  large.set_message_bytes(uint64_t{1} << 40);
  v1::StreamFrame batch;  // its second frame is invalid
  *batch.add_batch() = large;
  *batch.add_batch() = v1::StreamFrame();
  v1::StreamFrame two;
  *two.add_batch() = good;
  *two.add_batch() = good;  // the call is over, as if it had been cancelled
  const std::vector<std::string> responses = {"\xff\xff nonsense", stray.SerializeAsString(),
                                              batch.SerializeAsString(), large.SerializeAsString(),
                                              two.SerializeAsString()};
  FakeServer server([&](int n) { return responses[n]; });
  auto connected = ConnectGrpc(server.target());
  TANDEM_ASSERT_OK(connected);
  Channel& channel = **connected;
  EXPECT_THAT(
      channel.Call(kEcho, Bytes(), {}),
      StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("broken stream"), HasSubstr("malformed"))));
  EXPECT_THAT(channel.Call(kEcho, Bytes(), {}), StatusIs(absl::StatusCode::kInternal, HasSubstr("call 77")));
  EXPECT_THAT(channel.Call(kEcho, Bytes(), {}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("numbered from 1")));
  EXPECT_THAT(channel.Call(kEcho, Bytes(), {}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1099511627776 bytes")));
  connected->reset();
  auto again = ConnectGrpc(server.target());
  TANDEM_ASSERT_OK(again);
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes response, (*again)->Call(kEcho, Bytes(), {}));
  EXPECT_EQ(response.Flatten(), "at last");
}

TEST(GrpcClientStreamTest, CallsThatAServerDoesNotReadEndAtTheirDeadline) {
  FakeServer server;
  auto connected = ConnectGrpc(server.target());
  TANDEM_ASSERT_OK(connected);
  absl::Mutex mutex;
  std::vector<absl::Status> ends;
  constexpr int kCalls = 16;
  for (int i = 0; i < kCalls; ++i) {
    (*connected)
        ->CallAsync(kEcho, Bytes(std::string(4 << 20, 'x')), {.timeout = absl::Seconds(1)},
                    [&](absl::StatusOr<Bytes> response) {
                      absl::MutexLock lock(&mutex);
                      ends.push_back(response.status());
                    });
  }
  {
    absl::MutexLock lock(&mutex);
    const auto all = [&] { return ends.size() == kCalls; };
    ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all), kTestTimeout));
    for (const absl::Status& end : ends) {
      EXPECT_THAT(end, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(kEcho)));
    }
    EXPECT_THAT(ends.back(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("bytes waited for the connection")));
  }
}

TEST(GrpcClientStreamTest, MessagesOfAllSizesTravelTogether) {
  auto server =
      StartServer(EchoService([](std::shared_ptr<ServerCall> call) { call->Finish(call->request()); }));
  auto channel = Connect(*server);
  std::mt19937 random(5);
  const std::string pattern = Pattern(5 << 20);
  constexpr int kCalls = 150;
  std::atomic<int> right{0};
  std::atomic<int> over{0};
  absl::Notification all;
  for (int i = 0; i < kCalls; ++i) {
    const size_t size = i % 3 == 0 ? random() % (5 << 20) : random() % 5000;
    const size_t offset = random() % (pattern.size() - size);
    const absl::string_view sent = absl::string_view(pattern).substr(offset, size);
    channel->CallAsync(kEcho, Bytes(std::string(sent)), {.timeout = kTestTimeout},
                       [&, sent](absl::StatusOr<Bytes> response) {
                         if (response.ok() && response->Flatten() == sent) ++right;
                         if (++over == kCalls) all.Notify();
                       });
  }
  ASSERT_TRUE(all.WaitForNotificationWithTimeout(2 * kTestTimeout));
  EXPECT_EQ(right, kCalls);
}

// Calls that are started by the responses of one batch are sent together. A thread that calls at the same
// time need not wait for that.
TEST(GrpcClientStreamTest, CallsThatAnswersLeadToAreAllMade) {
  auto server = StartServer(PlainEchoService());
  auto channel = Connect(*server);
  constexpr int kChains = 200;
  constexpr int kLength = 50;
  std::atomic<int> right{0};
  std::atomic<int> chains{kChains};
  absl::Notification all;
  std::function<void(int, int)> next = [&](int chain, int step) {
    const std::string text = "\x0a\x06" + absl::StrCat(100 + chain, 100 + step);
    channel->CallAsync(kEcho, Bytes(text), {.timeout = kTestTimeout},
                       [&, chain, step, text](absl::StatusOr<Bytes> response) {
                         if (response.ok() && response->Flatten() == text) ++right;
                         if (step + 1 < kLength) return next(chain, step + 1);
                         if (--chains == 0) all.Notify();
                       });
  };
  std::thread other([&] {
    for (int i = 0; i < 200; ++i) TANDEM_EXPECT_OK(channel->Call(kEcho, Bytes(), {.timeout = kTestTimeout}));
  });
  for (int chain = 0; chain < kChains; ++chain) next(chain, 0);
  EXPECT_TRUE(all.WaitForNotificationWithTimeout(2 * kTestTimeout));
  other.join();
  EXPECT_EQ(right, kChains * kLength);
}

// A connection that sends as fast as it can does not delay another one by more than a message at a time.
TEST(GrpcClientStreamTest, ABusyConnectionDoesNotStarveAnother) {
  auto server = StartServer(EchoService([](std::shared_ptr<ServerCall> call) { call->Finish(Bytes()); }),
                            {.threads = 1});
  auto busy = Connect(*server);
  auto quiet = Connect(*server);
  TANDEM_ASSERT_OK(quiet->Call(kEcho, Bytes(), {}));
  constexpr int kInFlight = 256;
  const auto rows = std::make_shared<std::string>(256 << 10, 'x');
  std::atomic<bool> stop{false};
  std::atomic<int> pushed{0};
  // A pointer of its own: responses that arrive while the channel is destroyed still use it.
  std::function<void()> push = [&, channel = busy.get()] {
    channel->CallAsync(kEcho, Bytes(Slice(rows, rows->data(), rows->size())), {},
                       [&](absl::StatusOr<Bytes> response) {
                         ++pushed;
                         if (response.ok() && !stop) push();
                       });
  };
  for (int i = 0; i < kInFlight; ++i) push();
  constexpr int kPings = 40;
  const int before = pushed;
  for (int i = 0; i < kPings; ++i) TANDEM_ASSERT_OK(quiet->Call(kEcho, Bytes(), {}));
  const int meanwhile = pushed - before;
  stop = true;
  busy.reset();
  // If a ping waited for all messages that the busy connection has sent, this would be kInFlight.
  EXPECT_LT(meanwhile / kPings, kInFlight / 2);
}

TEST(GrpcClientStreamTest, BlockingAndOtherCallsShareAChannel) {
  auto server = StartServer(PlainEchoService());
  auto channel = Connect(*server);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string text = "\x0a\x03" + absl::StrCat(100 + t);
        const absl::StatusOr<Bytes> response = channel->Call(kEcho, Bytes(text), {.timeout = kTestTimeout});
        if (!response.ok() || response->Flatten() != text) ++wrong;
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    absl::Notification over;
    channel->CallAsync(kEcho, Bytes(), {.timeout = kTestTimeout}, [&](absl::StatusOr<Bytes> response) {
      if (!response.ok()) ++wrong;
      over.Notify();
    });
    ASSERT_TRUE(over.WaitForNotificationWithTimeout(kTestTimeout));
  }
  for (std::thread& thread : threads) thread.join();
  // First a single thread that receives for itself, then none.
  for (int i = 0; i < 200; ++i) {
    const absl::StatusOr<Bytes> response = channel->Call(kEcho, Bytes(), {.timeout = kTestTimeout});
    if (!response.ok()) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tandem::rpc
