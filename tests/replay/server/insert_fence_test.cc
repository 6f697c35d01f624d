// SPDX-License-Identifier: Apache-2.0
#include "replay/server/insert_fence.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

InsertId Id(uint64_t sequence, uint64_t incarnation = 1, uint64_t acknowledged = 0) {
  return {.writer = "actor",
          .incarnation = incarnation,
          .sequence = sequence,
          .acknowledged_items = acknowledged};
}

TEST(InsertFence, ARepeatedRequestIsTakenAlready) {
  InsertFence fence;
  EXPECT_EQ(*fence.Begin(Id(1), 3), 0u);
  fence.Progress(Id(1), 3, 3);
  EXPECT_EQ(*fence.Begin(Id(1), 3), 3u);
  EXPECT_EQ(*fence.Begin(Id(2), 3), 0u);
  EXPECT_EQ(fence.repeated(), 1u);
}

TEST(InsertFence, ARequestGoesOnWhereItEnded) {
  InsertFence fence;
  EXPECT_EQ(*fence.Begin(Id(1), 5), 0u);
  fence.Progress(Id(1), 2, 5);
  EXPECT_EQ(*fence.Begin(Id(1), 5), 2u);
  fence.Progress(Id(1), 5, 5);
  EXPECT_EQ(*fence.Begin(Id(1), 5), 5u);
  EXPECT_EQ(fence.Save()[0].items(), 5u);
}

TEST(InsertFence, AnOlderIncarnationIsRefusedAndANewerOneStartsAnew) {
  InsertFence fence;
  EXPECT_EQ(*fence.Begin(Id(1, 7), 1), 0u);
  fence.Progress(Id(1, 7), 1, 1);
  EXPECT_THAT(fence.Begin(Id(2, 6), 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("replaced")));
  EXPECT_EQ(*fence.Begin(Id(1, 8), 1), 0u);
  EXPECT_THAT(fence.Begin(Id(0, 8), 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("count from 1")));
  fence.Progress(Id(2, 7), 1, 1);  // of a request that waited meanwhile
  EXPECT_EQ(fence.Save()[0].sequence(), 0u);
}

TEST(InsertFence, WhatWasAcknowledgedAndIsNotThereWasLost) {
  InsertFence fence;
  EXPECT_EQ(*fence.Begin(Id(1), 4), 0u);
  fence.Progress(Id(1), 4, 4);
  const std::vector<v1::ReplayWriterFence> saved = fence.Save();
  EXPECT_EQ(*fence.Begin(Id(2, 1, 4), 4), 0u);
  fence.Progress(Id(2), 4, 4);
  EXPECT_EQ(fence.lost_items(), 0u);

  InsertFence restored;
  restored.Restore({saved.begin(), saved.end()}, 10);
  EXPECT_EQ(*restored.Begin(Id(2, 1, 4), 4), 0u) << "of a repetition nothing is known to be acknowledged";
  restored.Progress(Id(2), 4, 4);
  EXPECT_EQ(restored.lost_items(), 10u);
  InsertFence again;
  again.Restore({saved.begin(), saved.end()}, 10);
  EXPECT_EQ(*again.Begin(Id(3, 1, 8), 4), 0u);
  EXPECT_EQ(again.lost_items(), 14u);
  EXPECT_EQ(*again.Begin(Id(3, 1, 8), 4), 0u);
  EXPECT_EQ(again.lost_items(), 14u) << "each loss counts once";
}

TEST(InsertFence, ForgetsTheWritersThatHaveNotInsertedForLongest) {
  InsertFence fence;
  for (size_t w = 0; w < InsertFence::kMaxWriters + 1; ++w) {
    const InsertId id = {.writer = std::to_string(w), .incarnation = 1, .sequence = 1};
    ASSERT_EQ(*fence.Begin(id, 1), 0u);
    fence.Progress(id, 1, 1);
  }
  const InsertId last = {
      .writer = std::to_string(InsertFence::kMaxWriters - 1), .incarnation = 1, .sequence = 1};
  EXPECT_EQ(*fence.Begin(last, 1), 1u) << "a recent one is known";
  EXPECT_LT(fence.Save().size(), InsertFence::kMaxWriters);
}

}  // namespace
}  // namespace tandem::replay
