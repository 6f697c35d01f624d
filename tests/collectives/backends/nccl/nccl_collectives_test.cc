// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "collectives/reduce/reduce.h"
#include "tests/collectives/backends/nccl/fake_ranks.h"

namespace tandem::collectives::nccl {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

// Small whole numbers, whose sums are exact.
std::vector<char> Values(DType dtype, size_t n, int seed) {
  std::vector<char> bytes(n * SizeOf(dtype));
  DispatchDType(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t i = 0; i < n; ++i) {
      const T value(static_cast<float>(1 + (7 * seed + i) % 3));
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

TEST(NcclCollectivesTest, ReductionsOfEveryDtypeMatchTheModel) {
  for (const int world_size : {1, 2, 3, 4}) {
    FakeWorld world;
    RunFakeRanks(&world, world_size, [&](FakeRank& me) {
      TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
      for (int d = 0; d < kNumDTypes; ++d) {
        for (int r = 0; r <= static_cast<int>(ReduceOp::kPremulSum); ++r) {
          Operation o = OnGpu(OpKind::kAllReduce, static_cast<DType>(d));
          o.reduce = static_cast<ReduceOp>(r);
          o.factor = 0.5 * (me.rank + 1);
          if (!backend->Supports(o).ok()) {
            EXPECT_THAT(backend->Run(o),
                        StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("backend nccl")));
            continue;
          }
          for (const size_t n : {0, 1, 333}) {
            std::vector<std::vector<char>> all;
            std::vector<const void*> sources;
            std::vector<double> factors;
            for (int rank = 0; rank < world_size; ++rank) all.push_back(Values(o.dtype, n, rank));
            for (const auto& one : all) sources.push_back(one.data());
            for (int rank = 0; rank < world_size; ++rank) factors.push_back(0.5 * (rank + 1));
            if (o.reduce != ReduceOp::kPremulSum) factors.clear();
            std::vector<char> expected(n * SizeOf(o.dtype)), out = all[me.rank];
            ReduceInRankOrder(o.reduce, o.dtype, sources, factors, world_size, n, expected.data());
            o.in = {out.data(), n};
            o.out = {out.data(), n};
            TANDEM_ASSERT_OK(backend->Run(o));
            EXPECT_EQ(out, expected) << Describe(o);
          }
        }
      }
    });
    EXPECT_EQ(world.operators(), 0);  // those of premul_sum
  }
}

TEST(NcclCollectivesTest, EvenAndUnevenPartsArriveWhereTheyBelong) {
  for (const int size : {1, 2, 3}) {
    FakeWorld world;
    RunFakeRanks(&world, size, [&](FakeRank& me) {
      TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
      const int root = size - 1;
      for (const bool even : {true, false}) {
        // The count from rank s to rank t; zero for some.
        auto count = [&](int s, int t) -> size_t { return even ? 5 : (3 * s + 2 * t) % 4; };
        auto value = [](int s, int t) { return 10 * s + t + 1; };
        const size_t stride = even ? 5 : 9;  // even parts lie one behind the other
        std::vector<int32_t> in(stride * size), out(stride * size);
        std::vector<ConstPart> ins;
        std::vector<Part> outs;
        auto lay_out = [&](auto count_in, auto value_in, auto count_out) {
          std::fill(out.begin(), out.end(), -1);
          ins.clear();
          outs.clear();
          for (int r = 0; r < size; ++r) {
            std::fill_n(&in[stride * r], count_in(r), value_in(r));
            ins.push_back({&in[stride * r], count_in(r)});
            outs.push_back({&out[stride * r], count_out(r)});
          }
        };
        auto expect = [&](int r, int s, int t) {
          for (size_t i = 0; i < stride; ++i) {
            EXPECT_EQ(out[stride * r + i], i < count(s, t) ? value(s, t) : -1)
                << s << " to " << t << " at " << i;
          }
        };
        Operation o = OnGpu(OpKind::kAllToAll, DType::kI32);
        o.even = even;
        lay_out([&](int t) { return count(me.rank, t); }, [&](int t) { return value(me.rank, t); },
                [&](int s) { return count(s, me.rank); });
        o.ins = ins;
        o.outs = outs;
        TANDEM_ASSERT_OK(backend->Run(o));
        for (int s = 0; s < size; ++s) expect(s, s, me.rank);

        for (const OpKind kind : {OpKind::kAllGather, OpKind::kGather}) {
          o = OnGpu(kind, DType::kI32);
          o.even = even;
          o.root = root;
          lay_out([&](int) { return count(me.rank, 0); }, [&](int) { return value(me.rank, 0); },
                  [&](int s) { return count(s, 0); });
          o.in = ins[0];
          if (kind == OpKind::kAllGather || me.rank == root) o.outs = outs;
          TANDEM_ASSERT_OK(backend->Run(o));
          for (int s = 0; s < size && !o.outs.empty(); ++s) expect(s, s, 0);
        }

        o = OnGpu(OpKind::kScatter, DType::kI32);
        o.even = even;
        o.root = root;
        lay_out([&](int t) { return count(root, t); }, [&](int t) { return value(root, t); },
                [&](int) { return count(root, me.rank); });
        if (me.rank == root) o.ins = ins;
        o.out = outs[0];
        TANDEM_ASSERT_OK(backend->Run(o));
        expect(0, root, me.rank);

        o = OnGpu(OpKind::kReduceScatter, DType::kI32);
        o.even = even;
        lay_out([&](int t) { return count(0, t); }, [&](int t) { return t + 1; },
                [&](int) { return count(0, me.rank); });
        o.ins = ins;
        o.out = outs[0];
        TANDEM_ASSERT_OK(backend->Run(o));
        for (size_t i = 0; i < count(0, me.rank); ++i) EXPECT_EQ(out[i], size * (me.rank + 1));

        o = OnGpu(OpKind::kBroadcast, DType::kI32);
        o.root = root;
        int32_t word = me.rank == root ? 77 : 0;
        if (me.rank == root) o.in = {&word, 1};
        if (me.rank != root || even) o.out = {&word, 1};
        TANDEM_ASSERT_OK(backend->Run(o));
        EXPECT_EQ(word, 77);
        TANDEM_ASSERT_OK(backend->Run(OnGpu(OpKind::kBarrier, DType::kU8)));
      }
    });
  }
}

TEST(NcclCollectivesTest, ABatchOfSendsAndReceivesDoesNotBlockItself) {
  FakeWorld world;
  RunFakeRanks(&world, 2, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    int32_t to = 10 + me.rank, from = 0;
    Operation send = OnGpu(OpKind::kSend, DType::kI32), recv = OnGpu(OpKind::kRecv, DType::kI32);
    send.root = recv.root = 1 - me.rank;
    send.in = {&to, 1};
    recv.out = {&from, 1};
    TANDEM_ASSERT_OK_AND_ASSIGN(auto work, backend->Enqueue({send, recv}));
    TANDEM_ASSERT_OK(work->Wait(absl::Seconds(30)));
    EXPECT_EQ(from, 11 - me.rank);
    TANDEM_ASSERT_OK_AND_ASSIGN(const int source, backend->RunPointToPoint(me.rank == 0 ? send : recv));
    EXPECT_EQ(source, 1 - me.rank);
    backend->StartPointToPoint(send, [](absl::StatusOr<int> done) {
      EXPECT_THAT(done, StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("Enqueue")));
    });
    send.tag = 5;
    EXPECT_THAT(backend->Supports(send), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("tags")));
    recv.root = kAnySource;
    EXPECT_THAT(backend->Supports(recv), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("named rank")));
  });
}

TEST(NcclCollectivesTest, OtherStreamsCanBeOrderedBehindAnOperation) {
  FakeWorld world;
  RunFakeRanks(&world, 2, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    cuda::CudaApi* const cuda = me.runtime->cuda();
    void *stream, *event;
    cuda->StreamCreateNonBlocking(&stream);
    cuda->EventCreate(&event);
    int32_t value = 1;
    Operation sum = OnGpu(OpKind::kAllReduce, DType::kI32);
    sum.in = {&value, 1};
    sum.out = {&value, 1};
    if (me.rank == 1) {  // once rank 0 has looked
      TANDEM_ASSERT_OK(me.store->Get("looked", absl::Seconds(30)));
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(auto work, backend->Enqueue({sum}));
    if (me.rank == 0) {
      TANDEM_ASSERT_OK(work->OrderStream(stream));
      cuda->EventRecord(event, stream);
      EXPECT_EQ(cuda->EventQuery(event), cuda::kCudaNotReady);
      TANDEM_ASSERT_OK_AND_ASSIGN(const bool done, work->IsDone());
      EXPECT_FALSE(done);
      TANDEM_ASSERT_OK(me.store->Set("looked", ""));
    }
    TANDEM_ASSERT_OK(work->Wait(absl::Seconds(30)));
    if (me.rank == 0) {
      EXPECT_EQ(cuda->EventQuery(event), cuda::kCudaSuccess);
    }
    EXPECT_EQ(value, 2);
    cuda->EventDestroy(event);
    cuda->StreamDestroy(stream);
  });
}

TEST(NcclCollectivesTest, AGroupIsSplitByColorAndKey) {
  FakeWorld world;
  RunFakeRanks(&world, 3, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    BackendOptions options = me.OptionsOf("part");
    options.world_size = 2;
    options.rank = me.rank == 2 ? 0 : 1;  // by key
    int32_t sum = 1;
    Operation before = OnGpu(OpKind::kAllReduce, DType::kI32);
    before.in = {&sum, 1};
    before.out = {&sum, 1};
    // The split waits for it.
    TANDEM_ASSERT_OK_AND_ASSIGN(auto work, backend->Enqueue({before}));
    ASSERT_TRUE(backend->CanSplit());
    TANDEM_ASSERT_OK_AND_ASSIGN(const BackendFactory factory,
                                backend->Split(me.rank == 1 ? -1 : 4, -me.rank, options));
    EXPECT_EQ(sum, 3);
    ASSERT_EQ(factory.make == nullptr, me.rank == 1);
    if (factory.make == nullptr) return;
    TANDEM_ASSERT_OK_AND_ASSIGN(auto part, factory.make(options));
    EXPECT_THAT(factory.make(options), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("taken")));
    int32_t value = me.rank;
    Operation o = OnGpu(OpKind::kBroadcast, DType::kI32);
    o.in = {&value, 1};
    o.out = {&value, 1};
    TANDEM_ASSERT_OK(part->Run(o));
    EXPECT_EQ(value, 2);
  });
}

}  // namespace
}  // namespace tandem::collectives::nccl
