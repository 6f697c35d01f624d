// SPDX-License-Identifier: Apache-2.0
#include "rpc/wire/frame.h"

#include <optional>
#include <random>
#include <string>
#include <utility>

#include "tests/rpc/wire/headers.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

Bytes Wire(const v1::StreamFrame& frame) { return Bytes(frame.SerializeAsString()); }

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

TEST(MessageAssemblerTest, ATakerIsGivenThePiecesAndTheMessageNothing) {
  MessageAssembler assembler;
  std::string taken;
  const auto taker = [&](uint64_t offset, uint64_t total, Bytes chunk) {
    EXPECT_EQ(offset, taken.size());
    EXPECT_EQ(total, 10u);
    taken += chunk.Flatten();
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
  // A message of one frame is returned at once and does not use the taker.
  TANDEM_ASSERT_OK_AND_ASSIGN(auto small, assembler.Begin(Part(2, 0, 5), taker));
  EXPECT_EQ(small->bytes.size(), 5);
  EXPECT_EQ(taken.size(), 10u);
}

}  // namespace
}  // namespace tandem::rpc
