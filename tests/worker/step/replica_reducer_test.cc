// SPDX-License-Identifier: Apache-2.0
#include "worker/step/replica_reducer.h"

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "cluster/store/memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/ps/replicated/fake_row_home.h"
#include "tests/testing/status_matchers.h"

namespace tandem::worker {
namespace {

using ::tandem::testing::FakeRowHome;
using ::tandem::testing::FakeRows;

constexpr int kRanks = 3;
constexpr uint64_t kRows = 200;

struct Reduced {
  std::vector<float> weights;
  uint64_t sent_bytes = 0;
};

// Trains three ranks for some steps, of which each touches `touched` rows, and returns what they have.
std::vector<Reduced> Train(size_t dense_bytes, uint64_t touched) {
  ps::v1::TableConfig config = ps::EmbeddingTable("t", 4, ps::Adam(0.1f), ps::Normal(0, 0.1f));
  FakeRows rows(config);
  cluster::MemoryStore store;
  std::vector<Reduced> results(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      auto group = collectives::InitProcessGroup(
          &store, {.rank = rank, .world_size = kRanks, .timeout = absl::Seconds(30)});
      TANDEM_ASSERT_OK(group.status());
      FakeRowHome home({{"t", &rows}});
      auto replicas = ps::ReplicatedTables::Create({{.config = config}}, {}, &home);
      TANDEM_ASSERT_OK(replicas.status());
      std::vector<uint64_t> ids(kRows);
      for (uint64_t i = 0; i < kRows; ++i) ids[i] = i;
      TANDEM_ASSERT_OK((*replicas)->Restore({ids}));
      ps::ReplicatedRows* const table = (*replicas)->table(0);
      ReplicaReducer reducer(group->get(), replicas->get(), dense_bytes);
      for (uint64_t step = 0; step < 5; ++step) {
        CounterRandom random(step, static_cast<uint64_t>(rank));
        // The last rank touches nothing in the last step.
        const uint64_t mine = rank == kRanks - 1 && step == 4 ? 0 : touched;
        for (uint64_t i = 0; i < mine; ++i) {
          const float gradient[] = {random.Uniform(), random.Uniform(), random.Uniform(), random.Uniform()};
          table->AddGradient(static_cast<uint32_t>((7 * i + step) % kRows), gradient);
        }
        reducer.Begin();
        TANDEM_ASSERT_OK(reducer.Finish());
        TANDEM_ASSERT_OK((*replicas)->Apply(step, 1.0f));
      }
      for (uint32_t slot = 0; slot < kRows; ++slot) {
        results[rank].weights.insert(results[rank].weights.end(), table->weights(slot),
                                     table->weights(slot) + 4);
      }
      results[rank].sent_bytes = reducer.sent_bytes();
      TANDEM_ASSERT_OK((*group)->Barrier().status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(ReplicaReducerTest, ALargeTableSendsOnlyTouchedRowsWhenTheyAreFew) {
  const std::vector<Reduced> whole = Train(1 << 20, 5), touched = Train(0, 5);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(whole[rank].weights, whole[0].weights);
    EXPECT_EQ(touched[rank].weights, whole[0].weights);
    EXPECT_EQ(whole[rank].sent_bytes, 5 * kRows * 5 * sizeof(float));
    EXPECT_LE(touched[rank].sent_bytes, 5 * 5 * 5 * sizeof(float));
  }
}

TEST(ReplicaReducerTest, ATableOfWhichMostRowsAreTouchedIsSentAsAWhole) {
  const std::vector<Reduced> touched = Train(0, 150);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(touched[rank].weights, touched[0].weights);
    EXPECT_EQ(touched[rank].sent_bytes, 5 * kRows * 5 * sizeof(float));
  }
}

}  // namespace
}  // namespace tandem::worker
