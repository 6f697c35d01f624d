// SPDX-License-Identifier: Apache-2.0
// Results of the collectives across hosts: every kind, on hosts of different sizes, against a model. The
// hosts are names; the ranks are threads.

#include <atomic>
#include <string>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "collectives/backends/hierarchical/hierarchical_backend.h"
#include "tests/collectives/backends/backend_fixture.h"
#include "tests/collectives/backends/collective_model.h"
#include "tests/collectives/backends/hierarchical/hosts.h"

namespace tandem::collectives {
namespace {

class HierarchicalCollectivesTest : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Hosts, HierarchicalCollectivesTest,
                         ::testing::Values(Hosts{"a"}, Hosts{"a", "a"}, Hosts{"a", "b"},
                                           Hosts{"a", "a", "b", "b"}, Hosts{"a", "a", "a", "b"},
                                           Hosts{"a", "b", "a", "b"},
                                           Hosts{"b", "a", "a", "c", "c", "c", "a"}));

TEST_P(HierarchicalCollectivesTest, EveryKindFromEveryRootMatchesTheModel) {
  const int world = static_cast<int>(GetParam().size());
  RunRanks(Factory(), GetParam(), [&](Backend& backend, int rank) {
    uint64_t sequence = 0;
    for (const OpKind kind : kCollectiveKinds) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{1001}, size_t{80001}}) {
        for (const bool in_place : {false, true}) {
          Case c;
          c.kind = kind;
          c.count = count;
          c.in_place = in_place;
          for (c.root = 0; c.root<(count < 2000 ? world : 1); c.root += world> 4 ? 3 : 1) {
            c.even = true;
            CheckCollective(backend, rank, world, c, sequence++);
            c.even = false;
            if (MayBeUneven(kind)) CheckCollective(backend, rank, world, c, sequence++);
          }
        }
      }
    }
  });
}

TEST(HierarchicalReductionTest, EveryReductionOfEveryDtypeMatchesTheModel) {
  const Hosts hosts = {"a", "a", "b", "a"};
  RunRanks(Factory(), hosts,
           [&](Backend& backend, int rank) { CheckEveryReduction(backend, rank, /*world=*/4, {777}); });
}

TEST(HierarchicalBitsTest, AllRanksGetTheSameBits) {
  const Hosts hosts = {"a", "b", "a", "b", "b"};
  constexpr size_t kCount = 200000;
  std::vector<std::vector<float>> results(hosts.size());
  RunRanks(Factory(), hosts, [&](Backend& backend, int rank) {
    std::vector<float> values(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      values[i] = 1.0f / static_cast<float>(1 + (i * 7 + rank * 131) % 9973);
    }
    TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, 0)));
    results[rank] = std::move(values);
  });
  for (const auto& one : results) EXPECT_EQ(one, results[0]);
}

TEST(HierarchicalNameTest, TheBackendIsTheOneThatItsHostsNeed) {
  auto name = [](const Hosts& hosts) {
    absl::Mutex mutex;
    std::string found;
    RunRanks(Factory(), hosts, [&](Backend& backend, int) {
      absl::MutexLock lock(&mutex);
      found = std::string(backend.name());
    });
    return found;
  };
  EXPECT_EQ(name({"a", "a"}), "shm");
  EXPECT_EQ(name({"a", "b"}), "gloo");
  EXPECT_EQ(name({"a", "b", "a"}), "shm+gloo");
}

TEST(HierarchicalPointToPointTest, MessagesCrossHostsAndComeFromAnyRank) {
  const Hosts hosts = {"a", "a", "b", "b"};
  RunRanks(Factory(), hosts, [](Backend& backend, int rank) {
    for (const size_t count : {size_t{10}, size_t{100000}}) {
      const uint32_t tag = static_cast<uint32_t>(count);
      if (rank == 0) {
        std::vector<bool> seen(4, false);
        for (int i = 0; i < 3; ++i) {
          std::vector<float> got(count);
          const absl::StatusOr<int> source = backend.RunPointToPoint(RecvOf(&got, kAnySource, tag));
          TANDEM_ASSERT_OK(source);
          EXPECT_FALSE(seen[*source]);
          seen[*source] = true;
          EXPECT_EQ(got, std::vector<float>(count, static_cast<float>(*source)));
        }
      } else {
        TANDEM_ASSERT_OK(
            backend.RunPointToPoint(MakeSend(std::vector<float>(count, static_cast<float>(rank)), 0, tag)));
      }
      TANDEM_ASSERT_OK(backend.Run(MakeBarrier(count)));
    }
    // A message that does not fit fails alone.
    std::vector<float> two(2);
    if (rank == 3) {
      TANDEM_EXPECT_OK(backend.RunPointToPoint(MakeSend(std::vector<float>(3), 1)));
    }
    if (rank == 1) {
      EXPECT_THAT(
          backend.RunPointToPoint(RecvOf(&two, 3)).status(),
          testing::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("rank 3 calls")));
    }
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(1)));
  });
}

}  // namespace
}  // namespace tandem::collectives
