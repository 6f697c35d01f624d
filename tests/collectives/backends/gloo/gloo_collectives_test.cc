// SPDX-License-Identifier: Apache-2.0
// Results over Gloo that the conformance suite, whose values are exact in any order, does not check.

#include <cstdint>
#include <vector>

#include "collectives/backends/gloo/gloo_backend.h"
#include "tests/collectives/backends/backend_fixture.h"

namespace tandem::collectives {
namespace {

TEST(GlooBitsTest, AllRanksGetTheSameBitsEachTime) {
  constexpr int kWorld = 3;
  // Short arrays are reduced by halving-doubling, long ones by a ring.
  for (const size_t count : {size_t{1001}, size_t{50'001}}) {
    std::vector<std::vector<float>> results(2 * kWorld);
    RunRanks(GlooBackendFactory(), kWorld, [&](Backend& backend, int rank) {
      for (uint64_t round = 0; round < 2; ++round) {
        std::vector<float> values(count);
        for (size_t i = 0; i < count; ++i) {  // these sums depend on their order
          values[i] = 1.0f / static_cast<float>(1 + (i * 7 + rank * 131) % 9973);
        }
        TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, round)));
        results[2 * rank + round] = std::move(values);
      }
    });
    for (const std::vector<float>& result : results) EXPECT_EQ(result, results[0]);
  }
}

TEST(GlooManyGroupsTest, GroupsOfOneProcessRunBesideEachOther) {
  std::vector<std::thread> groups;
  for (int g = 0; g < 3; ++g) {
    groups.emplace_back([] {
      RunRanks(GlooBackendFactory(), 2, [](Backend& backend, int) {
        for (uint64_t round = 0; round < 50; ++round) {
          std::vector<float> values(1000, 1.0f);
          TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, round)));
          EXPECT_EQ(values, std::vector<float>(1000, 2.0f));
        }
      });
    });
  }
  for (std::thread& group : groups) group.join();
}

}  // namespace
}  // namespace tandem::collectives
