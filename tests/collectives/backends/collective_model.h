// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_BACKENDS_COLLECTIVE_MODEL_H_
#define TANDEM_TESTS_COLLECTIVES_BACKENDS_COLLECTIVE_MODEL_H_

// A model of the collectives, element by element: inputs are functions of rank, part and index, so every rank
// can compute the others' inputs.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "collectives/backend.h"
#include "collectives/reduce/reduce.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {

// Access to elements of any dtype by their values.
class Elements {
 public:
  Elements() = default;
  Elements(DType dtype, size_t count) : dtype_(dtype), bytes_(count * SizeOf(dtype), 0x5a) {}
  void* data() { return bytes_.data(); }
  size_t count() const { return bytes_.size() / SizeOf(dtype_); }
  double Get(size_t i) const {
    return DispatchDType(dtype_, [&](auto t) -> double {
      using T = decltype(t);
      if constexpr (std::is_arithmetic_v<T>) {
        return static_cast<double>(As<T>()[i]);
      } else {
        return static_cast<float>(As<T>()[i]);
      }
    });
  }
  void Set(size_t i, double value) {
    DispatchDType(dtype_, [&](auto t) {
      using T = decltype(t);
      if constexpr (std::is_integral_v<T>) {
        const_cast<T*>(As<T>())[i] = static_cast<T>(static_cast<int64_t>(value));
      } else if constexpr (std::is_same_v<T, double>) {
        const_cast<T*>(As<T>())[i] = value;
      } else {
        const_cast<T*>(As<T>())[i] = T(static_cast<float>(value));
      }
    });
  }

 private:
  template <typename T>
  const T* As() const {
    return reinterpret_cast<const T*>(bytes_.data());
  }
  DType dtype_ = DType::kU8;
  std::vector<char> bytes_;
};

struct Case {
  OpKind kind = OpKind::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp reduce = ReduceOp::kSum;
  size_t count = 0;  // of a part, or of the whole
  int root = 0;
  bool in_place = false;
  bool even = true;
};

inline std::string ToText(const Case& c) {
  return absl::StrCat(Name(c.kind), " ", Name(c.reduce), " ", Name(c.dtype), " x ", c.count, " root ", c.root,
                      c.in_place ? " in place" : "", c.even ? "" : " uneven");
}

// Small whole numbers: sums and products are exact in every dtype, except for one rounding.
inline double Input(int rank, int part, size_t i) {
  return static_cast<double>((rank * 5 + part * 3 + static_cast<int>(i % 1013)) % 3 + 1);
}

inline double Reduced(const Case& c, int world, int part, size_t i) {
  double result = 0;
  for (int r = 0; r < world; ++r) {
    const double x = Input(r, part, i);
    const int64_t a = static_cast<int64_t>(result), b = static_cast<int64_t>(x);
    if (c.reduce == ReduceOp::kPremulSum) {
      result += 0.5 * (r + 1) * x;
    } else if (r == 0) {
      result = x;
    } else if (c.reduce == ReduceOp::kSum || c.reduce == ReduceOp::kAvg) {
      result += x;
    } else if (c.reduce == ReduceOp::kProduct) {
      result *= x;
    } else if (c.reduce == ReduceOp::kMin) {
      result = std::min(result, x);
    } else if (c.reduce == ReduceOp::kMax) {
      result = std::max(result, x);
    } else if (c.reduce == ReduceOp::kBitAnd) {
      result = static_cast<double>(a & b);
    } else if (c.reduce == ReduceOp::kBitOr) {
      result = static_cast<double>(a | b);
    } else {
      result = static_cast<double>(a ^ b);
    }
  }
  if (c.reduce == ReduceOp::kAvg) result /= world;  // whole numbers: Set cuts the fraction
  return result;
}

// Runs one collective on this rank, and compares all its results with the model.
inline void CheckCollective(Backend& backend, int rank, int world, const Case& c, uint64_t sequence) {
  SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", world, ": ", ToText(c)));
  const bool is_root = rank == c.root;
  // The input of rank `from` for rank `to`, if parts differ.
  auto part = [&](int from, int to) { return c.even ? c.count : c.count + (from * 2 + to * 3) % 5; };
  auto filled = [&](size_t count, int of_part) {
    Elements e(c.dtype, count);
    for (size_t i = 0; i < count; ++i) e.Set(i, Input(rank, of_part, i));
    return e;
  };
  auto expect = [&](const Elements& got, size_t offset, size_t count, auto model) {
    Elements want(c.dtype, count);
    for (size_t i = 0; i < count; ++i) {
      want.Set(i, model(i));
      if (want.Get(i) == got.Get(offset + i)) continue;
      ADD_FAILURE() << "element " << i << " is " << got.Get(offset + i) << ", not " << want.Get(i);
      return;
    }
  };
  Operation o;
  o.kind = c.kind;
  o.dtype = c.dtype;
  o.reduce = c.reduce;
  o.root = c.root;
  o.even = c.even;
  o.sequence = sequence;
  o.factor = c.reduce == ReduceOp::kPremulSum ? 0.5 * (rank + 1) : 1.0;
  o.timeout = absl::Seconds(60);
  // One contiguous array of parts, in rank order.
  auto offsets = [&](auto count_of) {
    std::vector<size_t> at(1, 0);
    for (int s = 0; s < world; ++s) at.push_back(at.back() + count_of(s));
    return at;
  };
  auto parts = [&](Elements& e, const std::vector<size_t>& at) {
    std::vector<Part> all;
    for (int s = 0; s < world; ++s) {
      all.push_back({static_cast<char*>(e.data()) + at[s] * SizeOf(c.dtype), at[s + 1] - at[s]});
    }
    return all;
  };
  auto constant = [](const std::vector<Part>& all) {
    std::vector<ConstPart> result;
    for (const Part& one : all) result.push_back({one.data, one.count});
    return result;
  };
  auto run = [&] { TANDEM_ASSERT_OK(backend.Run(o)); };

  switch (c.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce: {
      Elements in = filled(c.count, 0), out(c.dtype, c.count);
      const bool gets = c.kind == OpKind::kAllReduce || is_root;
      o.in = {in.data(), c.count};
      if (gets) o.out = {c.in_place ? in.data() : out.data(), c.count};
      run();
      const Elements& result = c.in_place ? in : out;
      if (gets) expect(result, 0, c.count, [&](size_t i) { return Reduced(c, world, 0, i); });
      if (!gets || !c.in_place) expect(in, 0, c.count, [&](size_t i) { return Input(rank, 0, i); });
      break;
    }
    case OpKind::kBroadcast: {
      Elements in = filled(c.count, 0), out(c.dtype, c.count);
      if (is_root) o.in = {in.data(), c.count};
      if (!is_root || !c.in_place) o.out = {out.data(), c.count};
      run();
      expect(is_root && c.in_place ? in : out, 0, c.count, [&](size_t i) { return Input(c.root, 0, i); });
      break;
    }
    case OpKind::kAllGather:
    case OpKind::kGather: {
      const bool gets = c.kind == OpKind::kAllGather || is_root;
      const std::vector<size_t> at = offsets([&](int s) { return part(s, 0); });
      Elements in = filled(part(rank, 0), 0), all(c.dtype, at.back());
      const std::vector<Part> outs = parts(all, at);
      o.in = {in.data(), in.count()};
      if (gets && c.in_place) {
        for (size_t i = 0; i < in.count(); ++i) all.Set(at[rank] + i, Input(rank, 0, i));
        o.in.data = outs[rank].data;
      }
      if (gets) o.outs = outs;
      run();
      for (int s = 0; gets && s < world; ++s) {
        expect(all, at[s], part(s, 0), [&](size_t i) { return Input(s, 0, i); });
      }
      break;
    }
    case OpKind::kScatter:
    case OpKind::kReduceScatter: {
      const bool reduces = c.kind == OpKind::kReduceScatter;
      const bool gives = reduces || is_root;
      const std::vector<size_t> at = offsets([&](int s) { return part(0, s); });
      Elements all(c.dtype, at.back()), out(c.dtype, part(0, rank));
      for (int s = 0; s < world; ++s) {
        for (size_t i = at[s]; i < at[s + 1]; ++i) all.Set(i, Input(rank, s, i - at[s]));
      }
      const std::vector<Part> writable = parts(all, at);
      const std::vector<ConstPart> ins = constant(writable);
      if (gives) o.ins = ins;
      const bool in_place = c.in_place && gives;
      o.out = {in_place ? writable[rank].data : out.data(), part(0, rank)};
      run();
      expect(in_place ? all : out, in_place ? at[rank] : 0, part(0, rank),
             [&](size_t i) { return reduces ? Reduced(c, world, rank, i) : Input(c.root, rank, i); });
      break;
    }
    case OpKind::kAllToAll: {
      const std::vector<size_t> to = offsets([&](int s) { return part(rank, s); });
      const std::vector<size_t> from = offsets([&](int s) { return part(s, rank); });
      Elements in(c.dtype, to.back()), out(c.dtype, from.back());
      for (int s = 0; s < world; ++s) {
        for (size_t i = to[s]; i < to[s + 1]; ++i) in.Set(i, Input(rank, s, i - to[s]));
      }
      const std::vector<ConstPart> ins = constant(parts(in, to));
      const std::vector<Part> outs = parts(out, from);
      o.ins = ins;
      o.outs = outs;
      run();
      for (int s = 0; s < world; ++s) {
        expect(out, from[s], part(s, rank), [&](size_t i) { return Input(s, rank, i); });
      }
      break;
    }
    default:
      run();
      break;
  }
}

inline constexpr OpKind kCollectiveKinds[] = {OpKind::kAllReduce,     OpKind::kReduce,   OpKind::kBroadcast,
                                              OpKind::kAllGather,     OpKind::kGather,   OpKind::kScatter,
                                              OpKind::kReduceScatter, OpKind::kAllToAll, OpKind::kBarrier};

inline bool MayBeUneven(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kGather || kind == OpKind::kScatter ||
         kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll;
}

// Runs every kind, in place and not, even and not, with each root in turn.
inline void CheckEveryKind(Backend& backend, int rank, int world, absl::Span<const size_t> counts) {
  uint64_t sequence = 0;
  for (const OpKind kind : kCollectiveKinds) {
    for (const size_t count : counts) {
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
}

// Runs every reduction of every dtype; unsupported ones must be refused with the backend's name.
inline void CheckEveryReduction(Backend& backend, int rank, int world, absl::Span<const size_t> counts) {
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
        EXPECT_THAT(backend.Supports(operation),
                    testing::StatusIs(
                        absl::StatusCode::kUnimplemented,
                        ::testing::HasSubstr(absl::StrCat("backend ", backend.name(), ", all_reduce"))));
        EXPECT_EQ(backend.Run(operation), backend.Supports(operation));
        continue;
      }
      for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
        for (const size_t count : counts) {
          c.kind = kind;
          c.count = count;
          c.root = static_cast<int>((sequence + world - 1) % world);
          c.in_place = sequence % 2 == 1;
          CheckCollective(backend, rank, world, c, sequence++);
        }
      }
    }
  }
}

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_BACKENDS_COLLECTIVE_MODEL_H_
