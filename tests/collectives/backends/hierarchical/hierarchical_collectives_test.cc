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

// The sum of eight times 10000 is beyond f16, the average and the sum with opposite signs are not.
TEST(HierarchicalHalfTest, PartialResultsBeyondTheRangeOfF16AreKept) {
  const Hosts hosts = {"a", "a", "a", "a", "b", "b", "b", "b"};
  RunRanks(Factory(), hosts, [&](Backend& backend, int rank) {
    // The second count is several pieces of widened values.
    uint64_t sequence = 0;
    for (const size_t count : {size_t{1001}, (size_t{4} << 20) + 3}) {
      std::vector<Float16> values(count, Float16(10000.0f));
      Operation average = AllReduceOf(&values, sequence++);
      average.reduce = ReduceOp::kAvg;
      TANDEM_ASSERT_OK(backend.Run(average));
      EXPECT_EQ(values, std::vector<Float16>(count, Float16(10000.0f)));
    }
    const float own = rank < 4 ? 20000.0f : -20000.0f;  // +-80000 on each host
    std::vector<Float16> values(5, Float16(own));
    TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, sequence++)));
    EXPECT_EQ(values, std::vector<Float16>(5, Float16(0.0f)));

    for (const int root : {0, 5}) {
      std::vector<Float16> in(5, Float16(own)), out(5);
      Operation reduce = AllReduceOf(&in, sequence++);
      reduce.kind = OpKind::kReduce;
      reduce.root = root;
      reduce.out = rank == root ? Part{out.data(), out.size()} : Part{};
      TANDEM_ASSERT_OK(backend.Run(reduce));
      EXPECT_EQ(out, std::vector<Float16>(5, Float16(0.0f)));
    }

    std::vector<Float16> in(16, Float16(10000.0f)), out(2);
    std::vector<ConstPart> ins;
    for (int part = 0; part < 8; ++part) ins.push_back({&in[2 * part], 2});
    Operation scatter = AllReduceOf(&in, sequence++);
    scatter.kind = OpKind::kReduceScatter;
    scatter.reduce = ReduceOp::kAvg;
    scatter.in = {};
    scatter.ins = ins;
    scatter.out = {out.data(), 2};
    TANDEM_ASSERT_OK(backend.Run(scatter));
    EXPECT_EQ(out, std::vector<Float16>(2, Float16(10000.0f)));
  });
}

// 256 + 1 is 256 in bf16: a host that rounded its sum would lose the one.
TEST(HierarchicalHalfTest, SumsAreRoundedOnce) {
  const Hosts hosts = {"a", "a", "b", "b"};
  RunRanks(Factory(), hosts, [&](Backend& backend, int rank) {
    const float inputs[] = {256.0f, 1.0f, -256.0f, 1.0f};
    std::vector<BFloat16> values(9, BFloat16(inputs[rank]));
    TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, 0)));
    EXPECT_EQ(values, std::vector<BFloat16>(9, BFloat16(2.0f)));
  });
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
  EXPECT_EQ(name({"a", "b"}), "tcp");
  EXPECT_EQ(name({"a", "b", "a"}), "shm+tcp");
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
      EXPECT_THAT(backend.RunPointToPoint(RecvOf(&two, 3)).status(),
                  testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                    ::testing::HasSubstr("rank 3 sent f32 x 3 instead")));
    }
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(1)));
  });
}

}  // namespace
}  // namespace tandem::collectives
