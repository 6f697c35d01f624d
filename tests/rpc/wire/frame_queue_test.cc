// SPDX-License-Identifier: Apache-2.0
#include "rpc/wire/frame_queue.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rpc/wire/batch.h"
#include "rpc/wire/frame.h"
#include "tests/rpc/wire/headers.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

TEST(FrameQueueTest, ASmallMessageOvertakesALargeOne) {
  FrameQueue queue;
  queue.Add(Header(1), Bytes(std::string(10 * kFramePayload, 'l')));
  queue.Add(Header(2), Bytes(std::string("small")));
  TANDEM_ASSERT_OK_AND_ASSIGN(Frame first, ParseFrame(queue.Next(false)));
  EXPECT_EQ(first.header.call(), 1);
  EXPECT_EQ(first.header.message_bytes(), 10 * kFramePayload);
  TANDEM_ASSERT_OK_AND_ASSIGN(Frame second, ParseFrame(queue.Next(false)));
  EXPECT_EQ(second.header.call(), 2);
  EXPECT_EQ(second.header.message_bytes(), 0);
  EXPECT_EQ(second.payload.Flatten(), "small");
}

TEST(FrameQueueTest, DroppedMessagesLeaveNothingBehind) {
  FrameQueue queue;
  EXPECT_EQ(queue.Drop(1), FrameQueue::Dropped::kNothing);
  queue.Add(Header(1), Bytes(std::string(5 * kFramePayload, 'a')));
  queue.Add(Header(2), Bytes(std::string(10, 'b')));
  EXPECT_EQ(queue.Drop(2), FrameQueue::Dropped::kUnsent);
  queue.Next(false);
  EXPECT_EQ(queue.Drop(1), FrameQueue::Dropped::kPartlySent);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0);
}

TEST(FrameQueueTest, WhatIsDroppedGoesWhenItsTakerLetsItGo) {
  FrameQueue queue;
  auto text = std::make_shared<const std::string>(5 * kFramePayload, 'a');
  queue.Add(Header(1), Bytes(Slice(text, text->data(), text->size())));
  const std::weak_ptr<const std::string> watched = text;
  text.reset();
  std::deque<FrameQueue::OutgoingMessage> taken;
  EXPECT_EQ(queue.Drop(1, &taken), FrameQueue::Dropped::kUnsent);
  EXPECT_EQ(queue.bytes(), 0);
  EXPECT_FALSE(watched.expired());
  taken.clear();
  EXPECT_TRUE(watched.expired());
}

TEST(FrameQueueTest, OfAnAnswerThatIsMadeOnTheWayOneFrameCounts) {
  class Response : public ResponseSource {
   public:
    size_t size() const override { return 10 * kFramePayload + 1; }
    Bytes Next(size_t limit) override { return Bytes(std::string(limit, 'a')); }
  };
  FrameQueue queue;
  queue.Add(Header(1), std::make_unique<Response>());
  const size_t waiting = queue.bytes();
  EXPECT_GE(waiting, kFramePayload);
  EXPECT_LT(waiting, 2 * kFramePayload);
  queue.Next(false);
  EXPECT_EQ(queue.bytes(), waiting);
  while (!queue.empty()) queue.Next(false);
  EXPECT_EQ(queue.bytes(), 0);
  queue.Add(Header(2), std::make_unique<Response>());
  queue.Drop(2);
  EXPECT_EQ(queue.bytes(), 0);
}

// Each message arrives whole and once, in whatever order calls are added and frames are taken.
TEST(FrameQueueTest, WhatGoesInComesOutOfTheAssembler) {
  std::mt19937 random(11);
  std::map<uint64_t, std::string> sent;
  std::map<uint64_t, std::string> got;
  FrameQueue queue;
  MessageAssembler assembler;
  uint64_t call = 0;
  const auto take = [&] {
    const Bytes wire = queue.Next(random() % 2 == 0);
    ASSERT_LE(wire.size(), kMaxFrameBytes);
    TANDEM_ASSERT_OK_AND_ASSIGN(Frames frames, ParseFrames(wire));
    for (Frame& frame : frames) {
      const uint64_t number = frame.header.call();
      TANDEM_ASSERT_OK_AND_ASSIGN(auto message, assembler.Has(number) ? assembler.Continue(std::move(frame))
                                                                      : assembler.Begin(std::move(frame)));
      if (message.has_value()) {
        EXPECT_TRUE(got.emplace(number, message->bytes.Flatten()).second);
      }
    }
  };
  for (int i = 0; i < 60; ++i) {
    const size_t sizes[] = {0,
                            1,
                            1000,
                            kFramePayload,
                            kFramePayload + kFramePayload / 2,
                            kFramePayload + kFramePayload / 2 + 1,
                            random() % (4 * kFramePayload)};
    std::string text(sizes[random() % 7], static_cast<char>('a' + i % 26));
    ++call;
    queue.Add(Header(call), Bytes(text));
    sent[call] = std::move(text);
    for (size_t n = random() % 4; n > 0 && !queue.empty(); --n) take();
  }
  while (!queue.empty()) take();
  EXPECT_EQ(queue.bytes(), 0);
  EXPECT_EQ(assembler.bytes(), 0);
  EXPECT_TRUE(got == sent);
}

// Produces increasing bytes, at most `most` per chunk.
class CountingResponse : public ResponseSource {
 public:
  CountingResponse(size_t size, size_t most, int* alive) : size_(size), most_(most), alive_(alive) {
    ++*alive_;
  }
  ~CountingResponse() override { --*alive_; }
  size_t size() const override { return size_; }
  Bytes Next(size_t limit) override {
    std::string text(std::min({limit, most_, size_ - made_}), '\0');
    for (char& c : text) c = static_cast<char>(made_++ % 251);
    return Bytes(std::move(text));
  }

 private:
  const size_t size_, most_;
  int* const alive_;
  size_t made_ = 0;
};

TEST(FrameQueueTest, AnAnswerMadeInPiecesArrivesWholeInOneRunOfMemory) {
  constexpr size_t kSize = 5 * kFramePayload + 12345;
  int alive = 0;
  FrameQueue queue;
  BufferPool pool;
  MessageAssembler assembler(&pool);
  queue.Add(Header(1), std::make_unique<CountingResponse>(kSize, kFramePayload - 77, &alive));
  std::optional<MessageAssembler::Message> whole;
  while (!queue.empty()) {
    TANDEM_ASSERT_OK_AND_ASSIGN(Frame frame, ParseFrame(queue.Next(false)));
    TANDEM_ASSERT_OK_AND_ASSIGN(
        whole, assembler.Has(1) ? assembler.Continue(std::move(frame)) : assembler.Begin(std::move(frame)));
  }
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(queue.bytes(), 0);
  EXPECT_EQ(alive, 0);
  ASSERT_EQ(whole->bytes.slices().size(), 1u);
  const Slice& slice = whole->bytes.slices()[0];
  ASSERT_EQ(slice.size(), kSize);
  // The message ends at the end of a cache line.
  EXPECT_EQ(reinterpret_cast<uintptr_t>(slice.data() + slice.size()) % 64, 0u);
  for (size_t i = 0; i < kSize; ++i) ASSERT_EQ(slice.data()[i], static_cast<char>(i % 251)) << i;
}

TEST(FrameQueueTest, AMessageDroppedWhileItsFrameIsMadeDoesNotComeBack) {
  int alive = 0;
  FrameQueue queue;
  queue.Add(Header(1), std::make_unique<CountingResponse>(3 * kFramePayload, kFramePayload, &alive));
  queue.Add(Header(2), Bytes(std::string("other")));
  {
    FrameQueue::OutgoingMessage turn = queue.Take(false);
    turn.Frame();
    EXPECT_EQ(queue.Drop(1), FrameQueue::Dropped::kPartlySent);
    queue.PutBack(&turn);
    EXPECT_EQ(alive, 1);  // destroyed with `turn`, not under the lock of the thread that dropped it
  }
  EXPECT_EQ(alive, 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(Frame frame, ParseFrame(queue.Next(false)));
  EXPECT_EQ(frame.header.call(), 2);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0);

  queue.Add(Header(3), std::make_unique<CountingResponse>(3 * kFramePayload, kFramePayload, &alive));
  FrameQueue::OutgoingMessage turn = queue.Take(false);
  turn.Frame();
  queue.Clear();
  queue.PutBack(&turn);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0);
}

std::vector<uint64_t> CallsOf(const Bytes& wire) {
  std::vector<uint64_t> calls;
  auto frames = ParseFrames(wire);
  TANDEM_EXPECT_OK(frames.status());
  if (frames.ok()) {
    for (const Frame& frame : *frames) calls.push_back(frame.header.call());
  }
  return calls;
}

TEST(FrameQueueTest, ShortMessagesThatFollowEachOtherGoTogether) {
  using Calls = std::vector<uint64_t>;
  FrameQueue queue;
  queue.Add(Header(1), Bytes(std::string(10, 'a')));
  queue.Add(Header(2), Bytes());
  queue.Add(Header(3), Bytes(std::string(kMaxBatchedMessage + 1, 'c')));
  queue.Add(Header(4), Bytes(std::string(10, 'd')));
  queue.Add(Header(5), Bytes(std::string(10, 'e')));
  EXPECT_EQ(CallsOf(queue.Next(false)), Calls({1}));  // the peer does not accept batches
  queue.Add(Header(6), Bytes());
  EXPECT_EQ(CallsOf(queue.Next(true)), Calls({2}));
  EXPECT_EQ(CallsOf(queue.Next(true)), Calls({3}));
  EXPECT_EQ(queue.Drop(5), FrameQueue::Dropped::kUnsent);
  EXPECT_EQ(CallsOf(queue.Next(true)), Calls({4, 6}));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST(FrameQueueTest, OnlyTheFirstFrameSaysThatBatchesAreTaken) {
  FrameQueue queue;
  for (uint64_t call = 1; call <= 3; ++call) queue.Add(Header(call), Bytes());
  TANDEM_ASSERT_OK_AND_ASSIGN(Frame first, ParseFrame(queue.Next(false)));
  EXPECT_TRUE(first.header.batches());
  TANDEM_ASSERT_OK_AND_ASSIGN(Frames rest, ParseFrames(queue.Next(true)));
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_FALSE(rest[0].header.batches() || rest[1].header.batches());
}

TEST(FrameQueueTest, ABatchHasNoMoreThanItMayHave) {
  FrameQueue queue;
  const size_t sizes[] = {0, 10, kMaxBatchedMessage - 100};
  uint64_t call = 0;
  for (const size_t size : sizes) {
    for (int i = 0; i < 600; ++i) queue.Add(Header(++call), Bytes(std::string(size, 'x')));
  }
  uint64_t next = 0;
  size_t messages = 0;
  while (!queue.empty()) {
    for (const uint64_t got : CallsOf(queue.Next(true))) EXPECT_EQ(got, ++next);
    ++messages;
  }
  EXPECT_EQ(next, call);
  EXPECT_LT(messages, 100u);
}

}  // namespace
}  // namespace tandem::rpc
