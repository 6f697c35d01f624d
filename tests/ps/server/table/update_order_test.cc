// SPDX-License-Identifier: Apache-2.0
// The rules of the update modes, without rows, locks or threads.

#include "ps/server/table/update_order.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kTable = "user";

TablePush StepOf(uint32_t worker, uint64_t step) {
  TablePush push;
  push.worker = worker;
  push.step = step;
  push.memory_bytes = 10;
  return push;
}

// Begins and finishes the next update. Returns (worker, step) of its pushes; none: no update can be made.
std::vector<std::pair<uint32_t, uint64_t>> MakeUpdate(UpdateOrder& order) {
  std::vector<std::pair<uint32_t, uint64_t>> pushes;
  const std::optional<UpdateOrder::Update> update = order.Begin();
  if (!update.has_value()) return pushes;
  for (const TablePush& push : order.Finish(*update)) pushes.emplace_back(push.worker, push.step);
  return pushes;
}

std::pair<uint32_t, uint64_t> Of(uint32_t worker, uint64_t step) { return {worker, step}; }

TEST(UpdateOrder, SyncMergesAStepOfAllWorkersInRankOrder) {
  UpdateOrder order(&kTable, Sync(), 3);
  for (const uint32_t worker : {2, 0}) order.Add(StepOf(worker, 0));
  EXPECT_THAT(MakeUpdate(order), ElementsAre());
  EXPECT_FALSE(order.PullMayRun(1));
  EXPECT_THAT(order.WhyWaiting(1, 0), HasSubstr("waits for the push of step 0 from worker 1 (sync)"));
  order.Add(StepOf(1, 0));
  EXPECT_EQ(order.waiting_pushes(), 3);
  EXPECT_THAT(MakeUpdate(order), ElementsAre(Of(0, 0), Of(1, 0), Of(2, 0)));
  EXPECT_EQ(order.waiting_pushes(), 0);
  EXPECT_TRUE(order.PullMayRun(1));
}

TEST(UpdateOrder, SyncMakesOneUpdateAtATime) {
  UpdateOrder order(&kTable, Sync(), 1);
  order.Add(StepOf(0, 0));
  order.Add(StepOf(0, 1));
  const std::optional<UpdateOrder::Update> first = order.Begin();
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(order.Begin().has_value());
  // The pushes of an update under way are still queued.
  EXPECT_THAT(order.CheckPush(0, 0), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr("already pushed"), HasSubstr("step 2"))));
  order.Finish(*first);
  EXPECT_THAT(MakeUpdate(order), ElementsAre(Of(0, 1)));
}

TEST(UpdateOrder, BoundedKeepsEachWorkersOrderAndMakesUpdatesOfSeveralWorkersAtATime) {
  UpdateOrder order(&kTable, Bounded(1), 2);
  order.Add(StepOf(0, 1));
  EXPECT_THAT(MakeUpdate(order), ElementsAre());  // step 0 comes first
  order.Add(StepOf(1, 0));
  order.Add(StepOf(0, 0));
  const std::optional<UpdateOrder::Update> a = order.Begin();
  const std::optional<UpdateOrder::Update> b = order.Begin();
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_THAT(a->workers, ElementsAre(0));
  EXPECT_THAT(b->workers, ElementsAre(1));
  EXPECT_FALSE(order.Begin().has_value());  // step 1 of worker 0 waits for its step 0
  order.Finish(*b);
  order.Finish(*a);
  EXPECT_THAT(MakeUpdate(order), ElementsAre(Of(0, 1)));
  EXPECT_TRUE(order.PullMayRun(2));
  EXPECT_FALSE(order.PullMayRun(3));
}

TEST(UpdateOrder, DeferredGradientsAdvanceNoClock) {
  UpdateOrder order(&kTable, Async(), 1);
  TablePush push = StepOf(0, 5);
  push.deferred_gradients = true;
  TANDEM_EXPECT_OK(order.CheckDeferredGradients(0));
  order.Add(std::move(push));
  EXPECT_THAT(MakeUpdate(order), ElementsAre(Of(0, 5)));
  EXPECT_EQ(order.clocks()[0], 0);
  order.SetMode(Sync());
  EXPECT_THAT(order.CheckDeferredGradients(0), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                        HasSubstr("push them before the mode changes")));
}

TEST(UpdateOrder, DeferredGradientsThatOvertakeAPushDoNotReplaceIt) {
  UpdateOrder order(&kTable, Bounded(1), 1);
  TablePush deferred = StepOf(0, 2);  // of steps up to 2, whose pushes are still on their way
  deferred.deferred_gradients = true;
  order.Add(std::move(deferred));
  for (const uint64_t step : {0, 1, 2}) TANDEM_EXPECT_OK(order.CheckPush(0, step));
  order.Add(StepOf(0, 2));
  EXPECT_THAT(order.CheckPush(0, 2), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MakeUpdate(order), ElementsAre(Of(0, 2)));  // the deferred gradients do not wait
  EXPECT_EQ(order.clocks()[0], 0);
  EXPECT_THAT(MakeUpdate(order), ElementsAre());
  order.Add(StepOf(0, 0));
  order.Add(StepOf(0, 1));
  for (const uint64_t step : {0, 1, 2}) EXPECT_THAT(MakeUpdate(order), ElementsAre(Of(0, step)));
  EXPECT_EQ(order.clocks()[0], 3);
}

TEST(UpdateOrder, LeavingSyncTakesTheLowestStepOfTheLowestRankFirst) {
  UpdateOrder order(&kTable, Sync(), 3);
  order.Add(StepOf(0, 0));
  order.Add(StepOf(0, 1));
  order.Add(StepOf(2, 0));
  EXPECT_FALSE(order.TakeLowestStep().has_value());
  order.SetMode(Async());
  std::vector<std::pair<uint32_t, uint64_t>> taken;
  while (const std::optional<TablePush> push = order.TakeLowestStep()) {
    taken.emplace_back(push->worker, push->step);
    order.AdvanceClock(*push);
  }
  EXPECT_THAT(taken, ElementsAre(Of(0, 0), Of(2, 0), Of(0, 1)));
}

TEST(UpdateOrder, IsSavedOnlyWithoutWaitingPushesAndRestoresItsClocks) {
  UpdateOrder order(&kTable, Sync(), 2);
  order.Add(StepOf(1, 0));
  EXPECT_THAT(order.Save(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("from worker 1")));
  EXPECT_EQ(order.Restore(/*version=*/7, {7, 7}), 10);  // the dropped push's bytes
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<uint64_t> clocks, order.Save());
  EXPECT_THAT(clocks, ElementsAre(7, 7));
  TANDEM_EXPECT_OK(order.CheckPush(0, 7));
  EXPECT_FALSE(order.CheckPush(0, 6).ok());
}

}  // namespace
}  // namespace tandem::ps
