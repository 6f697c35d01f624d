#include "rpc/stream/frame.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rpc/codec/bulk_codec.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

Bytes Wire(const v1::StreamFrame& frame) { return Bytes(frame.SerializeAsString()); }

v1::StreamFrame Header(uint64_t call) {
  v1::StreamFrame header;
  header.set_call(call);
  return header;
}

Frame Part(uint64_t call, uint64_t total, size_t bytes) {
  Frame frame;
  frame.header = Header(call);
  frame.header.set_message_bytes(total);
  frame.payload = Bytes(std::string(bytes, 'p'));
  return frame;
}

absl::Status ParseStatus(const v1::StreamFrame& frame) { return ParseFrame(Wire(frame)).status(); }

TEST(ParseFrameTest, AFrameIsAnOrdinaryProtobufMessage) {
  v1::StreamFrame sent = Header(7);
  sent.set_method("/a.B/C");
  sent.set_timeout_us(5);
  sent.set_payload("hello");
  TANDEM_ASSERT_OK_AND_ASSIGN(Frame frame, ParseFrame(Wire(sent)));
  EXPECT_EQ(frame.payload.Flatten(), "hello");
  sent.clear_payload();
  EXPECT_EQ(frame.header.SerializeAsString(), sent.SerializeAsString());
}

TEST(ParseFrameTest, WhatNoFrameMayBeIsRefusedByName) {
  EXPECT_THAT(ParseFrame(Bytes(std::string("\xff\xff\xff"))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("StreamFrame")));
  EXPECT_THAT(ParseFrame(Bytes()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("numbered from 1")));

  v1::StreamFrame frame = Header(3);
  frame.set_payload(std::string(kMaxFramePayload + 1, 'x'));
  EXPECT_THAT(ParseStatus(frame),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a frame's may have 2097152")));

  frame = Header(3);
  frame.set_cancel(true);
  TANDEM_EXPECT_OK(ParseStatus(frame));
  frame.set_method("/a.B/C");
  EXPECT_THAT(ParseStatus(frame), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cancels")));

  frame = Header(3);
  frame.set_message_bytes(4);
  frame.set_payload("12345");
  EXPECT_THAT(ParseStatus(frame), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("to have 4")));

  frame = Header(3);
  frame.set_error(std::string(kMaxErrorBytes + 1, 'e'));
  EXPECT_THAT(ParseStatus(frame), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("error has 65537")));
}

TEST(ParseFrameTest, AnyBytesAreAFrameOrAnError) {
  std::mt19937 random(7);
  v1::StreamFrame good = Header(300);
  good.set_method("/tandem.v1.ParameterServer/Pull");
  good.set_message_bytes(1000);
  good.set_payload("payload");
  const std::string seed = good.SerializeAsString();
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = seed;
    const int changes = 1 + random() % 3;
    for (int c = 0; c < changes; ++c) text[random() % text.size()] = static_cast<char>(random());
    text.resize(random() % (text.size() + 1));
    absl::StatusOr<Frame> frame = ParseFrame(Bytes(text));
    if (!frame.ok()) {
      EXPECT_THAT(frame.status(), StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
      continue;
    }
    ++parsed;
    v1::StreamFrame stock;
    ASSERT_TRUE(stock.ParseFromString(text));
    EXPECT_EQ(stock.payload(), frame->payload.Flatten());
    EXPECT_EQ(stock.call(), frame->header.call());
  }
  EXPECT_GT(parsed, 100);
}

TEST(MessageAssemblerTest, MessagesThatComeInPiecesAreCheckedAgainstTheirSize) {
  MessageAssembler assembler;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, assembler.Begin(Part(1, 10, 4)));
  EXPECT_FALSE(first.has_value());
  EXPECT_TRUE(assembler.Has(1));
  EXPECT_EQ(assembler.bytes(), 10);
  EXPECT_THAT(assembler.Continue(Part(1, 0, 7)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 11")));
  EXPECT_THAT(assembler.Continue(Part(1, 0, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
  EXPECT_THAT(assembler.Continue(Part(2, 0, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("never began")));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto last, assembler.Continue(Part(1, 0, 6)));
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->bytes.size(), 10);
  EXPECT_EQ(assembler.bytes(), 0);

  TANDEM_ASSERT_OK(assembler.Begin(Part(3, uint64_t{1} << 62, 4)).status());
  assembler.Drop(3);
  assembler.Drop(3);
  EXPECT_EQ(assembler.bytes(), 0);
  EXPECT_FALSE(assembler.Has(3));
}

TEST(FrameQueueTest, ASmallMessageOvertakesALargeOne) {
  FrameQueue queue;
  queue.Add(Header(1), Bytes(std::string(10 * kFramePayload, 'l')));
  queue.Add(Header(2), Bytes(std::string("small")));
  TANDEM_ASSERT_OK_AND_ASSIGN(Frame first, ParseFrame(queue.Next()));
  EXPECT_EQ(first.header.call(), 1);
  EXPECT_EQ(first.header.message_bytes(), 10 * kFramePayload);
  TANDEM_ASSERT_OK_AND_ASSIGN(Frame second, ParseFrame(queue.Next()));
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
  queue.Next();
  EXPECT_EQ(queue.Drop(1), FrameQueue::Dropped::kPartlySent);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0);
}

// Whatever order calls are added in and frames are taken out, each message arrives whole, and once.
TEST(FrameQueueTest, WhatGoesInComesOutOfTheAssembler) {
  std::mt19937 random(11);
  std::map<uint64_t, std::string> sent;
  std::map<uint64_t, std::string> got;
  FrameQueue queue;
  MessageAssembler assembler;
  uint64_t call = 0;
  const auto take = [&] {
    const Bytes wire = queue.Next();
    ASSERT_LE(wire.size(), kMaxFrameBytes);
    TANDEM_ASSERT_OK_AND_ASSIGN(Frame frame, ParseFrame(wire));
    const uint64_t number = frame.header.call();
    TANDEM_ASSERT_OK_AND_ASSIGN(auto message, assembler.Has(number) ? assembler.Continue(std::move(frame))
                                                                    : assembler.Begin(std::move(frame)));
    if (message.has_value()) {
      EXPECT_TRUE(got.emplace(number, message->bytes.Flatten()).second);
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

// Counts up, at most `most` bytes a piece.
class CountingAnswer : public AnswerSource {
 public:
  CountingAnswer(size_t size, size_t most, int* alive) : size_(size), most_(most), alive_(alive) {
    ++*alive_;
  }
  ~CountingAnswer() override { --*alive_; }
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
  queue.Add(Header(1), std::make_unique<CountingAnswer>(kSize, kFramePayload - 77, &alive));
  std::optional<MessageAssembler::Message> whole;
  while (!queue.empty()) {
    TANDEM_ASSERT_OK_AND_ASSIGN(Frame frame, ParseFrame(queue.Next()));
    TANDEM_ASSERT_OK_AND_ASSIGN(
        whole, assembler.Has(1) ? assembler.Continue(std::move(frame)) : assembler.Begin(std::move(frame)));
  }
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(queue.bytes(), 0);
  EXPECT_EQ(alive, 0);
  ASSERT_EQ(whole->bytes.slices().size(), 1u);
  const Slice& slice = whole->bytes.slices()[0];
  ASSERT_EQ(slice.size(), kSize);
  // It ends where a line does.
  EXPECT_EQ(reinterpret_cast<uintptr_t>(slice.data() + slice.size()) % 64, 0u);
  for (size_t i = 0; i < kSize; ++i) ASSERT_EQ(slice.data()[i], static_cast<char>(i % 251)) << i;
}

TEST(FrameQueueTest, AMessageDroppedWhileItsFrameIsMadeDoesNotComeBack) {
  int alive = 0;
  FrameQueue queue;
  queue.Add(Header(1), std::make_unique<CountingAnswer>(3 * kFramePayload, kFramePayload, &alive));
  queue.Add(Header(2), Bytes(std::string("other")));
  {
    FrameQueue::Turn turn = queue.Take();
    turn.Frame();
    EXPECT_EQ(queue.Drop(1), FrameQueue::Dropped::kPartlySent);
    queue.PutBack(&turn);
    EXPECT_EQ(alive, 1);  // goes with the turn, not under the lock of whoever dropped it
  }
  EXPECT_EQ(alive, 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(Frame frame, ParseFrame(queue.Next()));
  EXPECT_EQ(frame.header.call(), 2);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0);

  queue.Add(Header(3), std::make_unique<CountingAnswer>(3 * kFramePayload, kFramePayload, &alive));
  FrameQueue::Turn turn = queue.Take();
  turn.Frame();
  queue.Clear();
  queue.PutBack(&turn);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0);
}

TEST(MessageAssemblerTest, ATakerIsGivenThePiecesAndTheMessageNothing) {
  MessageAssembler assembler;
  std::string taken;
  const auto taker = [&](uint64_t offset, uint64_t total, Bytes piece) {
    EXPECT_EQ(offset, taken.size());
    EXPECT_EQ(total, 10u);
    taken += piece.Flatten();
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, assembler.Begin(Part(1, 10, 4), taker));
  EXPECT_FALSE(first.has_value());
  EXPECT_THAT(assembler.Continue(Part(1, 0, 7)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 11")));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto last, assembler.Continue(Part(1, 0, 6)));
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(last->bytes.empty());
  EXPECT_EQ(taken, std::string(10, 'p'));
  EXPECT_EQ(assembler.bytes(), 0);
  // Of one frame: an ordinary message.
  TANDEM_ASSERT_OK_AND_ASSIGN(auto small, assembler.Begin(Part(2, 0, 5), taker));
  EXPECT_EQ(small->bytes.size(), 5);
  EXPECT_EQ(taken.size(), 10u);
}

}  // namespace
}  // namespace tandem::rpc
