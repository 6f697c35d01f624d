// SPDX-License-Identifier: Apache-2.0
// Results of the collectives over shared memory: every kind, dtype and reduction, against a model.

#include <vector>

#include "collectives/backends/shm/shm_backend.h"
#include "tests/collectives/backends/backend_fixture.h"
#include "tests/collectives/backends/collective_model.h"

namespace tandem::collectives {
namespace {

class ShmCollectivesTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, ShmCollectivesTest, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(ShmCollectivesTest, EveryKindMatchesTheModel) {
  RunRanks(ShmBackendFactory(), GetParam(), [&](Backend& backend, int rank) {
    // Zero, one; sizes around the capacity of a post; one block; several blocks.
    CheckEveryKind(backend, rank, GetParam(), {0, 1, 13, 146, 1024, 1025, 9001, 140001});
  });
}

TEST_P(ShmCollectivesTest, EveryReductionOfEveryDtypeMatchesTheModel) {
  RunRanks(ShmBackendFactory(), GetParam(), [&](Backend& backend, int rank) {
    CheckEveryReduction(backend, rank, GetParam(), {77, 3001, 30001});
  });
}

// Blocks wrap around the stage many times, with small operations between; results bypass the caches.
TEST(ShmLargeTest, LongAndShortOperationsInTurnMatchTheModel) {
  for (const int world : {2, 3}) {
    RunRanks(ShmBackendFactory(), world, [&](Backend& backend, int rank) {
      uint64_t sequence = 0;
      for (const OpKind kind :
           {OpKind::kAllReduce, OpKind::kBroadcast, OpKind::kAllGather, OpKind::kReduce, OpKind::kAllToAll}) {
        Case c;
        c.kind = kind;
        for (const size_t count : {size_t{2'500'003}, size_t{3}, size_t{700'001}, size_t{5000}}) {
          c.count = count;
          c.in_place = !c.in_place;
          CheckCollective(backend, rank, world, c, sequence++);
        }
      }
    });
  }
}

// Inexact sums make the order of evaluation visible.
TEST(ShmBitsTest, AllRanksGetTheSameBitsAtEverySize) {
  for (const int world : {2, 3, 4}) {
    for (const size_t count : {size_t{5}, size_t{1500}, size_t{200'001}}) {
      std::vector<std::vector<float>> results(world);
      RunRanks(ShmBackendFactory(), world, [&](Backend& backend, int rank) {
        std::vector<float> values(count);
        for (size_t i = 0; i < count; ++i) values[i] = 1.0f / static_cast<float>(1 + rank * 7 + i % 97);
        TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, 0)));
        results[rank] = values;
      });
      for (size_t i = 0; i < count; ++i) {
        float sum = 1.0f / static_cast<float>(1 + i % 97);
        for (int r = 1; r < world; ++r) sum += 1.0f / static_cast<float>(1 + r * 7 + i % 97);
        ASSERT_EQ(results[0][i], sum) << i;
      }
      for (int r = 1; r < world; ++r) EXPECT_EQ(results[r], results[0]);
    }
  }
}

TEST(ShmGroupsTest, ManyGroupsRunBesideEachOther) {
  std::vector<std::thread> groups;
  for (int g = 0; g < 4; ++g) {
    groups.emplace_back([g] {
      RunRanks(ShmBackendFactory(), 2 + g % 2, [&](Backend& backend, int rank) {
        for (uint64_t i = 0; i < 200; ++i) {
          std::vector<float> values(1 + i * g * 7, static_cast<float>(rank + 1));
          TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, i)));
          EXPECT_EQ(values.front(), g % 2 == 0 ? 3 : 6);
          EXPECT_EQ(values.back(), values.front());
        }
      });
    });
  }
  for (std::thread& group : groups) group.join();
}

TEST(ShmGroupsTest, SixtyFourRanksMeet) {
  RunRanks(ShmBackendFactory(), 64, [&](Backend& backend, int rank) {
    for (const size_t count : {size_t{3}, size_t{20'000}}) {
      std::vector<float> values(count, 1.0f);
      TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, count)));
      EXPECT_EQ(values, std::vector<float>(count, 64.0f));
    }
  });
}

}  // namespace
}  // namespace tandem::collectives
