// Processes of an old epoch.

#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "collectives/connect/fenced_store.h"
#include "collectives/process_group.h"
#include "collectives/store/memory_store.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

ProcessGroupOptions At(int64_t epoch, int rank, int world_size) {
  ProcessGroupOptions options;
  options.epoch = epoch;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = absl::Seconds(30);
  return options;
}

TEST(EpochTest, AnOldEpochIsRefusedByNameAndANewOneGoesOn) {
  MemoryStore store;
  TANDEM_ASSERT_OK(EnterEpoch(&store, 5, "worker/0"));
  TANDEM_ASSERT_OK(EnterEpoch(&store, 5, "worker/1"));
  EXPECT_THAT(EnterEpoch(&store, 4, "worker/3"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("worker/3 belongs to epoch 4; the job is at epoch 5")));
  TANDEM_ASSERT_OK(EnterEpoch(&store, 6, "worker/0"));
  TANDEM_ASSERT_OK(store.Set("job/epoch", "many"));
  EXPECT_THAT(EnterEpoch(&store, 6, "worker/0"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("many")));
}

TEST(EpochTest, AGroupOfAnOldEpochFailsAtOnce) {
  MemoryStore store;
  TANDEM_ASSERT_OK(EnterEpoch(&store, 5, "launcher"));
  const absl::Time start = absl::Now();
  EXPECT_THAT(InitProcessGroup(&store, At(4, 3, 4)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("worker/3 belongs to epoch 4"), HasSubstr("epoch 5"))));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(EpochTest, AGroupThatWaitsForPeersHearsThatItsEpochIsOver) {
  MemoryStore store;
  const absl::Time start = absl::Now();
  std::thread waits([&] {
    EXPECT_THAT(InitProcessGroup(&store, At(4, 0, 2)).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the job is at epoch 5")));
  });
  TANDEM_ASSERT_OK(store.Wait({"job/epoch"}, absl::Seconds(20)));
  TANDEM_ASSERT_OK(EnterEpoch(&store, 5, "launcher"));
  waits.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

TEST(EpochTest, AWaitEndsWhenItIsNoLongerWanted) {
  MemoryStore store;
  ProcessGroupOptions options = At(0, 0, 2);
  options.still_wanted = [] { return absl::AbortedError("epoch 7 is over: node b has left"); };
  EXPECT_THAT(InitProcessGroup(&store, options).status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("node b has left")));
}

TEST(EpochTest, EpochsOfOneStoreDoNotMeet) {
  MemoryStore store;
  for (int64_t epoch = 1; epoch <= 2; ++epoch) {
    std::unique_ptr<ProcessGroup> groups[2];
    std::thread other([&] { groups[1] = InitProcessGroup(&store, At(epoch, 1, 2)).value(); });
    groups[0] = InitProcessGroup(&store, At(epoch, 0, 2)).value();
    other.join();
    std::thread leaves([&] { groups[1].reset(); });
    groups[0].reset();
    leaves.join();
  }
}

}  // namespace
}  // namespace tandem::collectives
