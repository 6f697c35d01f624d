// What the collectives bring over Gloo: every kind, dtype and reduction, against a model.

#include <vector>

#include "collectives/backends/gloo/gloo_backend.h"
#include "collectives/reduce/reduce.h"
#include "tests/collectives/backends/backend_fixture.h"
#include "tests/collectives/backends/collective_model.h"

namespace tandem::collectives {
namespace {

constexpr OpKind kKinds[] = {OpKind::kAllReduce,     OpKind::kReduce,   OpKind::kBroadcast,
                             OpKind::kAllGather,     OpKind::kGather,   OpKind::kScatter,
                             OpKind::kReduceScatter, OpKind::kAllToAll, OpKind::kBarrier};

bool MayBeUneven(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kGather || kind == OpKind::kScatter ||
         kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll;
}

class GlooCollectivesTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, GlooCollectivesTest, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(GlooCollectivesTest, EveryKindBringsWhatTheModelSays) {
  const int world = GetParam();
  RunRanks(GlooBackendFactory(), world, [&](Backend& backend, int rank) {
    uint64_t sequence = 0;
    for (const OpKind kind : kKinds) {
      // None, one, odd, more than every rank reduces whole.
      for (const size_t count : {size_t{0}, size_t{1}, size_t{1001}, size_t{40001}}) {
        for (const bool in_place : {false, true}) {
          Case c;
          c.kind = kind;
          c.count = count;
          c.in_place = in_place;
          c.root = static_cast<int>(sequence % world);
          CheckCollective(backend, rank, world, c, sequence++);
          c.even = false;
          if (MayBeUneven(kind)) CheckCollective(backend, rank, world, c, sequence++);
        }
      }
    }
  });
}

TEST_P(GlooCollectivesTest, EveryReductionOfEveryDtypeBringsWhatTheModelSays) {
  const int world = GetParam();
  RunRanks(GlooBackendFactory(), world, [&](Backend& backend, int rank) {
    uint64_t sequence = 0;
    for (int d = 0; d < kNumDTypes; ++d) {
      for (int r = 0; r <= static_cast<int>(ReduceOp::kPremulSum); ++r) {
        Case c;
        c.dtype = static_cast<DType>(d);
        c.reduce = static_cast<ReduceOp>(r);
        if (!SupportsReduction(c.reduce, c.dtype).ok()) {
          Operation operation;
          operation.kind = OpKind::kAllReduce;
          operation.dtype = c.dtype;
          operation.reduce = c.reduce;
          const absl::Status status = backend.Run(operation);
          EXPECT_THAT(status, testing::StatusIs(absl::StatusCode::kUnimplemented,
                                                ::testing::HasSubstr("backend gloo, all_reduce")));
          continue;
        }
        for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
          for (const size_t count : {size_t{77}, size_t{30001}}) {
            c.kind = kind;
            c.count = count;
            c.root = world - 1;
            c.in_place = sequence % 2 == 1;
            CheckCollective(backend, rank, world, c, sequence++);
          }
        }
      }
    }
  });
}

TEST(GlooLargeTest, WhatIsLongerThanAChunkBringsWhatTheModelSays) {
  for (const int world : {2, 3}) {
    RunRanks(GlooBackendFactory(), world, [&](Backend& backend, int rank) {
      uint64_t sequence = 0;
      for (const OpKind kind : kKinds) {
        Case c;
        c.kind = kind;
        c.count = 600001;
        c.root = world - 1;
        c.in_place = world == 2;
        c.even = !MayBeUneven(kind);
        CheckCollective(backend, rank, world, c, sequence++);
      }
      // Slices longer than their ring.
      for (const bool in_place : {false, true}) {
        Case c;
        c.count = 11 << 18;
        c.in_place = in_place;
        CheckCollective(backend, rank, world, c, sequence++);
      }
    });
  }
}

TEST(GlooBitsTest, AllRanksGetTheSameBitsWhateverTheSize) {
  constexpr int kWorld = 3;
  constexpr size_t kMost = 500000;
  // Sums of these depend on their order.
  auto input = [](int rank, size_t i) { return 1.0f / static_cast<float>(1 + (i * 7 + rank * 131) % 9973); };
  std::vector<float> want(kMost);
  for (size_t i = 0; i < kMost; ++i) want[i] = (input(0, i) + input(1, i)) + input(2, i);
  RunRanks(GlooBackendFactory(), kWorld, [&](Backend& backend, int rank) {
    uint64_t sequence = 0;
    for (const size_t count : {size_t{100}, size_t{50000}, kMost}) {
      std::vector<float> values(count);
      for (size_t i = 0; i < count; ++i) values[i] = input(rank, i);
      TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, sequence++)));
      EXPECT_TRUE(std::equal(values.begin(), values.end(), want.begin())) << count;
    }
  });
}

TEST(GlooBackToBackTest, ManySmallOperationsKeepTheirOrder) {
  RunRanks(GlooBackendFactory(), 3, [](Backend& backend, int rank) {
    for (uint64_t i = 0; i < 500; ++i) {
      std::vector<float> values(1 + i % 7, static_cast<float>(rank + i));
      TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, i)));
      EXPECT_EQ(values[0], static_cast<float>(3 * i + 3));
    }
  });
}

TEST(GlooManyGroupsTest, GroupsOfOneProcessRunBesideEachOther) {
  std::vector<std::thread> groups;
  for (int g = 0; g < 3; ++g) {
    groups.emplace_back([] {
      RunRanks(GlooBackendFactory(), 2, [](Backend& backend, int rank) {
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
