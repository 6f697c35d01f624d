// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/collectives/conformance/suite/suite.h"
#include "tests/collectives/conformance/suite/tensors.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum,   ReduceOp::kAvg,    ReduceOp::kProduct,
                             ReduceOp::kMin,   ReduceOp::kMax,    ReduceOp::kBitAnd,
                             ReduceOp::kBitOr, ReduceOp::kBitXor, ReduceOp::kPremulSum};

// The parameters of one step of a check, the same on all ranks.
struct Step {
  ProcessGroup& group;
  const SuiteOptions& options;
  DType dtype;
  ReduceOp op;
  size_t count;
  uint64_t key;  // of the step; differs between steps
  int rank, world;
  int root;
  bool in_place;

  uint64_t KeyOf(int of_rank, int part = 0) const {
    return Mix64(key, static_cast<uint64_t>(of_rank) * 1000 + static_cast<uint64_t>(part));
  }
  std::string Text(absl::string_view what) const {
    return absl::StrCat(what, " of ", Name(op), " ", Name(dtype), " x ", count, ", root ", root,
                        in_place ? ", in place" : "", ", rank ", rank, " of ", world);
  }
};

// Returns true if the step was carried out. A refusal must be an allowed one.
bool Succeeded(const Step& step, absl::string_view what, const Work& work) {
  const absl::Status status = work.Wait();
  for (const OpKind kind : step.options.lacks) {
    if (step.world == 1 || !absl::StrContains(what, Name(kind))) continue;
    EXPECT_TRUE(absl::IsUnimplemented(status)) << step.Text(what) << ": " << status;
    return false;
  }
  if (status.ok()) return true;
  const bool meaningless =
      (IsFloatingPoint(step.dtype) &&
       (step.op == ReduceOp::kBitAnd || step.op == ReduceOp::kBitOr || step.op == ReduceOp::kBitXor)) ||
      (!IsFloatingPoint(step.dtype) && step.op == ReduceOp::kPremulSum);
  const bool plain_sum =
      step.op == ReduceOp::kSum && (step.dtype == DType::kF32 || step.dtype == DType::kF64);
  EXPECT_TRUE(absl::IsUnimplemented(status) && (meaningless || (step.options.may_refuse && !plain_sum)))
      << step.Text(what) << ": " << status;
  return false;
}

void Expect(const Step& step, absl::string_view what, const Tensor& actual, const Tensor& expected) {
  EXPECT_EQ(Difference(actual, expected, step.op == ReduceOp::kAvg), "") << step.Text(what);
}

void AllReduceStep(const Step& s, const std::vector<Tensor>& inputs, const std::vector<double>& factors,
                   const Tensor& expected) {
  Tensor in = inputs[s.rank], out(s.dtype, s.count);
  const AllReduceOptions options{.op = s.op, .factor = factors[s.rank]};
  if (s.in_place) {
    if (!Succeeded(s, "all_reduce", s.group.AllReduce(in.view(), options))) return;
    Expect(s, "all_reduce", in, expected);
  } else {
    const Tensor& given = in;
    if (!Succeeded(s, "all_reduce", s.group.AllReduce(given.view(), out.view(), options))) return;
    Expect(s, "all_reduce", out, expected);
    EXPECT_EQ(in.bytes, inputs[s.rank].bytes) << s.Text("all_reduce wrote to its input");
  }
}

void ReduceStep(const Step& s, const std::vector<Tensor>& inputs, const std::vector<double>& factors,
                const Tensor& expected) {
  Tensor tensor = inputs[s.rank];
  const ReduceOptions options{.root = s.root, .op = s.op, .factor = factors[s.rank]};
  if (!Succeeded(s, "reduce", s.group.Reduce(tensor.view(), options))) return;
  Expect(s, "reduce", tensor, s.rank == s.root ? expected : inputs[s.rank]);
}

// Every rank gives P parts of s.count elements.
void ReduceScatterStep(const Step& s, const std::vector<double>& factors) {
  const size_t world = static_cast<size_t>(s.world);
  std::vector<Tensor> mine_of;  // what is reduced to this rank
  for (int r = 0; r < s.world; ++r) {
    mine_of.push_back(RandomValues(s.dtype, s.op, s.count, s.KeyOf(r, s.rank)));
  }
  Tensor in(s.dtype, s.count * world), out(s.dtype, s.count);
  for (int part = 0; part < s.world; ++part) {
    const Tensor one = RandomValues(s.dtype, s.op, s.count, s.KeyOf(s.rank, part));
    std::copy(one.bytes.begin(), one.bytes.end(), in.bytes.begin() + part * one.bytes.size());
  }
  const Tensor before = in;
  const Tensor& given = in;
  const TensorView own = in.part(static_cast<size_t>(s.rank) * s.count, s.count);
  const ReduceScatterOptions options{.op = s.op, .factor = factors[s.rank]};
  if (!Succeeded(s, "reduce_scatter",
                 s.group.ReduceScatter(given.view(), s.in_place ? own : out.view(), options))) {
    return;
  }
  if (s.in_place) {
    const char* begin = static_cast<const char*>(own.data);
    std::copy(begin, begin + out.bytes.size(), out.bytes.begin());
  } else {
    EXPECT_EQ(in.bytes, before.bytes) << s.Text("reduce_scatter wrote to its input");
  }
  Expect(s, "reduce_scatter", out, Reduced(s.op, mine_of, factors));
}

// Calls `body` for the steps of a check, each with another root and key: small lengths for everything, the
// large one once for each dtype and once for each operation.
template <typename Body>
void ForEachStep(ProcessGroup& group, const SuiteOptions& options, absl::Span<const ReduceOp> ops,
                 uint64_t seed, const Body& body) {
  uint64_t number = 0;
  for (const DType dtype : options.dtypes) {
    for (const ReduceOp op : ops) {
      std::vector<size_t> counts = {0, 1, 7, 1021};
      if (op == ReduceOp::kSum || dtype == DType::kF32) counts.push_back(options.large);
      for (const size_t count : counts) {
        ++number;
        Step step{group, options, dtype, op, count, Mix64(seed, number), group.rank(), group.world_size(),
                  0,     false};
        step.root = static_cast<int>(number % static_cast<uint64_t>(step.world));
        step.in_place = number % 2 == 0;
        body(step);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace

void CheckReductions(ProcessGroup& group, const SuiteOptions& options) {
  ForEachStep(group, options, kOps, /*seed=*/1, [](Step s) {
    std::vector<Tensor> inputs;
    std::vector<double> factors;
    for (int r = 0; r < s.world; ++r) {
      inputs.push_back(RandomValues(s.dtype, s.op, s.count, s.KeyOf(r)));
      factors.push_back(s.op == ReduceOp::kPremulSum ? RandomFactor(s.KeyOf(r)) : 1.0);
    }
    const Tensor expected = Reduced(s.op, inputs, factors);
    AllReduceStep(s, inputs, factors, expected);
    s.in_place = !s.in_place;
    if (s.count < s.options.large) AllReduceStep(s, inputs, factors, expected);
    ReduceStep(s, inputs, factors, expected);
    // Each rank gets a part of the large length.
    if (s.count == s.options.large) s.count = s.count / static_cast<size_t>(s.world) + 1;
    ReduceScatterStep(s, factors);
  });
}

void CheckMovements(ProcessGroup& group, const SuiteOptions& options) {
  constexpr ReduceOp kNone[] = {ReduceOp::kSum};
  ForEachStep(group, options, kNone, /*seed=*/2, [](Step s) {
    ProcessGroup& g = s.group;
    Tensor root_has = RandomBits(s.dtype, s.count, s.KeyOf(s.root));
    Tensor tensor = s.rank == s.root ? root_has : RandomBits(s.dtype, s.count, s.KeyOf(s.rank));
    if (Succeeded(s, "broadcast", g.Broadcast(tensor.view(), {.root = s.root}))) {
      Expect(s, "broadcast", tensor, root_has);
    }

    if (s.count == s.options.large) s.count = s.count / static_cast<size_t>(s.world) + 1;
    const size_t world = static_cast<size_t>(s.world), rank = static_cast<size_t>(s.rank);
    Tensor in = RandomBits(s.dtype, s.count, s.KeyOf(s.rank, 1));
    Tensor all(s.dtype, s.count * world), everyones = all;
    for (size_t r = 0; r < world; ++r) {
      const Tensor one = RandomBits(s.dtype, s.count, s.KeyOf(static_cast<int>(r), 1));
      std::copy(one.bytes.begin(), one.bytes.end(), everyones.bytes.begin() + r * one.bytes.size());
    }
    auto prepare = [&](Tensor* out) {
      *out = Tensor(s.dtype, s.count * world);
      if (s.in_place)
        std::copy(in.bytes.begin(), in.bytes.end(), out->bytes.begin() + rank * in.bytes.size());
      return ConstTensorView(s.in_place ? out->part(rank * s.count, s.count) : in.view());
    };
    ConstTensorView given = prepare(&all);
    if (Succeeded(s, "all_gather", g.AllGather(given, all.view(), CallOptions()))) {
      Expect(s, "all_gather", all, everyones);
    }

    given = prepare(&all);
    std::vector<TensorView> outs;
    for (size_t r = 0; r < world && s.rank == s.root; ++r) outs.push_back(all.part(r * s.count, s.count));
    const Tensor untouched = all;
    if (Succeeded(s, "gather", g.Gather(given, outs, {.root = s.root}))) {
      Expect(s, "gather", all, s.rank == s.root ? everyones : untouched);
    }

    Tensor given_by_root(s.dtype, s.count * world);
    for (size_t r = 0; r < world; ++r) {
      const Tensor one = RandomBits(s.dtype, s.count, s.KeyOf(s.root, 10 + static_cast<int>(r)));
      std::copy(one.bytes.begin(), one.bytes.end(), given_by_root.bytes.begin() + r * one.bytes.size());
    }
    std::vector<ConstTensorView> ins;
    for (size_t r = 0; r < world && s.rank == s.root; ++r) {
      ins.push_back(given_by_root.part(r * s.count, s.count));
    }
    Tensor out(s.dtype, s.count);
    const bool scatter_in_place = s.in_place && s.rank == s.root;
    if (Succeeded(s, "scatter",
                  g.Scatter(ins, scatter_in_place ? given_by_root.part(rank * s.count, s.count) : out.view(),
                            {.root = s.root})) &&
        !scatter_in_place) {
      Expect(s, "scatter", out, RandomBits(s.dtype, s.count, s.KeyOf(s.root, 10 + s.rank)));
    }

    Tensor sent(s.dtype, s.count * world), received = sent, expected = sent;
    for (size_t r = 0; r < world; ++r) {
      const Tensor mine = RandomBits(s.dtype, s.count, s.KeyOf(s.rank, 50 + static_cast<int>(r)));
      const Tensor theirs = RandomBits(s.dtype, s.count, s.KeyOf(static_cast<int>(r), 50 + s.rank));
      std::copy(mine.bytes.begin(), mine.bytes.end(), sent.bytes.begin() + r * mine.bytes.size());
      std::copy(theirs.bytes.begin(), theirs.bytes.end(), expected.bytes.begin() + r * mine.bytes.size());
    }
    const Tensor& sending = sent;
    if (Succeeded(s, "all_to_all", g.AllToAll(sending.view(), received.view(), CallOptions()))) {
      Expect(s, "all_to_all", received, expected);
    }
    if (s.count <= 7) Succeeded(s, "barrier", g.Barrier());
  });
}

void CheckUnevenParts(ProcessGroup& group, const SuiteOptions& options) {
  constexpr ReduceOp kOnly[] = {ReduceOp::kSum};
  ForEachStep(group, options, kOnly, /*seed=*/3, [](Step s) {
    ProcessGroup& g = s.group;
    if (s.count == s.options.large) s.count = s.count / static_cast<size_t>(s.world) + 1;
    // The count from `from` to `to`; zero for some.
    auto count = [&](int from, int to) {
      const uint64_t chance = Mix64(s.key, static_cast<uint64_t>(from * 100 + to));
      return chance % 3 == 0 ? 0 : static_cast<size_t>(Mix64(chance) % (s.count + 1));
    };
    auto data = [&](int from, int to) {
      return RandomValues(s.dtype, s.op, count(from, to), s.KeyOf(from, to));
    };
    std::vector<Tensor> sent, received, expected;
    std::vector<ConstTensorView> ins;
    std::vector<TensorView> outs;
    auto reset = [&](auto sends, auto receives) {
      sent.clear();
      received.clear();
      expected.clear();
      ins.clear();
      outs.clear();
      for (int r = 0; r < s.world; ++r) {
        sent.push_back(sends(r));
        expected.push_back(receives(r));
        received.emplace_back(s.dtype, expected.back().count());
      }
      for (Tensor& tensor : sent) ins.push_back(tensor.view());
      for (Tensor& tensor : received) outs.push_back(tensor.view());
    };
    auto expect = [&](absl::string_view what) {
      for (int r = 0; r < s.world; ++r) {
        Expect(s, absl::StrCat("uneven ", what, " from ", r), received[r], expected[r]);
      }
    };

    reset([&](int r) { return data(s.rank, r); }, [&](int r) { return data(r, s.rank); });
    if (Succeeded(s, "uneven all_to_all", g.AllToAll(ins, outs, CallOptions()))) expect("all_to_all");

    reset([&](int) { return data(s.rank, 0); }, [&](int r) { return data(r, 0); });
    if (Succeeded(s, "uneven all_gather", g.AllGather(ins[0], outs, CallOptions()))) expect("all_gather");
    reset([&](int) { return data(s.rank, 0); }, [&](int r) { return data(r, 0); });
    const bool is_root = s.rank == s.root;
    if (Succeeded(s, "uneven gather",
                  g.Gather(ins[0], is_root ? outs : std::vector<TensorView>(), {.root = s.root})) &&
        is_root) {
      expect("gather");
    }
    reset([&](int r) { return data(s.root, r); }, [&](int) { return data(s.root, s.rank); });
    if (Succeeded(s, "uneven scatter",
                  g.Scatter(is_root ? ins : std::vector<ConstTensorView>(), outs[0], {.root = s.root}))) {
      Expect(s, "uneven scatter", received[0], expected[0]);
    }

    // Part p has the same count on all ranks.
    auto share = [&](int of_rank, int part) {
      return RandomValues(s.dtype, s.op, count(0, part), s.KeyOf(of_rank, part));
    };
    reset([&](int r) { return share(s.rank, r); }, [&](int r) { return share(r, s.rank); });
    if (Succeeded(s, "uneven reduce_scatter", g.ReduceScatter(ins, outs[0], {.op = s.op}))) {
      Expect(s, "uneven reduce_scatter", received[0],
             Reduced(s.op, expected, std::vector<double>(expected.size(), 1.0)));
    }
  });
}

}  // namespace tandem::collectives
