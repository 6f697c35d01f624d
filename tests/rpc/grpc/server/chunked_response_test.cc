// SPDX-License-Identifier: Apache-2.0
// Tests responses that are produced while they are sent and consumed while they arrive.

#include <atomic>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "rpc/wire/response_source.h"
#include "tests/rpc/stream_peers.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using testing::Connect;
using testing::EchoService;
using testing::kEcho;
using testing::kTestTimeout;
using testing::Pattern;
using testing::Request;
using testing::StartServer;
using testing::StockStream;

// Assembles a response and counts its chunks.
class Collector : public ResponseSink {
 public:
  void OnChunk(uint64_t offset, uint64_t total, Bytes chunk) override {
    absl::MutexLock lock(&mutex_);
    if (offset == 0) text_.clear();
    EXPECT_EQ(offset, text_.size());
    EXPECT_LE(offset + chunk.size(), total);
    text_ += chunk.Flatten();
    ++chunks_;
  }
  std::string text() const {
    absl::MutexLock lock(&mutex_);
    return text_;
  }
  int chunks() const {
    absl::MutexLock lock(&mutex_);
    return chunks_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::string text_;
  int chunks_ = 0;
};

// A response that is produced chunk by chunk; counts the chunks.
class PatternResponse : public ResponseSource {
 public:
  PatternResponse(std::string text, std::atomic<int>* made) : text_(std::move(text)), made_(made) {}
  size_t size() const override { return text_.size(); }
  Bytes Next(size_t limit) override {
    ++*made_;
    std::string chunk = text_.substr(at_, limit);
    at_ += chunk.size();
    return Bytes(std::move(chunk));
  }

 private:
  const std::string text_;
  std::atomic<int>* const made_;
  size_t at_ = 0;
};

TEST(ChunksTest, ALongAnswerIsMadeAndUsedPieceByPiece) {
  const std::string text = Pattern(5 * kFramePayload + 99);
  std::atomic<int> made{0};
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
    call->FinishInChunks(std::make_unique<PatternResponse>(text, &made));
  }));
  auto channel = Connect(*server);
  auto sink = std::make_shared<Collector>();
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes rest, channel->Call(kEcho, Bytes(), {.sink = sink}));
  EXPECT_TRUE(rest.empty());
  EXPECT_TRUE(sink->text() == text);
  EXPECT_EQ(sink->chunks(), 5);
  EXPECT_EQ(made, 5);
  // Callers that do not ask for chunks, or that call without the stream, get the whole response.
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes whole, channel->Call(kEcho, Bytes(), {}));
  EXPECT_TRUE(whole.Flatten() == text);
  auto unary = Connect(*server, {.stream = false});
  auto unused = std::make_shared<Collector>();
  TANDEM_ASSERT_OK_AND_ASSIGN(whole, unary->Call(kEcho, Bytes(), {.sink = unused}));
  EXPECT_TRUE(whole.Flatten() == text);
  EXPECT_EQ(unused->chunks(), 0);
}

TEST(ChunksTest, TheRestOfACancelledAnswerIsNotMade) {
  constexpr int kChunks = 512;  // more than sockets and flow-control windows can buffer
  std::atomic<int> made{0};
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
    call->FinishInChunks(
        std::make_unique<PatternResponse>(std::string(size_t{kChunks} * kFramePayload, 'x'), &made));
  }));
  StockStream stream(*server);
  ASSERT_TRUE(stream.Write(Request(1)));
  const v1::StreamFrame first = stream.Read();
  EXPECT_EQ(first.message_bytes(), size_t{kChunks} * kFramePayload);
  EXPECT_EQ(first.payload().size(), kFramePayload);
  v1::StreamFrame cancel;
  cancel.set_call(1);
  cancel.set_cancel(true);
  ASSERT_TRUE(stream.Write(cancel));
  ASSERT_TRUE(stream.Write(Request(2, "", "/tandem.v1.Echo/Shout")));
  v1::StreamFrame frame = stream.Read();
  while (frame.call() == 1) frame = stream.Read();
  EXPECT_EQ(frame.call(), 2);
  EXPECT_LT(made, kChunks / 4)
      << "far more than max_unsent_response_bytes was left of it: it keeps no cancel waiting";
}

// After a pull has ended, its rows belong to the caller again.
TEST(ChunksTest, NoPieceComesOnceTheCallHasEnded) {
  const std::string text = Pattern(64 * kFramePayload);
  std::atomic<int> made{0};
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
    call->FinishInChunks(std::make_unique<PatternResponse>(text, &made));
  }));
  auto channel = Connect(*server);
  class Guard : public ResponseSink {
   public:
    void OnChunk(uint64_t offset, uint64_t total, Bytes chunk) override {
      absl::MutexLock lock(&mutex_);
      EXPECT_FALSE(over_);
      ++chunks_;
    }
    void Over() {
      absl::MutexLock lock(&mutex_);
      over_ = true;
    }
    // Waits for `chunks` chunks or the end of the call.
    bool Await(int chunks) {
      absl::MutexLock lock(&mutex_);
      const auto enough = [&] { return over_ || chunks_ >= chunks; };
      return mutex_.AwaitWithTimeout(absl::Condition(&enough), kTestTimeout);
    }

   private:
    absl::Mutex mutex_;
    bool over_ ABSL_GUARDED_BY(mutex_) = false;
    int chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  };
  for (int i = 0; i < 20; ++i) {
    auto sink = std::make_shared<Guard>();
    std::stop_source outside;
    absl::Notification over;
    channel->CallAsync(kEcho, Bytes(), {.cancel = outside.get_token(), .sink = sink},
                       [&](absl::StatusOr<Bytes>) {
                         sink->Over();
                         over.Notify();
                       });
    EXPECT_TRUE(sink->Await(i % 4));
    outside.request_stop();
    ASSERT_TRUE(over.WaitForNotificationWithTimeout(kTestTimeout));
  }
  // The stream can still be used.
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes whole, channel->Call(kEcho, Bytes(), {}));
  EXPECT_TRUE(whole.Flatten() == text);
}

}  // namespace
}  // namespace tandem::rpc
