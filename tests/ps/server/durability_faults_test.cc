// SPDX-License-Identifier: Apache-2.0
// Durable servers on disks that fail, fill up or forget.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/server/durable_shard.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Repeats `step` until `done` returns true.
void RepeatUntil(const std::function<bool()>& done, const std::function<void()>& step) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (!done()) {
    ASSERT_LT(absl::Now(), deadline);
    step();
  }
}

TEST(DurabilityFaults, RowsThatWereCopiedLateAreAsOldAfterARestartAsBefore) {
  constexpr uint64_t kTtl = 300;
  Shard shard([](ParameterServerOptions* options) { options->durability.snapshot_bytes = 4000; });
  TANDEM_ASSERT_OK(shard.Start());
  v1::TableConfig config = CountTable(1, Async());
  *config.mutable_eviction() = EvictAfter(kTtl);
  TANDEM_ASSERT_OK(shard->CreateTable(config));
  uint64_t step = 0;
  const auto push = [&] {
    TANDEM_ASSERT_OK(shard->Push({.step = step}, {CountPush(0, step)}));
    ++step;
  };
  shard.files().HoldSnapshots(true);
  while (step < 60) push();
  shard.files().AwaitHeldSnapshot();
  // All buckets are copied some 350 updates after the snapshot's state.
  while (step < 400) push();
  shard.files().HoldSnapshots(false);
  shard.AwaitSnapshot(0);
  while (step < 420) push();
  shard.Kill();
  TANDEM_ASSERT_OK(shard.Start());
  ASSERT_GT(shard.Info().snapshot_position(), 0u);
  for (uint64_t s = step - kTtl + 1; s < step; ++s) {
    ASSERT_EQ(ValueOf(shard, PrivateRow(0, s)), 1.0f) << "step " << s << " of " << step;
  }
}

TEST(DurabilityFaults, ALogThatGrewWhileASnapshotWasTakenIsTruncatedWithoutAnotherPush) {
  Shard shard([](ParameterServerOptions* options) { options->durability.snapshot_bytes = 2000; });
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  uint64_t step = 0;
  const auto push = [&] {
    TANDEM_ASSERT_OK(shard->Push({.step = step}, {CountPush(0, step)}));
    ++step;
  };
  shard.files().HoldSnapshots(true);
  while (step < 40) push();
  shard.files().AwaitHeldSnapshot();
  // More than the bytes after which the next snapshot is due.
  while (step < 100) push();
  shard.files().HoldSnapshots(false);
  shard.AwaitSnapshot(1);
  EXPECT_LT(shard.Info().log_bytes(), 2000u);
}

TEST(DurabilityFaults, AYoungLogWithoutSyncsIsNeverTakenForAnEmptyOne) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Shard shard([](ParameterServerOptions* options) { options->durability.sync = false; });
    TANDEM_ASSERT_OK(shard.Start());
    TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
    TANDEM_ASSERT_OK(shard->Push({.step = 0}, {CountPush(0, 0)}));
    shard.LosePower(seed);
    EXPECT_THAT(shard.Start(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--accept-loss")));
  }
}

// Damages or removes one of the segments, and expects a refusal without `accept_loss`. With it the server
// starts with the pushes before.
void ExpectRefusedUnlessLossIsAccepted(const std::function<size_t(size_t segments)>& which, bool remove) {
  bool accept_loss = false;
  Shard shard([&](ParameterServerOptions* options) { options->durability.accept_loss = accept_loss; });
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  constexpr uint64_t kSteps = 100;
  for (uint64_t step = 0; step < kSteps; ++step) {
    TANDEM_ASSERT_OK(shard->Push({.step = step}, {CountPush(0, step)}));
  }
  shard.Kill();
  const std::vector<std::string> paths = shard.files().Paths("/shard/log-");
  ASSERT_GT(paths.size(), 2u);
  const std::string path = paths[which(paths.size())];
  SCOPED_TRACE(path);
  if (remove) {
    TANDEM_ASSERT_OK(shard.files().Remove(path));
    TANDEM_ASSERT_OK(shard.files().SyncDirectory("/shard"));
  } else {
    shard.files().Change(path, [](std::string* content) { (*content)[9] ^= 1; });
  }
  EXPECT_THAT(shard.Start(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/shard/log-")));
  accept_loss = true;
  TANDEM_ASSERT_OK(shard.Start());
  const float kept = ValueOf(shard, kShared);
  EXPECT_GT(kept, 0.0f);
  EXPECT_LT(kept, static_cast<float>(kSteps));
  TANDEM_ASSERT_OK(shard->Push({.step = kSteps}, {CountPush(0, kSteps)}));
  shard.Kill();
  accept_loss = false;  // it has been accepted
  TANDEM_ASSERT_OK(shard.Start());
  EXPECT_EQ(ValueOf(shard, kShared), kept + 1);
}

TEST(DurabilityFaults, ADamagedBeginningOfASegmentWithRecordsIsNotTakenForTheEnd) {
  ExpectRefusedUnlessLossIsAccepted([](size_t segments) { return segments - 1; }, /*remove=*/false);
  ExpectRefusedUnlessLossIsAccepted([](size_t) { return 1; }, /*remove=*/false);
}

TEST(DurabilityFaults, AMissingSegmentIsRefusedUnlessTheLossIsAccepted) {
  ExpectRefusedUnlessLossIsAccepted([](size_t) { return 1; }, /*remove=*/true);
}

TEST(DurabilityFaults, ClientsRepeatCallsThatTheEndOfTheServerInterrupts) {
  Shard shard;
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(2, Sync())));
  TANDEM_ASSERT_OK(shard->Push({.worker = 0, .step = 0}, {CountPush(0, 0)}));
  const auto parked = shard->StartPull(0, 1, {{"user", {kShared}}});  // waits for worker 1
  EXPECT_FALSE(parked->answered());
  shard->server().Stop();
  EXPECT_THAT(parked->Wait().status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("stopping")));
}

TEST(DurabilityFaults, ASnapshotAndTheLogDoNotWaitForEachOtherOnAFullDisk) {
  Shard shard([](ParameterServerOptions* options) { options->durability.snapshot_bytes = 4000; });
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  shard.files().HoldSnapshots(true);
  uint64_t step = 0;
  for (; step < 60; ++step) TANDEM_ASSERT_OK(shard->Push({.step = step}, {CountPush(0, step)}));
  shard.files().AwaitHeldSnapshot();
  shard.files().set_capacity(shard.files().used());
  std::vector<std::shared_ptr<TestCall>> calls;
  for (; step < 200; ++step) calls.push_back(shard->StartPush({.step = step}, {CountPush(0, step)}));
  RepeatUntil([&] { return absl::StrContains(shard.Info().failure(), "full"); },
              [] { std::this_thread::yield(); });
  shard.files().HoldSnapshots(false);
  // The background thread has given the snapshot up, or this call would not be answered.
  v1::ScanRowsRequest scan;
  scan.set_table("user");
  TANDEM_EXPECT_OK(shard->Call<v1::ScanRowsResponse>("ScanRows", scan));
  EXPECT_EQ(shard.Info().snapshots(), 0u);
  shard.files().set_capacity(~uint64_t{0});
  for (const auto& call : calls) TANDEM_EXPECT_OK(call->Wait());
  RepeatUntil([&] { return shard.Info().snapshots() > 0; },
              [&] {
                TANDEM_ASSERT_OK(shard->Push({.step = step}, {CountPush(0, step)}));
                ++step;
              });
  shard.Kill();
  TANDEM_ASSERT_OK(shard.Start());
  EXPECT_EQ(ValueOf(shard, kShared), static_cast<float>(step));
}

TEST(DurabilityFaults, PushesOnAFullDiskAreRefusedAtTheirDeadlinesAndFreed) {
  Shard shard;
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  shard.files().set_capacity(shard.files().used());
  std::vector<std::shared_ptr<TestCall>> calls;
  uint64_t step = 0;
  for (; step < 100; ++step) calls.push_back(shard->StartPush({.step = step}, {CountPush(0, step)}));
  RepeatUntil([&] { return absl::StrContains(shard.Info().failure(), "full"); },
              [] { std::this_thread::yield(); });
  const auto later = [&](absl::Time deadline) {
    return shard->Start("Push", PushRequestBytes({.step = step}, {CountPush(0, step)}), deadline);
  };
  std::vector<std::weak_ptr<TestCall>> expired;
  for (int i = 0; i < 20; ++i) {
    const std::shared_ptr<TestCall> call = later(absl::Now() + absl::Milliseconds(20));
    EXPECT_THAT(call->Wait().status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("waited for space in the log"), HasSubstr("the disk is full"))));
    expired.push_back(call);
  }
  const std::shared_ptr<TestCall> patient = later(absl::InfiniteFuture());
  RepeatUntil(
      [&] {
        return std::all_of(expired.begin(), expired.end(), [](const auto& call) { return call.expired(); });
      },
      [] { std::this_thread::yield(); });
  shard.files().set_capacity(~uint64_t{0});
  for (const auto& call : calls) TANDEM_EXPECT_OK(call->Wait());
  TANDEM_EXPECT_OK(patient->Wait());
  EXPECT_EQ(ValueOf(shard, kShared), 101.0f);
}

TEST(DurabilityFaults, AServerStartsOnAFullDiskAndLeavesNoSegmentsWithoutRecords) {
  Shard shard;
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  TANDEM_ASSERT_OK(shard->Push({.step = 0}, {CountPush(0, 0)}));
  for (int life = 0; life < 20; ++life) {
    shard.Kill();
    TANDEM_ASSERT_OK(shard.Start());
  }
  EXPECT_EQ(shard.files().Paths("/shard/log-").size(), 2u);
  shard.Kill();
  shard.files().set_capacity(shard.files().used() - 1);
  TANDEM_ASSERT_OK(shard.Start());
  EXPECT_EQ(ValueOf(shard, kShared), 1.0f);
  const auto push = shard->StartPush({.step = 1}, {CountPush(0, 1)});
  RepeatUntil([&] { return absl::StrContains(shard.Info().failure(), "full"); },
              [] { std::this_thread::yield(); });
  EXPECT_FALSE(push->answered());
  shard.files().set_capacity(~uint64_t{0});
  TANDEM_EXPECT_OK(push->Wait());
  shard.Kill();
  TANDEM_ASSERT_OK(shard.Start());
  EXPECT_EQ(ValueOf(shard, kShared), 2.0f);
}

TEST(DurabilityFaults, WhatAFailedSyncLeftInTheCacheIsWrittenAgainBeforeItCounts) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Shard shard;
    TANDEM_ASSERT_OK(shard.Start());
    TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
    TANDEM_ASSERT_OK(shard->Push({.step = 0}, {CountPush(0, 0)}));
    shard.files().FailSyncs();
    EXPECT_THAT(shard->Push({.step = 1}, {CountPush(0, 1)}), StatusIs(absl::StatusCode::kUnavailable));
    shard.Kill();
    TANDEM_ASSERT_OK(shard.Start());
    // The record is in the kernel's cache, so the push counts as taken.
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::PushResponse again, shard->Push({.step = 1}, {CountPush(0, 1)}));
    EXPECT_TRUE(again.duplicate());
    shard.LosePower(seed);
    TANDEM_ASSERT_OK(shard.Start());
    EXPECT_EQ(ValueOf(shard, kShared), 2.0f);
  }
}

TEST(DurabilityFaults, OldFilesThatCannotBeRemovedDoNotEndASnapshot) {
  Shard shard([](ParameterServerOptions* options) { options->durability.snapshot_bytes = 9000; });
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  shard.files().FailRemoves(true);
  uint64_t step = 0;
  const auto push = [&] {
    TANDEM_ASSERT_OK(shard->Push({.step = step}, {CountPush(0, step)}));
    ++step;
  };
  RepeatUntil([&] { return shard.Info().snapshots() > 0; }, push);
  const size_t segments = shard.files().Paths("/shard/log-").size();
  EXPECT_GT(segments, 1u);
  shard.files().FailRemoves(false);
  RepeatUntil([&] { return shard.Info().snapshots() > 1; }, push);
  RepeatUntil([&] { return shard.files().Paths("/shard/snapshot-").size() == 1; }, push);
  shard.Kill();
  TANDEM_ASSERT_OK(shard.Start());
  EXPECT_EQ(ValueOf(shard, kShared), static_cast<float>(step));
}

}  // namespace
}  // namespace tandem::ps::testing
