// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/shared_failure_state.h"

#include <thread>

#include "cluster/store/memory_store.h"
#include "gtest/gtest.h"

namespace tandem::collectives::tcp {
namespace {

TEST(SharedFailureStateTest, AReasonIsFoundUnderTheRankThatLeftIt) {
  cluster::MemoryStore store;
  SharedFailureState one(&store, 1), other(&store, 0);
  one.Record(absl::DataLossError("the disk is gone"));
  const auto found = other.Find({2, 1}, absl::ZeroDuration());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->reason, absl::DataLossError("the disk is gone"));
  EXPECT_FALSE(other.Find({2}, absl::Milliseconds(10)));
}

TEST(SharedFailureStateTest, FindDoesNotBlockRecordOfAnotherThread) {
  cluster::MemoryStore store;
  SharedFailureState ours(&store, 0), theirs(&store, 1);
  // Both ranks look for the other's reason. Ours is recorded while we look; theirs comes only after that.
  std::thread looking([&] {
    const auto found = ours.Find({1}, absl::Seconds(20));
    ASSERT_TRUE(found);
    EXPECT_EQ(found->reason, absl::AbortedError("theirs"));
  });
  std::thread peer([&] {
    const auto found = theirs.Find({0}, absl::Seconds(20));
    EXPECT_TRUE(found);
    theirs.Record(absl::AbortedError("theirs"));
  });
  ours.Record(absl::AbortedError("ours"));
  looking.join();
  peer.join();
}

}  // namespace
}  // namespace tandem::collectives::tcp
