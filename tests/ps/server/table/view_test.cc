// SPDX-License-Identifier: Apache-2.0
// The versions that a pull reports while several updates of the table run in parallel.

#include <atomic>
#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/buffer_pool.h"
#include "gtest/gtest.h"
#include "ps/server/table/server_table.h"
#include "tests/ps/checkpoint/map_storage.h"
#include "tests/ps/server/table/sum_table.h"

namespace tandem::ps::testing {
namespace {

constexpr absl::Duration kTestTimeout = absl::Seconds(30);

// A storage whose first update does not end before the test allows it.
class SlowlyUpdatedStorage final : public MapStorage {
 public:
  SlowlyUpdatedStorage() : MapStorage(/*num_buckets=*/1) {}

  absl::StatusOr<uint64_t> Apply(absl::Span<const uint64_t>, const float*, const ApplyOptions&) override {
    if (begun_.exchange(true)) return 0;
    has_begun.Notify();
    EXPECT_TRUE(may_end.WaitForNotificationWithTimeout(kTestTimeout));
    return 0;
  }

  absl::Notification has_begun, may_end;

 private:
  std::atomic<bool> begun_{false};
};

TEST(ServerTableView, AnUpdateThatIsDoneCountsThoughAnEarlierOneIsUnderWay) {
  auto storage = std::make_shared<SlowlyUpdatedStorage>();
  BufferPool buffers;
  ServerTable table(SumTable(2, Async()), storage, &buffers, /*helpers=*/nullptr, /*places=*/true, nullptr);
  const uint64_t id = 42;
  const float gradient = 1;
  const auto push = [&](uint32_t worker) {
    TablePush one;
    one.worker = worker;
    one.ids = absl::MakeConstSpan(&id, 1);
    one.gradients = &gradient;
    table.Enqueue(std::move(one));
    table.Drain();
  };
  std::thread slow(push, 0);
  ASSERT_TRUE(storage->has_begun.WaitForNotificationWithTimeout(kTestTimeout));
  push(1);
  // The rows may or may not hold the second update, so `version` does not count it. A push that is pulled now
  // lacks only the slow update, so `applied` does.
  EXPECT_EQ(table.Look().version, 0);
  EXPECT_EQ(table.Look().applied, 1);
  storage->may_end.Notify();
  slow.join();
  EXPECT_EQ(table.Look().version, 2);
  EXPECT_EQ(table.Look().applied, 2);
}

// Rows that are written directly have the version of the next update, perhaps before they are there.
TEST(ServerTableView, DoesNotPassTheVersionOfRowsThatAreBeingWritten) {
  auto storage = std::make_shared<SlowlyUpdatedStorage>();
  storage->may_end.Notify();
  BufferPool buffers;
  ServerTable table(SumTable(1, Async()), storage, &buffers, /*helpers=*/nullptr, /*places=*/true, nullptr);
  const uint64_t id = 42;
  const float gradient = 1;
  const uint64_t writes = table.writes();
  {
    const ServerTable::WriteScope write(&table);
    for (int i = 0; i < 2; ++i) {
      TablePush one;
      one.ids = absl::MakeConstSpan(&id, 1);
      one.gradients = &gradient;
      table.Enqueue(std::move(one));
      table.Drain();
    }
    EXPECT_EQ(table.Look().version, 0);
    EXPECT_EQ(table.writes(), writes);
  }
  EXPECT_EQ(table.Look().version, 2);
  EXPECT_EQ(table.writes(), writes + 1);
}

}  // namespace
}  // namespace tandem::ps::testing
