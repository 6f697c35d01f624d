// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/collectives/conformance/suite/suite.h"
#include "tests/collectives/conformance/suite/tensors.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

// Returns the `number`th message of rank `from` to rank `to`.
Tensor Message(DType dtype, size_t count, int from, int to, int number) {
  return RandomBits(dtype, count,
                    Mix64(static_cast<uint64_t>(from * 1000 + to), static_cast<uint64_t>(number)));
}

void CheckRing(ProcessGroup& group, DType dtype, size_t count, int number) {
  const int world = group.world_size(), rank = group.rank();
  const int next = (rank + 1) % world, before = (rank + world - 1) % world;
  Tensor in(dtype, count);
  const Work receiving = group.Irecv(in.view(), before);
  const Tensor out = Message(dtype, count, rank, next, number);
  TANDEM_EXPECT_OK(group.Send(out.view(), next).Wait());
  TANDEM_EXPECT_OK(receiving.Wait());
  EXPECT_EQ(receiving.source_rank(), before);
  EXPECT_EQ(Difference(in, Message(dtype, count, before, rank, number)), "") << "ring, " << count;
}

// Every rank sends three messages to every rank, each with a tag of its own. They are received in another
// order, and two of one tag in the order of sending.
void CheckAllPairs(ProcessGroup& group) {
  const int world = group.world_size(), rank = group.rank();
  constexpr int kMessages = 4;
  const uint32_t tags[kMessages] = {7, 1, 7, 3};
  const int order[kMessages] = {3, 0, 2, 1};
  std::vector<Tensor> out, in;
  std::vector<Work> works;
  out.reserve(static_cast<size_t>(world * kMessages));
  in.reserve(static_cast<size_t>(world * kMessages));
  for (int peer = 0; peer < world; ++peer) {
    if (peer == rank) continue;
    for (int m = 0; m < kMessages; ++m) {
      out.push_back(Message(DType::kI32, 100 + m, rank, peer, m));
      works.push_back(group.Isend(out.back().view(), peer, {.tag = tags[m]}));
    }
  }
  std::vector<std::pair<int, int>> from;
  for (int peer = world - 1; peer >= 0; --peer) {
    if (peer == rank) continue;
    for (const int m : order) {
      in.emplace_back(DType::kI32, 100 + m);
      from.emplace_back(peer, m);
      works.push_back(group.Irecv(in.back().view(), peer, {.tag = tags[m]}));
    }
  }
  for (const Work& work : works) TANDEM_EXPECT_OK(work.Wait());
  for (size_t i = 0; i < in.size(); ++i) {
    const auto& [peer, m] = from[i];
    EXPECT_EQ(Difference(in[i], Message(DType::kI32, 100 + m, peer, rank, m)), "")
        << "message " << m << " from " << peer << " to " << rank;
  }
}

void CheckAnySource(ProcessGroup& group) {
  const int world = group.world_size(), rank = group.rank();
  if (rank != 0) {
    const Tensor out = Message(DType::kF32, 33, rank, 0, 0);
    TANDEM_EXPECT_OK(group.Send(out.view(), 0, {.tag = 5}).Wait());
  } else {
    std::vector<int> sources;
    for (int i = 1; i < world; ++i) {
      Tensor in(DType::kF32, 33);
      const Work received = group.Recv(in.view(), kAnySource, {.tag = 5});
      TANDEM_ASSERT_OK(received.Wait());
      sources.push_back(received.source_rank());
      EXPECT_EQ(Difference(in, Message(DType::kF32, 33, sources.back(), 0, 0)), "");
    }
    std::sort(sources.begin(), sources.end());
    for (int i = 1; i < world; ++i) EXPECT_EQ(sources[static_cast<size_t>(i - 1)], i);
  }
  TANDEM_EXPECT_OK(group.Barrier().Wait());
}

void CheckBatch(ProcessGroup& group, size_t count) {
  const int world = group.world_size(), rank = group.rank();
  std::vector<Tensor> out, in;
  for (int peer = 0; peer < world; ++peer) {
    out.push_back(Message(DType::kU8, count, rank, peer, 9));
    in.emplace_back(DType::kU8, count);
  }
  std::vector<PointToPoint> batch;
  for (int peer = 0; peer < world; ++peer) {
    if (peer == rank) continue;
    batch.push_back({PointToPoint::Kind::kSend, peer, out[static_cast<size_t>(peer)].view(), 2});
    batch.push_back({PointToPoint::Kind::kRecv, peer, in[static_cast<size_t>(peer)].view(), 2});
  }
  const std::vector<Work> works = group.BatchIsendIrecv(batch);
  ASSERT_EQ(works.size(), batch.size());
  for (const Work& work : works) TANDEM_EXPECT_OK(work.Wait());
  for (int peer = 0; peer < world; ++peer) {
    if (peer == rank) continue;
    EXPECT_EQ(Difference(in[static_cast<size_t>(peer)], Message(DType::kU8, count, peer, rank, 9)), "");
  }
}

// Rank 0 sends more than any backend keeps for a receiver that does not want it yet. What is sent after that
// must still arrive first, if the receiver asks for it first.
void CheckManyUnexpected(ProcessGroup& group) {
  constexpr int kLarge = 4;
  constexpr size_t kCount = size_t{6} << 20;
  constexpr uint32_t kLast = 9;
  if (group.rank() == 0) {
    std::vector<Tensor> out;
    std::vector<Work> works;
    for (int m = 0; m < kLarge; ++m) out.push_back(Message(DType::kU8, kCount, 0, 1, m));
    out.push_back(Message(DType::kU8, 3, 0, 1, kLast));
    for (uint32_t m = 0; m < kLarge; ++m) works.push_back(group.Isend(out[m].view(), 1, {.tag = m}));
    works.push_back(group.Isend(out[kLarge].view(), 1, {.tag = kLast}));
    for (const Work& work : works) TANDEM_EXPECT_OK(work.Wait());
  } else if (group.rank() == 1) {
    Tensor small(DType::kU8, 3);
    TANDEM_EXPECT_OK(group.Recv(small.view(), 0, {.tag = kLast}).Wait());
    EXPECT_EQ(Difference(small, Message(DType::kU8, 3, 0, 1, kLast)), "");
    for (int m = kLarge - 1; m >= 0; --m) {
      Tensor in(DType::kU8, kCount);
      TANDEM_EXPECT_OK(group.Recv(in.view(), 0, {.tag = static_cast<uint32_t>(m)}).Wait());
      EXPECT_EQ(Difference(in, Message(DType::kU8, kCount, 0, 1, m)), "") << m;
    }
  }
  TANDEM_EXPECT_OK(group.Barrier().Wait());
}

uint64_t KeyOf(uint64_t step, int rank) { return Mix64(step, static_cast<uint64_t>(rank)); }

// Returns the sum, over ranks, of RandomValues of that key.
Tensor Sum(DType dtype, size_t count, uint64_t step, int world) {
  std::vector<Tensor> all;
  for (int r = 0; r < world; ++r) {
    all.push_back(RandomValues(dtype, ReduceOp::kSum, count, KeyOf(step, r)));
  }
  return Reduced(ReduceOp::kSum, all, {});
}

}  // namespace

void CheckPointToPoint(ProcessGroup& group, const SuiteOptions& options) {
  if (group.world_size() == 1) return;
  int number = 0;
  for (const DType dtype : options.dtypes) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1021}}) CheckRing(group, dtype, count, ++number);
  }
  CheckRing(group, DType::kF32, options.large, ++number);
  CheckAllPairs(group);
  CheckAnySource(group);
  CheckBatch(group, 10);
  CheckBatch(group, options.large);
  CheckManyUnexpected(group);
}

void CheckCoalesced(ProcessGroup& group, const SuiteOptions& options) {
  const int world = group.world_size(), rank = group.rank();
  // Small tensors of several dtypes, an empty one, and one that is sent separately.
  const std::vector<std::pair<DType, size_t>> kShapes = {{DType::kF32, 3},   {DType::kI64, 5},
                                                         {DType::kF32, 0},   {DType::kF32, options.large / 4},
                                                         {DType::kF32, 111}, {DType::kI64, 1}};
  const size_t n = kShapes.size();
  auto keyed = [&](size_t i, int of_rank, uint64_t kind) {
    return RandomValues(kShapes[i].first, ReduceOp::kSum, kShapes[i].second, KeyOf(i * 10 + kind, of_rank));
  };
  for (const bool async : {false, true}) {
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < n; ++i) tensors.push_back(keyed(i, rank, 0));
    std::vector<TensorView> views;
    for (Tensor& tensor : tensors) views.push_back(tensor.view());
    TANDEM_ASSERT_OK(group.AllReduceCoalesced(views, {.async = async}).Wait());
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(Difference(tensors[i], Sum(kShapes[i].first, kShapes[i].second, i * 10, world)), "");
    }

    const int root = world - 1;
    for (size_t i = 0; i < n; ++i) tensors[i] = keyed(i, rank, 1);
    views.clear();
    for (Tensor& tensor : tensors) views.push_back(tensor.view());
    TANDEM_ASSERT_OK(group.BroadcastCoalesced(views, {.root = root, .async = async}).Wait());
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(Difference(tensors[i], keyed(i, root, 1)), "");

    std::vector<Tensor> wide;
    std::vector<TensorView> outs;
    std::vector<ConstTensorView> ins;
    for (size_t i = 0; i < n; ++i) {
      tensors[i] = keyed(i, rank, 2);
      wide.emplace_back(kShapes[i].first, kShapes[i].second * static_cast<size_t>(world));
    }
    for (size_t i = 0; i < n; ++i) {
      ins.push_back(tensors[i].view());
      outs.push_back(wide[i].view());
    }
    TANDEM_ASSERT_OK(group.AllGatherCoalesced(ins, outs, {.async = async}).Wait());
    for (size_t i = 0; i < n; ++i) {
      Tensor expected(kShapes[i].first, 0);
      for (int r = 0; r < world; ++r) {
        const Tensor one = keyed(i, r, 2);
        expected.bytes.insert(expected.bytes.end(), one.bytes.begin(), one.bytes.end());
      }
      EXPECT_EQ(Difference(wide[i], expected), "");
    }

    // The reverse: every rank gives the same tensors, and gets P times its own part.
    for (size_t i = 0; i < n; ++i) {
      tensors[i] = Tensor(kShapes[i].first, kShapes[i].second);
      ins[i] = wide[i].view();
      outs[i] = tensors[i].view();
    }
    const absl::Status scattered = group.ReduceScatterCoalesced(ins, outs, {.async = async}).Wait();
    if (world > 1 && std::count(options.lacks.begin(), options.lacks.end(), OpKind::kReduceScatter) > 0) {
      EXPECT_TRUE(absl::IsUnimplemented(scattered)) << scattered;
      continue;
    }
    TANDEM_ASSERT_OK(scattered);
    for (size_t i = 0; i < n; ++i) {
      const std::vector<Tensor> all(static_cast<size_t>(world), keyed(i, rank, 2));
      EXPECT_EQ(Difference(tensors[i], Reduced(ReduceOp::kSum, all, {})), "");
    }
  }
}

void CheckByteStrings(ProcessGroup& group) {
  const int world = group.world_size(), rank = group.rank();
  for (const size_t scale : {size_t{0}, size_t{1}, size_t{1000}, size_t{100'000}}) {
    // Some of them are empty, in every combination.
    auto bytes_of = [&](int r) {
      const size_t size = scale * static_cast<size_t>((r * 7 + 3) % 4);
      return std::string(size, static_cast<char>('a' + r));
    };
    auto all = group.AllGatherBytes(bytes_of(rank));
    TANDEM_ASSERT_OK(all);
    std::vector<std::string> expected;
    for (int r = 0; r < world; ++r) expected.push_back(bytes_of(r));
    EXPECT_TRUE(*all == expected) << "scale " << scale;  // too long to print
    const int root = world / 2;
    auto one = group.BroadcastBytes(rank == root ? bytes_of(1) : "not looked at", {.root = root});
    TANDEM_ASSERT_OK(one);
    EXPECT_TRUE(*one == bytes_of(1)) << "scale " << scale;
    auto gathered = group.GatherBytes(bytes_of(rank), {.root = root});
    TANDEM_ASSERT_OK(gathered);
    EXPECT_TRUE(*gathered == (rank == root ? expected : std::vector<std::string>())) << "scale " << scale;
    auto mine = group.ScatterBytes(rank == root ? expected : std::vector<std::string>(), {.root = root});
    TANDEM_ASSERT_OK(mine);
    EXPECT_TRUE(*mine == bytes_of(rank)) << "scale " << scale;
  }
}

void CheckSubgroups(ProcessGroup& group) {
  const int world = group.world_size(), rank = group.rank();
  auto sum_of = [](ProcessGroup& some, int64_t value) {
    std::vector<int64_t> values = {value};
    TANDEM_EXPECT_OK(some.AllReduce(absl::MakeSpan(values)).Wait());
    return values[0];
  };
  // The last and the first rank, in that order.
  std::vector<int> ends = {world - 1};
  if (world > 1) ends.push_back(0);
  auto pair = group.NewGroup(ends);
  TANDEM_ASSERT_OK(pair);
  if (rank == 0 || rank == world - 1) {
    ASSERT_NE(*pair, nullptr);
    EXPECT_EQ((*pair)->rank(), rank == world - 1 ? 0 : 1);
    EXPECT_EQ((*pair)->world_size(), static_cast<int>(ends.size()));
    EXPECT_EQ(*(*pair)->GlobalRank(0), *group.GlobalRank(world - 1));
    EXPECT_EQ(*(*pair)->GroupRank(*group.GlobalRank(world - 1)), 0);
    EXPECT_FALSE((*pair)->GroupRank(world + 5).ok());
    EXPECT_EQ(sum_of(**pair, rank + 1), world == 1 ? 1 : world + 1);
  } else {
    EXPECT_EQ(*pair, nullptr);
  }
  // Even and odd ranks, the last first; ranks with a negative color get no group.
  auto split = group.Split(rank == 0 && world > 2 ? -1 : rank % 2, -rank);
  TANDEM_ASSERT_OK(split);
  if (rank == 0 && world > 2) {
    EXPECT_EQ(*split, nullptr);
  } else {
    ASSERT_NE(*split, nullptr);
    int64_t expected = 0;
    std::vector<int> members;
    for (int r = world - 1; r >= (world > 2 ? 1 : 0); --r) {
      if (r % 2 != rank % 2) continue;
      expected += r;
      members.push_back(*group.GlobalRank(r));
    }
    EXPECT_EQ(sum_of(**split, rank), expected);
    EXPECT_EQ(std::vector<int>((*split)->global_ranks().begin(), (*split)->global_ranks().end()), members);
  }
  for (int size = 1; size <= world; ++size) {
    if (world % size != 0) {
      EXPECT_THAT(group.NewSubgroups(size), tandem::testing::StatusIs(absl::StatusCode::kInvalidArgument));
      continue;
    }
    auto part = group.NewSubgroups(size);
    TANDEM_ASSERT_OK(part);
    EXPECT_EQ((*part)->rank(), rank % size);
    EXPECT_EQ(sum_of(**part, 1), size);
  }
}

void CheckGroupsInFlight(ProcessGroup& group) {
  const int world = group.world_size(), rank = group.rank();
  constexpr int kGroups = 3, kRounds = 20;
  std::vector<int> everybody;
  for (int r = 0; r < world; ++r) everybody.push_back(r);
  std::vector<std::unique_ptr<ProcessGroup>> groups;
  for (int i = 0; i < kGroups; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto one, group.NewGroup(everybody));
    groups.push_back(std::move(one));
  }
  std::vector<std::vector<Tensor>> tensors(kGroups);
  std::vector<Work> works;
  for (int round = 0; round < kRounds; ++round) {
    for (int turn = 0; turn < kGroups; ++turn) {
      // Each rank visits the groups in another order: an operation that one rank waits for in one group is
      // issued later by another, after its operation in another group.
      const int g = (turn + rank) % kGroups;
      const size_t count = static_cast<size_t>(1 + round * 50 * (g + 1));
      tensors[g].reserve(kRounds);
      tensors[g].push_back(RandomValues(DType::kF32, ReduceOp::kSum, count,
                                        KeyOf(static_cast<uint64_t>(round * 10 + g), rank)));
      works.push_back(groups[g]->AllReduce(tensors[g].back().view(), {.async = true}));
    }
  }
  // And the first group continues to work concurrently.
  TANDEM_EXPECT_OK(group.Barrier().Wait());
  for (const Work& work : works) TANDEM_EXPECT_OK(work.Wait());
  for (int g = 0; g < kGroups; ++g) {
    for (int round = 0; round < kRounds; ++round) {
      const Tensor& tensor = tensors[g][static_cast<size_t>(round)];
      EXPECT_EQ(
          Difference(tensor, Sum(DType::kF32, tensor.count(), static_cast<uint64_t>(round * 10 + g), world)),
          "");
    }
  }
}

void CheckMixture(ProcessGroup& group, const SuiteOptions& options) {
  const int world = group.world_size(), rank = group.rank();
  CounterRandom random(/*seed=*/5,
                       /*stream=*/static_cast<uint64_t>(world));  // the same choices on every rank
  std::vector<std::unique_ptr<Tensor>> tensors;
  std::vector<std::pair<Work, Tensor>> expected;  // of tensors[i]
  for (uint64_t step = 0; step < 150; ++step) {
    const size_t count = random.Below(random.Below(20) == 0 ? options.large : 1000);
    const uint64_t kind = random.Below(5);
    const bool async = random.Below(2) == 0;
    const int root = static_cast<int>(random.Below(static_cast<uint64_t>(world)));
    tensors.push_back(
        std::make_unique<Tensor>(RandomValues(DType::kI32, ReduceOp::kSum, count, KeyOf(step, rank))));
    TensorView view = tensors.back()->view();
    if (kind == 0) {
      const Tensor wanted = RandomValues(DType::kI32, ReduceOp::kSum, count, KeyOf(step, root));
      expected.emplace_back(group.Broadcast(view, {.root = root, .async = async}), wanted);
    } else if (kind == 1) {
      const Tensor unchanged = *tensors.back();
      expected.emplace_back(group.Barrier({.async = async}), unchanged);
    } else if (kind == 2) {
      const Tensor mine = *tensors.back();
      expected.emplace_back(group.Reduce(view, {.root = root, .async = async}),
                            rank == root ? Sum(DType::kI32, count, step, world) : mine);
    } else {
      expected.emplace_back(group.AllReduce(view, {.async = async}), Sum(DType::kI32, count, step, world));
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    TANDEM_EXPECT_OK(expected[i].first.Wait());
    EXPECT_EQ(Difference(*tensors[i], expected[i].second), "") << "step " << i;
  }
}

void CheckEverything(ProcessGroup& group, const SuiteOptions& options) {
  CheckReductions(group, options);
  CheckMovements(group, options);
  CheckUnevenParts(group, options);
  CheckPointToPoint(group, options);
  CheckCoalesced(group, options);
  CheckByteStrings(group);
  CheckSubgroups(group);
  CheckGroupsInFlight(group);
  CheckMixture(group, options);
  TANDEM_EXPECT_OK(group.MonitoredBarrier(absl::Seconds(30)));
}

}  // namespace tandem::collectives
