// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/exchange.h"

#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives::tcp {
namespace {

using ::tandem::testing::StatusIs;

// Links that send everything at once.
class InstantLinks final : public Links {
 public:
  bool Send(int, const Frame&, const void*) override { return true; }
  void Close() override {}
};

// Rank 0 of 2 waits for `wanted` bytes of rank 1 in the running operation.
class ExchangeTest : public ::testing::Test {
 protected:
  void Begin(size_t wanted) {
    exchange_.SetLinks(&links_);
    room_.resize(wanted);
    std::vector<Lane> lanes(2);
    lanes[1].receive = room_.data();
    lanes[1].receive_bytes = wanted;
    lanes[1].receive2 = &content_;
    lanes[1].receive2_bytes = lanes[1].send2_bytes = 1;
    ASSERT_TRUE(exchange_.Begin(Fingerprint(), 1.0, lanes, absl::Now() + absl::Seconds(20)));
  }
  absl::Status Arrives(Frame::Type type, int phase, size_t bytes) {
    Frame frame;
    frame.type = type;
    frame.phase = static_cast<uint8_t>(phase);
    frame.id = 1;
    frame.bytes = frame.value = bytes;
    const absl::Status status = exchange_.FrameBegins(1, frame).status();
    if (status.ok()) exchange_.FrameEnds(1, frame);
    return status;
  }

  InstantLinks links_;
  Exchange exchange_{0, 2};
  std::vector<char> room_;
  char content_ = 0;
};

TEST_F(ExchangeTest, WhatWasAgreedUponArrives) {
  Begin(40);
  TANDEM_EXPECT_OK(Arrives(Frame::Type::kHead, 0, 40));
  exchange_.SendMore(1, &content_, 1);
  TANDEM_EXPECT_OK(Arrives(Frame::Type::kData, 1, 1));
  EXPECT_TRUE(exchange_.Finish());
}

TEST_F(ExchangeTest, MoreThanWasAgreedUponEndsTheConnection) {
  Begin(40);
  TANDEM_EXPECT_OK(Arrives(Frame::Type::kHead, 0, 40));
  EXPECT_THAT(Arrives(Frame::Type::kData, 0, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Arrives(Frame::Type::kData, 2, 1), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ExchangeTest, DataBeforeItsHeadEndsTheConnection) {
  Begin(40);
  EXPECT_THAT(Arrives(Frame::Type::kData, 0, 40), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ExchangeTest, APeerUnawareOfAFailureKeepsItsConnectionUntilItIsTold) {
  Begin(40);
  TANDEM_EXPECT_OK(Arrives(Frame::Type::kHead, 0, 48));
  ASSERT_EQ(exchange_.failure().kind, Exchange::Failure::Kind::kSizes);
  TANDEM_EXPECT_OK(Arrives(Frame::Type::kData, 1, 1));  // it is content, and says so
  TANDEM_EXPECT_OK(Arrives(Frame::Type::kData, 0, kChunkBytes));
  EXPECT_THAT(Arrives(Frame::Type::kData, 0, kChunkBytes + 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Arrives(Frame::Type::kData, 2, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(exchange_.Finish());
  EXPECT_EQ(exchange_.failure().kind, Exchange::Failure::Kind::kSizes);
}

}  // namespace
}  // namespace tandem::collectives::tcp
