// SPDX-License-Identifier: Apache-2.0
// Results of the collectives over TCP: every kind, dtype and reduction, against a model.

#include <vector>

#include "collectives/backends/tcp/tcp_backend.h"
#include "tests/collectives/backends/backend_fixture.h"
#include "tests/collectives/backends/collective_model.h"

namespace tandem::collectives {
namespace {

class TcpCollectivesTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, TcpCollectivesTest, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(TcpCollectivesTest, EveryKindMatchesTheModel) {
  RunRanks(TcpBackendFactory(), GetParam(), [&](Backend& backend, int rank) {
    // Zero, one, odd, and more than every rank reduces whole.
    CheckEveryKind(backend, rank, GetParam(), {0, 1, 1001, 40001});
  });
}

TEST_P(TcpCollectivesTest, EveryReductionOfEveryDtypeMatchesTheModel) {
  RunRanks(TcpBackendFactory(), GetParam(), [&](Backend& backend, int rank) {
    CheckEveryReduction(backend, rank, GetParam(), {77, 30001});
  });
}

// The parameter is true if connections are encrypted.
class TcpLargeTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Encrypted, TcpLargeTest, ::testing::Bool());

TEST_P(TcpLargeTest, ArraysLongerThanAChunkMatchTheModel) {
  for (const int world : {2, 3}) {
    const auto body = [&](Backend& backend, int rank) {
      uint64_t sequence = 0;
      for (const OpKind kind : kCollectiveKinds) {
        Case c;
        c.kind = kind;
        c.count = 600001;
        c.root = world - 1;
        c.in_place = world == 2;
        c.even = !MayBeUneven(kind);
        CheckCollective(backend, rank, world, c, sequence++);
      }
      // Slices that are longer than their ring.
      for (const bool in_place : {false, true}) {
        Case c;
        c.count = 11 << 18;
        c.in_place = in_place;
        CheckCollective(backend, rank, world, c, sequence++);
      }
    };
    RunRanks(TcpBackendFactory(), world, body, /*addresses_of_their_own=*/GetParam());
  }
}

TEST(TcpBitsTest, AllRanksGetTheSameBitsWhateverTheSize) {
  constexpr int kWorld = 3;
  constexpr size_t kMost = 500000;
  // These sums depend on their order.
  auto input = [](int rank, size_t i) { return 1.0f / static_cast<float>(1 + (i * 7 + rank * 131) % 9973); };
  std::vector<float> want(kMost);
  for (size_t i = 0; i < kMost; ++i) want[i] = (input(0, i) + input(1, i)) + input(2, i);
  RunRanks(TcpBackendFactory(), kWorld, [&](Backend& backend, int rank) {
    uint64_t sequence = 0;
    for (const size_t count : {size_t{100}, size_t{50000}, kMost}) {
      std::vector<float> values(count);
      for (size_t i = 0; i < count; ++i) values[i] = input(rank, i);
      TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, sequence++)));
      EXPECT_TRUE(std::equal(values.begin(), values.end(), want.begin())) << count;
    }
  });
}

TEST(TcpBackToBackTest, ManySmallOperationsKeepTheirOrder) {
  RunRanks(TcpBackendFactory(), 3, [](Backend& backend, int rank) {
    for (uint64_t i = 0; i < 500; ++i) {
      std::vector<float> values(1 + i % 7, static_cast<float>(rank + i));
      TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, i)));
      EXPECT_EQ(values[0], static_cast<float>(3 * i + 3));
    }
  });
}

TEST(TcpManyGroupsTest, GroupsOfOneProcessRunBesideEachOther) {
  std::vector<std::thread> groups;
  for (int g = 0; g < 3; ++g) {
    groups.emplace_back([] {
      RunRanks(TcpBackendFactory(), 2, [](Backend& backend, int rank) {
        for (uint64_t i = 0; i < 50; ++i) {
          std::vector<float> values(20000, static_cast<float>(rank));
          TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, i)));
          EXPECT_EQ(values.back(), 1.0f);
        }
      });
    });
  }
  for (std::thread& group : groups) group.join();
}

}  // namespace
}  // namespace tandem::collectives
