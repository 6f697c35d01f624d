// SPDX-License-Identifier: Apache-2.0
// Tests several frames in one message of the stream.

#include "rpc/wire/batch.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

v1::StreamFrame FrameOf(uint64_t call, std::string payload) {
  v1::StreamFrame frame;
  frame.set_call(call);
  frame.set_payload(std::move(payload));
  return frame;
}

std::string BatchOf(const std::vector<v1::StreamFrame>& frames) {
  BatchWriter writer(0);
  for (v1::StreamFrame header : frames) {
    const Bytes payload(std::move(*header.mutable_payload()));
    header.clear_payload();
    writer.Add(header, payload);
  }
  return writer.Take().Flatten();
}

absl::Status ParseStatus(std::string wire) { return ParseFrames(Bytes(std::move(wire))).status(); }

TEST(BatchTest, ABatchIsAnOrdinaryProtobufMessage) {
  v1::StreamFrame first = FrameOf(7, "hello");
  first.set_method("/a.B/C");
  const std::string wire = BatchOf({first, FrameOf(300, ""), FrameOf(8, std::string(200, 'x'))});
  v1::StreamFrame stock;
  ASSERT_TRUE(stock.ParseFromString(wire));
  ASSERT_EQ(stock.batch_size(), 3);
  EXPECT_EQ(stock.batch(0).SerializeAsString(), first.SerializeAsString());
  EXPECT_EQ(stock.batch(2).payload(), std::string(200, 'x'));
  EXPECT_EQ(stock.SerializeAsString(), wire);

  // Parsing must not depend on how the message is split into slices.
  for (size_t size : {size_t{1}, size_t{3}, wire.size()}) {
    Bytes chunks;
    for (size_t at = 0; at < wire.size(); at += size) chunks.Append(Bytes(wire.substr(at, size)));
    TANDEM_ASSERT_OK_AND_ASSIGN(Frames frames, ParseFrames(chunks));
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[0].header.method(), "/a.B/C");
    EXPECT_EQ(frames[0].payload.Flatten(), "hello");
    EXPECT_EQ(frames[1].header.call(), 300u);
    EXPECT_TRUE(frames[1].payload.empty());
    EXPECT_EQ(frames[2].payload.Flatten(), std::string(200, 'x'));
  }
}

TEST(BatchTest, AMessageThatIsNoBatchIsOneFrame) {
  TANDEM_ASSERT_OK_AND_ASSIGN(Frames frames, ParseFrames(Bytes(FrameOf(3, "abc").SerializeAsString())));
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].payload.Flatten(), "abc");
}

TEST(BatchTest, WhatIsKeptOfABatchDoesNotKeepItAll) {
  Bytes wire(BatchOf({FrameOf(1, "one"), FrameOf(2, "two")}));
  const std::weak_ptr<const void> memory = wire.slices()[0].owner();
  TANDEM_ASSERT_OK_AND_ASSIGN(Frames frames, ParseFrames(wire));
  wire = Bytes();
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(frames[1].payload.Flatten(), "two");
}

TEST(BatchTest, WhatNoBatchMayBeIsRefusedByName) {
  const auto refused = [](const char* why) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why));
  };
  const std::string good = BatchOf({FrameOf(1, "one"), FrameOf(2, "two")});
  TANDEM_ASSERT_OK(ParseStatus(good));
  EXPECT_THAT(ParseStatus(good.substr(0, good.size() - 1)), refused("is cut off"));
  EXPECT_THAT(ParseStatus(good + std::string("\x08\x01", 2)), refused("something else than a frame"));
  EXPECT_THAT(ParseStatus(good + "\x4a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), refused("is cut off"));
  EXPECT_THAT(ParseStatus(BatchOf({FrameOf(1, "one"), FrameOf(0, "none")})), refused("numbered from 1"));
  // Batches within batches, and batches next to other fields.
  v1::StreamFrame nested;
  *nested.add_batch() = FrameOf(1, "one");
  v1::StreamFrame outer;
  *outer.add_batch() = nested;
  EXPECT_THAT(ParseStatus(outer.SerializeAsString()), refused("numbered from 1"));
  nested.set_call(5);
  EXPECT_THAT(ParseStatus(nested.SerializeAsString()), refused("stands alone"));
  outer.clear_batch();
  *outer.add_batch() = nested;
  EXPECT_THAT(ParseStatus(outer.SerializeAsString()), refused("stands alone"));
  // Sizes.
  EXPECT_THAT(ParseStatus(BatchOf({FrameOf(1, std::string(kMaxBatchBytes, 'x'))})),
              refused("at most 65536 are allowed"));
  std::vector<v1::StreamFrame> many(kMaxBatchFrames, FrameOf(1, ""));
  TANDEM_EXPECT_OK(ParseStatus(BatchOf(many)));
  many.push_back(FrameOf(1, ""));
  EXPECT_THAT(ParseStatus(BatchOf(many)), refused("more than 256 frames"));
}

TEST(BatchTest, AnyBytesAreFramesOrAnError) {
  std::mt19937 random(7);
  v1::StreamFrame method = FrameOf(300, "payload");
  method.set_method("/tandem.v1.ParameterServer/Pull");
  const std::string seed = BatchOf({method, FrameOf(301, ""), FrameOf(302, "x")});
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = seed;
    for (int c = 1 + random() % 3; c > 0; --c) text[random() % text.size()] = static_cast<char>(random());
    if (random() % 2 == 0) text.resize(random() % (text.size() + 1));
    absl::StatusOr<Frames> frames = ParseFrames(Bytes(text));
    if (!frames.ok()) {
      EXPECT_THAT(frames.status(), StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
      continue;
    }
    ++parsed;
    v1::StreamFrame stock;
    ASSERT_TRUE(stock.ParseFromString(text));
    if (stock.batch_size() == 0) continue;  // the first byte was changed
    ASSERT_EQ(static_cast<size_t>(stock.batch_size()), frames->size());
    for (size_t f = 0; f < frames->size(); ++f) {
      EXPECT_EQ(stock.batch(static_cast<int>(f)).payload(), (*frames)[f].payload.Flatten());
      EXPECT_EQ(stock.batch(static_cast<int>(f)).call(), (*frames)[f].header.call());
    }
  }
  EXPECT_GT(parsed, 100);
}

}  // namespace
}  // namespace tandem::rpc
