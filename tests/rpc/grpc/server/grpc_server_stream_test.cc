// SPDX-License-Identifier: Apache-2.0
// Tests the server of /tandem.v1.Data/Stream: with frames that no Tandem client sends, and with slow clients.

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
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
using ::testing::HasSubstr;
using testing::kEcho;
using testing::kTestTimeout;
using testing::PlainEchoService;
using testing::Request;
using testing::StartServer;
using testing::StockStream;

// Reads frames to the end; returns the responses among them by call.
std::string ReadToEnd(StockStream* stream) {
  std::string calls;
  for (v1::StreamFrame frame = stream->Read(); frame.call() != 0; frame = stream->Read()) {
    absl::StrAppend(&calls, frame.call(), " ");
  }
  return calls;
}

TEST(StreamTest, AStockClientGetsAnswersToFrames) {
  auto server = StartServer(PlainEchoService());
  StockStream stream(*server);
  ASSERT_TRUE(stream.Write(Request(1, "\x0a\x03one")));
  v1::StreamFrame response = stream.Read();
  EXPECT_EQ(response.call(), 1);
  EXPECT_EQ(response.code(), 0);
  EXPECT_EQ(response.payload(), "\x0a\x03one");
  ASSERT_TRUE(stream.Write(Request(5, "", "/tandem.v1.Echo/Shout")));
  response = stream.Read();
  EXPECT_EQ(response.call(), 5);
  EXPECT_EQ(response.code(), static_cast<uint32_t>(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(response.error(), HasSubstr("/tandem.v1.Echo/Shout"));
}

TEST(StreamTest, CallsBegunBeforeAHalfCloseAreAnswered) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls));
  StockStream stream(*server);
  ASSERT_TRUE(stream.Write(Request(1, "late")));
  auto call = deferred_calls.Take();
  ASSERT_NE(call, nullptr);
  stream.HalfClose();
  call->Finish(call->request());
  EXPECT_EQ(stream.Read().payload(), "late");
  EXPECT_EQ(stream.Read().call(), 0);
  EXPECT_TRUE(stream.End().ok());
}

// A frame that breaks the rules ends its stream with a reason, and nothing else.
TEST(StreamTest, BrokenFramesEndTheirStreamWithTheReason) {
  auto server = StartServer(PlainEchoService());
  auto bystander = Connect(*server);
  const auto end_of = [&](const std::vector<std::string>& messages) {
    StockStream stream(*server);
    for (const std::string& message : messages) {
      if (!stream.WriteRaw(message)) break;
    }
    ReadToEnd(&stream);
    const grpc::Status end = stream.End();
    TANDEM_EXPECT_OK(bystander->Call(kEcho, Bytes(), {}));
    return absl::StrCat(end.error_code(), " ", end.error_message());
  };
  const std::string invalid = absl::StrCat(grpc::StatusCode::INVALID_ARGUMENT, " ");
  const auto text = [](const v1::StreamFrame& frame) { return frame.SerializeAsString(); };

  EXPECT_THAT(end_of({"\xff\xff\xff garbage"}), AllOf(HasSubstr(invalid), HasSubstr("malformed")));
  EXPECT_THAT(end_of({""}), AllOf(HasSubstr(invalid), HasSubstr("numbered from 1")));
  EXPECT_THAT(end_of({text(Request(4)), text(Request(4))}),
              AllOf(HasSubstr(invalid), HasSubstr("begins after call 4")));
  EXPECT_THAT(end_of({text(Request(4)), text(Request(3))}),
              AllOf(HasSubstr(invalid), HasSubstr("begins after call 4")));
  EXPECT_THAT(end_of({text(Request(9, "", ""))}), AllOf(HasSubstr(invalid), HasSubstr("never began")));
  EXPECT_THAT(end_of({text(Request(1, std::string(kMaxFramePayload + 1, 'x')))}),
              AllOf(HasSubstr(invalid), HasSubstr("a frame's may have 2097152")));
  v1::StreamFrame first = Request(1, "1234");
  first.set_message_bytes(6);
  v1::StreamFrame rest;
  rest.set_call(1);
  EXPECT_THAT(end_of({text(first), text(rest)}), AllOf(HasSubstr(invalid), HasSubstr("is empty")));
  rest.set_payload("567");
  EXPECT_THAT(end_of({text(first), text(rest)}), AllOf(HasSubstr(invalid), HasSubstr("it was to have 6")));

  v1::StreamFrame batch;
  for (int i = 1; i <= 3; ++i) *batch.add_batch() = Request(i);
  EXPECT_THAT(end_of({text(batch) + "?"}),
              AllOf(HasSubstr(invalid), HasSubstr("something else than a frame")));
  batch.mutable_batch(2)->set_call(2);
  EXPECT_THAT(end_of({text(batch)}), AllOf(HasSubstr(invalid), HasSubstr("begins after call 2")));
  for (int i = 4; i <= 300; ++i) *batch.add_batch() = Request(i);
  EXPECT_THAT(end_of({text(batch)}), AllOf(HasSubstr(invalid), HasSubstr("more than 256 frames")));
}

TEST(StreamTest, GarbageNeverHurtsTheServer) {
  std::atomic<int> calls{0};
  auto server = StartServer(EchoService([&calls](std::shared_ptr<ServerCall> call) {
    ++calls;
    call->Finish(call->request());
  }));
  auto bystander = Connect(*server);
  std::mt19937 random(3);
  for (int i = 0; i < 60; ++i) {
    StockStream stream(*server);
    std::vector<std::string> frames;
    for (uint64_t call = 1; call <= 8; ++call) {
      v1::StreamFrame frame = Request(call, std::string(random() % 3000, 'x'));
      if (random() % 3 == 0) frame.set_message_bytes(random());
      if (random() % 4 == 0) frame.clear_method();
      std::string& text = frames.emplace_back(frame.SerializeAsString());
      for (int c = random() % 3; c > 0; --c) text[random() % text.size()] = static_cast<char>(random());
      if (random() % 3 == 0) text.resize(random() % text.size());
    }
    for (size_t n = 0; n < frames.size() && stream.WriteRaw(frames[n]); ++n) {
    }
    if (random() % 2 == 0) {
      stream.Cancel();
    } else {
      stream.HalfClose();
      // Requests before the invalid frame get their responses; then the stream ends.
      while (stream.Read().call() != 0) {
      }
    }
  }
  TANDEM_EXPECT_OK(bystander->Call(kEcho, Bytes(), {}));
  EXPECT_GT(calls, 1);
}

TEST(StreamTest, ARequestThatIsCutOffReachesNoHandler) {
  std::atomic<int> calls{0};
  auto server = StartServer(EchoService([&calls](std::shared_ptr<ServerCall> call) {
    ++calls;
    call->Finish(Bytes());
  }));
  StockStream stream(*server);
  v1::StreamFrame frame = Request(1, "half of it");
  frame.set_message_bytes(20);
  ASSERT_TRUE(stream.Write(frame));
  stream.HalfClose();
  EXPECT_EQ(ReadToEnd(&stream), "");
  EXPECT_TRUE(stream.End().ok());
  EXPECT_EQ(calls, 0);
}

TEST(StreamTest, ARequestThatIsTooLargeIsRefusedAndTheStreamGoesOn) {
  auto server = StartServer(PlainEchoService(), {.max_message_bytes = 1000});
  StockStream stream(*server);
  v1::StreamFrame frame = Request(1, std::string(600, 'x'));
  frame.set_message_bytes(1800);
  ASSERT_TRUE(stream.Write(frame));
  v1::StreamFrame response = stream.Read();
  EXPECT_EQ(response.call(), 1);
  EXPECT_EQ(response.code(), static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(response.error(), AllOf(HasSubstr("1800 bytes"), HasSubstr("max_message_bytes")));
  for (int i = 0; i < 2; ++i) {  // the rest of the message, which had already been sent
    frame = v1::StreamFrame();
    frame.set_call(1);
    frame.set_payload(std::string(600, 'x'));
    ASSERT_TRUE(stream.Write(frame));
  }
  ASSERT_TRUE(stream.Write(Request(2)));
  EXPECT_EQ(stream.Read().call(), 2);
}

TEST(StreamTest, ACancelledCallIsForgotten) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls));
  StockStream stream(*server);
  ASSERT_TRUE(stream.Write(Request(1)));
  auto call = deferred_calls.Take();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->deadline(), absl::InfiniteFuture());
  EXPECT_FALSE(call->IsCancelled());
  v1::StreamFrame cancel;
  cancel.set_call(1);
  cancel.set_cancel(true);
  ASSERT_TRUE(stream.Write(cancel));
  ASSERT_TRUE(stream.Write(cancel));  // a second cancellation has no effect
  ASSERT_TRUE(stream.Write(Request(2)));
  auto next = deferred_calls.Take();  // arrives after the cancellation
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(call->IsCancelled());
  EXPECT_FALSE(next->IsCancelled());
  call->Finish(Bytes(std::string("late")));
  next->Finish(Bytes(std::string("in time")));
  const v1::StreamFrame response = stream.Read();
  EXPECT_EQ(response.call(), 2);
  EXPECT_EQ(response.payload(), "in time");
}

TEST(StreamTest, ASmallAnswerDoesNotWaitForALargeOne) {
  auto server =
      StartServer(EchoService([](std::shared_ptr<ServerCall> call) {
                    call->Finish(Bytes(std::string(call->request().size() > 0 ? size_t{32} << 20 : 1, 'a')));
                  }),
                  {.threads = 1});
  StockStream stream(*server);
  ASSERT_TRUE(stream.Write(Request(1, "large")));
  ASSERT_TRUE(stream.Write(Request(2)));
  size_t large = 0;
  for (v1::StreamFrame frame = stream.Read(); frame.call() == 1; frame = stream.Read())
    large += frame.payload().size();
  EXPECT_LT(large, size_t{16} << 20);
}

// A client that does not read its responses: its further requests are not read, and memory stays bounded.
TEST(StreamTest, AClientThatDoesNotReadIsNotServedAnyFurther) {
  std::atomic<int> served{0};
  constexpr size_t kResponse = size_t{256} << 10;
  const auto rows = std::make_shared<std::string>(kResponse, 'r');
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
                              if (call->request().empty()) return call->Finish(Bytes());  // another client
                              ++served;
                              call->Finish(Bytes(Slice(rows, rows->data(), rows->size())));
                            }),
                            {.threads = 1, .max_unsent_response_bytes = size_t{4} << 20});
  constexpr int kCalls = 400;  // 100 MiB of responses
  StockStream stream(*server);
  for (int i = 1; i <= kCalls; ++i) ASSERT_TRUE(stream.Write(Request(i, "rows")));
  // Meanwhile the same thread serves other clients, so it has had the chance to serve the silent one.
  auto bystander = Connect(*server);
  for (int i = 0; i < 200; ++i) TANDEM_ASSERT_OK(bystander->Call(kEcho, Bytes(), {}));
  // The limit, one response beyond it, and what the network buffers.
  EXPECT_GE(served, (4 << 20) / static_cast<int>(kResponse));
  EXPECT_LT(served, kCalls / 4);
  for (int i = 0; i < kCalls; ++i) ASSERT_EQ(stream.Read().payload().size(), kResponse);
  EXPECT_EQ(served, kCalls);
}

// A batch of small requests for large responses is limited in the same way.
TEST(StreamTest, ABatchIsServedNoFurtherThanItsAnswersAreRead) {
  std::atomic<int> served{0};
  constexpr size_t kResponse = size_t{1} << 20;
  const auto rows = std::make_shared<std::string>(kResponse, 'r');
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
                              if (call->request().empty()) return call->Finish(Bytes());  // another client
                              ++served;
                              call->Finish(Bytes(Slice(rows, rows->data(), rows->size())));
                            }),
                            {.threads = 1, .max_unsent_response_bytes = size_t{4} << 20});
  constexpr int kCalls = 250;
  v1::StreamFrame batch;
  for (int i = 1; i <= kCalls; ++i) *batch.add_batch() = Request(i, "rows");
  StockStream stream(*server);
  ASSERT_TRUE(stream.WriteRaw(batch.SerializeAsString()));
  auto bystander = Connect(*server);
  for (int i = 0; i < 200; ++i) TANDEM_ASSERT_OK(bystander->Call(kEcho, Bytes(), {}));
  EXPECT_GE(served, 4);
  EXPECT_LT(served, kCalls / 2);
  stream.HalfClose();  // the rest of the batch is served nevertheless
  size_t got = 0;
  for (v1::StreamFrame frame = stream.Read(); frame.call() != 0; frame = stream.Read())
    got += frame.payload().size();
  EXPECT_EQ(got, kCalls * kResponse);
  EXPECT_EQ(served, kCalls);
  EXPECT_TRUE(stream.End().ok());
}

TEST(StreamTest, AClientThatGoesInTheMiddleOfABatchLeavesNothingBehind) {
  std::atomic<int> served{0};
  const auto rows = std::make_shared<std::string>(size_t{1} << 20, 'r');
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
                              ++served;
                              call->Finish(Bytes(Slice(rows, rows->data(), rows->size())));
                            }),
                            {.threads = 1, .max_unsent_response_bytes = size_t{4} << 20});
  v1::StreamFrame batch;
  for (int i = 1; i <= 250; ++i) *batch.add_batch() = Request(i);
  for (int round = 0; round < 5; ++round) {
    StockStream stream(*server);
    ASSERT_TRUE(stream.WriteRaw(batch.SerializeAsString()));
    EXPECT_EQ(stream.Read().call(), 1u);
    stream.Cancel();
  }
  server.reset();  // would wait for a stream that has not ended
  EXPECT_GE(served, 5);
}

TEST(StreamTest, OnlyAClientThatTakesBatchesGetsThem) {
  auto server = StartServer(PlainEchoService());
  constexpr int kCalls = 100;
  for (const bool takes : {false, true}) {
    v1::StreamFrame batch;
    for (int i = 1; i <= kCalls; ++i) *batch.add_batch() = Request(i);
    batch.mutable_batch(0)->set_batches(takes);
    StockStream stream(*server);
    ASSERT_TRUE(stream.WriteRaw(batch.SerializeAsString()));
    int responses = 0;
    int messages = 0;
    bool told = false;
    while (responses < kCalls) {
      const v1::StreamFrame frame = stream.Read();
      ASSERT_TRUE(frame.call() != 0 || frame.batch_size() > 0);
      told = told || frame.batches() || (frame.batch_size() > 0 && frame.batch(0).batches());
      responses += std::max(1, frame.batch_size());
      ++messages;
    }
    EXPECT_TRUE(told);
    if (takes) {
      EXPECT_LT(messages, kCalls / 2);
    } else {
      EXPECT_EQ(messages, kCalls);
    }
  }
}

TEST(StreamTest, RequestsThatHandlersKeepAreBounded) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls), {.max_held_request_bytes = 1 << 20});
  auto channel = Connect(*server);
  const Bytes request(std::string(300 << 10, 'x'));
  absl::Mutex mutex;
  std::vector<absl::Status> ends;
  const auto call = [&] {
    channel->CallAsync(kEcho, request, {.timeout = kTestTimeout}, [&](absl::StatusOr<Bytes> response) {
      absl::MutexLock lock(&mutex);
      ends.push_back(response.status());
    });
  };
  const auto await = [&](size_t count) {
    absl::MutexLock lock(&mutex);
    const auto enough = [&] { return ends.size() >= count; };
    return mutex.AwaitWithTimeout(absl::Condition(&enough), kTestTimeout);
  };
  for (int i = 0; i < 5; ++i) call();
  ASSERT_TRUE(await(2));
  {
    absl::MutexLock lock(&mutex);
    for (const absl::Status& end : ends) {
      EXPECT_THAT(end, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_held_request_bytes")));
    }
  }
  for (int i = 0; i < 3; ++i) {
    auto parked = deferred_calls.Take();
    ASSERT_NE(parked, nullptr);
    parked->Finish(Bytes());
  }
  ASSERT_TRUE(await(5));
  call();  // there is capacity again
  auto parked = deferred_calls.Take();
  ASSERT_NE(parked, nullptr);
  parked->Finish(Bytes());
  parked.reset();
  ASSERT_TRUE(await(6));
  channel.reset();
  EXPECT_EQ(std::count_if(ends.begin(), ends.end(), [](const absl::Status& end) { return end.ok(); }), 4);
}

}  // namespace
}  // namespace tandem::rpc
