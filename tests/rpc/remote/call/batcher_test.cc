// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/call/batcher.h"

#include <atomic>
#include <tuple>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/rpc/remote/cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/watched.h"

namespace tandem::rpc::remote {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::Watched;
using testing::Cluster;
using ::testing::HasSubstr;
using testing::kTestTimeout;

constexpr Function<int64_t(int64_t)> kTwice{"twice"};

class ConcurrencyTest : public ::testing::TestWithParam<int> {};

TEST_P(ConcurrencyTest, SoManyBatchesRunAtATimeAndTheOthersWait) {
  const int concurrency = GetParam();
  constexpr int kQueued = 3;
  Watched<int> running, refused;
  std::atomic<int> most{0};
  absl::Notification go_on;
  Functions functions;
  functions.AddBatched(kTwice,
                       [&](const std::vector<std::tuple<int64_t>>& arguments) {
                         const int now = ++running;
                         for (int before = most; before < now && !most.compare_exchange_weak(before, now);)
                           continue;
                         go_on.WaitForNotificationWithTimeout(kTestTimeout);
                         std::vector<absl::StatusOr<int64_t>> results;
                         for (const auto& [value] : arguments) results.push_back(2 * value);
                         --running;
                         return results;
                       },
                       {.max_batch = 1, .concurrency = concurrency, .max_queued = kQueued});
  Cluster cluster;
  RpcAgent& a = cluster.Add(Functions());
  cluster.Add(std::move(functions));
  const CallTarget to("worker/1", {.timeout = kTestTimeout});

  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < concurrency; ++i) calls.push_back(a.RpcAsync(to, kTwice, i));
  ASSERT_TRUE(running.AwaitValue(concurrency)) << "only " << running << " run";
  // One call more than may wait: when it is refused, the others have arrived, and none of them runs.
  for (int i = 0; i < kQueued + 1; ++i) {
    calls.push_back(a.RpcAsync(to, kTwice, concurrency + i));
    (void)calls.back().Then([&](const absl::StatusOr<int64_t>& result) {
      if (!result.ok()) ++refused;
    });
  }
  ASSERT_TRUE(refused.AwaitValue(1));
  EXPECT_EQ(running, concurrency);
  go_on.Notify();
  int failed = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const absl::StatusOr<int64_t> result = calls[i].Wait(kTestTimeout);
    if (result.ok()) {
      EXPECT_EQ(*result, 2 * static_cast<int64_t>(i));
    } else {
      ++failed;
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued")));
    }
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(most, concurrency);
  cluster.Kill(1);  // before the objects that its function uses
}

INSTANTIATE_TEST_SUITE_P(Concurrency, ConcurrencyTest, ::testing::Values(1, 2, 3));

TEST(BatcherDeathTest, OptionsUnderWhichNothingWouldEverRunAreRefused) {
  const auto none = [](const std::vector<std::tuple<int64_t>>& arguments) {
    return std::vector<absl::StatusOr<int64_t>>(arguments.size(), 0);
  };
  Functions functions;
  EXPECT_DEATH(functions.AddBatched(kTwice, none, {.concurrency = 0}), "twice.*concurrency is 0.*at least 1");
  EXPECT_DEATH(functions.AddBatched(kTwice, none, {.max_batch = 0}), "twice.*max_batch is 0.*at least 1");
}

}  // namespace
}  // namespace tandem::rpc::remote
