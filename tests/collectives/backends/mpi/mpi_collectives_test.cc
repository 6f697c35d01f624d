// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "base/numeric/dtype.h"
#include "collectives/reduce/reduce.h"
#include "tests/collectives/backends/mpi/mpi_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::IsOk;
using ::testing::HasSubstr;

// Returns `n` small whole numbers of `dtype`, the same for the same arguments. Their sums are exact in any
// order.
std::vector<char> Values(DType dtype, size_t n, int seed) {
  std::vector<char> bytes(n * SizeOf(dtype));
  std::minstd_rand random(seed + 1);
  DispatchDType(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t i = 0; i < n; ++i) {
      const T value(static_cast<float>(1 + random() % 3));
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

using Buffers = std::vector<std::vector<char>>;  // by rank, each somewhere else

class MpiCollectivesTest : public MpiRanks {
 protected:
  double FactorOf(int rank) { return 0.5 * (rank + 1); }
  // Returns the reduction of all ranks' values of `seed`.
  std::vector<char> Reduced(ReduceOp op, DType dtype, size_t n, int seed) {
    Buffers all;
    std::vector<const void*> sources;
    std::vector<double> factors;
    for (int r = 0; r < world_size(); ++r) {
      all.push_back(Values(dtype, n, seed + r));
      factors.push_back(FactorOf(r));
    }
    for (const auto& one : all) sources.push_back(one.data());
    if (op != ReduceOp::kPremulSum) factors.clear();
    std::vector<char> result(n * SizeOf(dtype));
    ReduceInRankOrder(op, dtype, sources, factors, world_size(), n, result.data());
    return result;
  }
  Operation Of(OpKind kind, DType dtype) {
    Operation o;
    o.kind = kind;
    o.dtype = dtype;
    o.timeout = kTimeout;
    o.sequence = sequence_++;
    o.factor = FactorOf(rank());
    return o;
  }
  // Returns counts of parts that all ranks agree on; some are zero.
  std::vector<size_t> Counts(int seed, size_t most, bool even) {
    std::minstd_rand random(seed + 7);
    std::vector<size_t> counts(world_size());
    for (size_t& count : counts) count = random() % 3 == 0 ? 0 : random() % most;
    if (even) std::fill(counts.begin(), counts.end(), most);
    return counts;
  }
  uint64_t sequence_ = 0;
};

TEST_F(MpiCollectivesTest, ReductionsOfEveryDtypeMatchTheModel) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, Make("g"));
  int seed = 0;
  for (int d = 0; d < kNumDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    for (int r = 0; r <= static_cast<int>(ReduceOp::kPremulSum); ++r) {
      const ReduceOp op = static_cast<ReduceOp>(r);
      Operation o = Of(OpKind::kAllReduce, dtype);
      o.reduce = op;
      if (!SupportsReduction(op, dtype).ok()) {
        EXPECT_THAT(backend->Run(o), testing::StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("mpi")));
        continue;
      }
      for (size_t n : {0, 1, 1001}) {
        seed += 100;
        const std::vector<char> mine = Values(dtype, n, seed + rank()),
                                expected = Reduced(op, dtype, n, seed);
        std::vector<char> out(mine.size());
        o.in = {mine.data(), n};
        o.out = {out.data(), n};
        TANDEM_ASSERT_OK(backend->Run(o)) << Describe(o);
        EXPECT_EQ(out, expected) << Describe(o);
        // In place, at the last rank only, and cut into one part for each rank.
        o.kind = OpKind::kReduce;
        o.root = world_size() - 1;
        out = mine;
        o.in = {out.data(), n};
        o.out = rank() == o.root ? Part{out.data(), n} : Part{};
        TANDEM_ASSERT_OK(backend->Run(o)) << Describe(o);
        EXPECT_EQ(out, rank() == o.root ? expected : mine) << Describe(o);
        o.kind = OpKind::kReduceScatter;
        o.even = false;
        const std::vector<size_t> counts = Counts(seed, n + 1, false);
        Buffers ins;
        std::vector<ConstPart> parts;
        for (int s = 0; s < world_size(); ++s) {
          ins.push_back(Values(dtype, counts[s], seed + 10 * s + rank()));
        }
        for (int s = 0; s < world_size(); ++s) parts.push_back({ins[s].data(), counts[s]});
        o.in = {};
        o.ins = parts;
        std::vector<char> chunk(counts[rank()] * SizeOf(dtype));
        o.out = {chunk.data(), counts[rank()]};
        TANDEM_ASSERT_OK(backend->Run(o)) << Describe(o);
        EXPECT_EQ(chunk, Reduced(op, dtype, counts[rank()], seed + 10 * rank())) << Describe(o);
        o = Of(OpKind::kAllReduce, dtype);
        o.reduce = op;
      }
    }
  }
}

TEST_F(MpiCollectivesTest, ArraysOfSeveralSegmentsAreReducedInPlace) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, Make("g"));
  const size_t n = 2500001;  // 10 MB of f32
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    std::vector<char> values = Values(DType::kF32, n, rank());
    Operation o = Of(OpKind::kAllReduce, DType::kF32);
    o.reduce = op;
    o.in = {values.data(), n};
    o.out = {values.data(), n};
    TANDEM_ASSERT_OK(backend->Run(o));
    EXPECT_TRUE(values == Reduced(op, DType::kF32, n, 0)) << Describe(o);
  }
}

TEST_F(MpiCollectivesTest, PartsOfAnySizeAtAnyAddressArriveWhereTheyBelong) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, Make("g"));
  const DType dtype = DType::kI32;
  int seed = 0;
  for (const bool even : {true, false}) {
    for (const size_t most : {1, 333, 700000}) {
      ++seed;
      const int root = seed % world_size();
      // counts[s][t]: from rank s to rank t.
      std::vector<std::vector<size_t>> counts;
      for (int s = 0; s < world_size(); ++s) counts.push_back(Counts(100 * seed + s, most, even));
      auto values = [&](int s, int t) { return Values(dtype, counts[s][t], 1000 * seed + 10 * s + t); };
      Buffers to(world_size()), from(world_size());
      std::vector<ConstPart> ins(world_size());
      std::vector<Part> outs(world_size());
      auto expect = [&](int s, int t) {
        from[s].assign(counts[s][t] * 4, 0), outs[s] = {from[s].data(), counts[s][t]};
      };
      auto give = [&](int s, int t) { to[t] = values(s, t), ins[t] = {to[t].data(), counts[s][t]}; };

      Operation o = Of(OpKind::kAllToAll, dtype);
      o.even = even;
      for (int s = 0; s < world_size(); ++s) give(rank(), s), expect(s, rank());
      o.ins = ins;
      o.outs = outs;
      TANDEM_ASSERT_OK(backend->Run(o));
      for (int s = 0; s < world_size(); ++s) EXPECT_TRUE(from[s] == values(s, rank())) << Describe(o) << s;

      o = Of(OpKind::kAllGather, dtype);  // what each would send to rank 0
      o.even = even;
      for (int s = 0; s < world_size(); ++s) expect(s, 0);
      from[rank()] = values(rank(), 0);  // in place
      outs[rank()].data = from[rank()].data();
      o.in = {from[rank()].data(), counts[rank()][0]};
      o.outs = outs;
      TANDEM_ASSERT_OK(backend->Run(o));
      for (int s = 0; s < world_size(); ++s) EXPECT_TRUE(from[s] == values(s, 0)) << Describe(o) << s;

      o = Of(OpKind::kGather, dtype);
      o.even = even;
      o.root = root;
      give(rank(), root);
      o.in = ins[root];
      for (int s = 0; s < world_size(); ++s) expect(s, root);
      if (rank() == root) o.outs = outs;
      TANDEM_ASSERT_OK(backend->Run(o));
      for (int s = 0; s < world_size() && rank() == root; ++s) {
        EXPECT_TRUE(from[s] == values(s, root)) << Describe(o) << s;
      }

      o = Of(OpKind::kScatter, dtype);
      o.even = even;
      o.root = root;
      for (int t = 0; t < world_size(); ++t) give(root, t);
      if (rank() == root) o.ins = ins;
      expect(root, rank());
      o.out = outs[root];
      TANDEM_ASSERT_OK(backend->Run(o));
      EXPECT_TRUE(from[root] == values(root, rank())) << Describe(o);

      o = Of(OpKind::kBroadcast, dtype);
      o.root = root;
      std::vector<char> values_of_root = values(root, 0);
      if (rank() != root) std::fill(values_of_root.begin(), values_of_root.end(), 0);
      if (rank() == root) o.in = {values_of_root.data(), counts[root][0]};
      if (rank() != root || seed % 2 == 0) o.out = {values_of_root.data(), counts[root][0]};
      TANDEM_ASSERT_OK(backend->Run(o));
      EXPECT_TRUE(values_of_root == values(root, 0)) << Describe(o);
      TANDEM_ASSERT_OK(backend->Run(Of(OpKind::kBarrier, DType::kU8)));
    }
  }
}

TEST_F(MpiCollectivesTest, GroupsDoNotWaitForEachOther) {
  // One group is in reverse order, so that its ranks are not those of MPI_COMM_WORLD.
  std::vector<int> reversed;
  for (int r = world_size() - 1; r >= 0; --r) reversed.push_back(r);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto forth, Make("forth"));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto back, Make("back", reversed));
  auto work = [&](Backend* backend, int group_rank) {
    for (int i = 0; i < 20; ++i) {
      std::vector<int64_t> all(world_size(), -1);
      const int64_t mine = group_rank + 100 * i;
      std::vector<Part> outs;
      for (int64_t& one : all) outs.push_back({&one, 1});
      Operation o;
      o.kind = OpKind::kAllGather;
      o.dtype = DType::kI64;
      o.timeout = kTimeout;
      o.sequence = i;
      o.in = {&mine, 1};
      o.outs = outs;
      TANDEM_ASSERT_OK(backend->Run(o));
      for (int r = 0; r < world_size(); ++r) EXPECT_EQ(all[r], r + 100 * i);
    }
  };
  if (rank() % 2 == 0) {  // each rank in another order, which one thread could not do
    std::thread other(work, forth.get(), rank());
    work(back.get(), world_size() - 1 - rank());
    other.join();
  } else {
    std::thread other(work, back.get(), world_size() - 1 - rank());
    work(forth.get(), rank());
    other.join();
  }
}

TEST_F(MpiCollectivesTest, SomeRanksMakeAGroup) {
  std::vector<int> even;
  for (int r = 0; r < world_size(); r += 2) even.push_back(r);
  if (rank() % 2 == 0) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, Make("even", even));
    int32_t sum = 1;
    Operation o = Of(OpKind::kAllReduce, DType::kI32);
    o.in = {&sum, 1};
    o.out = {&sum, 1};
    TANDEM_ASSERT_OK(backend->Run(o));
    EXPECT_EQ(sum, static_cast<int32_t>(even.size()));
  }
  AwaitAllRanks("end");
}

}  // namespace
}  // namespace tandem::collectives
