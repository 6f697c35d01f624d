// SPDX-License-Identifier: Apache-2.0
#include "collectives/reduce/reduce.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr DType kDTypes[] = {DType::kU8,  DType::kI8,   DType::kI32, DType::kI64,
                             DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
constexpr ReduceOp kOps[] = {ReduceOp::kSum,   ReduceOp::kAvg,    ReduceOp::kProduct,
                             ReduceOp::kMin,   ReduceOp::kMax,    ReduceOp::kBitAnd,
                             ReduceOp::kBitOr, ReduceOp::kBitXor, ReduceOp::kPremulSum};

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <typename T>
using ComputedAs = std::conditional_t<kIsHalf<T>, float, T>;

// The result for one element, as reduce.h defines it. Integers are computed in 128 bits and then truncated,
// which is what wrapping means.
template <typename T>
T Model(ReduceOp op, const std::vector<T>& values, const std::vector<double>& factors, int average_over) {
  if constexpr (std::is_integral_v<T>) {
    using Wide = __int128;
    Wide result = values[0];
    for (size_t s = 1; s < values.size(); ++s) {
      const Wide next = values[s];
      switch (op) {
        case ReduceOp::kSum:
        case ReduceOp::kAvg:
          result += next;
          break;
        case ReduceOp::kProduct:
          result = static_cast<T>(result * next);
          break;
        case ReduceOp::kMin:
          result = std::min(result, next);
          break;
        case ReduceOp::kMax:
          result = std::max(result, next);
          break;
        case ReduceOp::kBitAnd:
          result &= next;
          break;
        case ReduceOp::kBitOr:
          result |= next;
          break;
        default:
          result ^= next;
      }
    }
    return op == ReduceOp::kAvg ? static_cast<T>(Wide{static_cast<T>(result)} / average_over)
                                : static_cast<T>(result);
  } else {
    using C = ComputedAs<T>;
    auto prepared = [&](size_t s) {
      const C value = static_cast<C>(values[s]);
      return op == ReduceOp::kPremulSum ? value * static_cast<C>(factors[s]) : value;
    };
    volatile C result = prepared(0);  // volatile: one operation, one rounding
    for (size_t s = 1; s < values.size(); ++s) {
      volatile const C next = prepared(s);
      if (op == ReduceOp::kProduct) {
        result = result * next;
      } else if (op == ReduceOp::kMin) {
        if (next < result) result = next;
      } else if (op == ReduceOp::kMax) {
        if (next > result) result = next;
      } else {
        result = result + next;
      }
    }
    if (op == ReduceOp::kAvg) result = result / static_cast<C>(average_over);
    return static_cast<T>(C{result});
  }
}

// Compares bits; all NaNs are equal.
template <typename T>
bool Same(T a, T b) {
  if constexpr (!std::is_integral_v<T>) {
    using C = ComputedAs<T>;
    if (std::isnan(static_cast<C>(a)) && std::isnan(static_cast<C>(b))) return true;
  }
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T>
T RandomElement(std::mt19937_64& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random());
  } else {
    using C = ComputedAs<T>;
    using Limits = std::numeric_limits<C>;
    switch (random() % 32) {
      case 0:
        return T(Limits::quiet_NaN());
      case 1:
        return T(random() % 2 != 0 ? Limits::infinity() : -Limits::infinity());
      case 2:
        return T(C{-0.0});
      case 3:
        return T(C{0.0});
      case 4:
        return T(Limits::denorm_min() * static_cast<C>(random() % 100));
      case 5:
        return T(Limits::max());
      case 6:
        return T(static_cast<C>(6e-8) * static_cast<C>(random() % 2000));  // subnormal as a Float16
      default:
        return T(static_cast<C>(std::ldexp(static_cast<double>(random() % 20001) - 10000.0,
                                           static_cast<int>(random() % 24) - 16)));
    }
  }
}

// One call of ReduceInRankOrder on buffers at given distances from aligned addresses.
struct Case {
  ReduceOp op;
  size_t n;
  size_t num_sources;
  int alias = -1;                    // the source that is also the output; -1: none is
  std::vector<size_t> offset_bytes;  // of each source, then of the output
  WriteHint hint = WriteHint::kCache;
};

template <typename T>
void ExpectAsModel(const Case& c, std::mt19937_64& random) {
  constexpr size_t kGuard = 64;
  constexpr char kUntouched = 0x5a;
  std::vector<std::vector<T>> inputs(c.num_sources, std::vector<T>(c.n));
  std::vector<double> factors;
  for (auto& input : inputs) {
    for (T& value : input) value = RandomElement<T>(random);
    factors.push_back(std::ldexp(static_cast<double>(random() % 100), -4) - 3.0);
  }
  if (c.op != ReduceOp::kPremulSum) factors.clear();
  const int average_over = static_cast<int>(1 + random() % 9);
  std::vector<T> expected(c.n);
  for (size_t i = 0; i < c.n; ++i) {
    std::vector<T> values;
    for (const auto& input : inputs) values.push_back(input[i]);
    expected[i] = Model(c.op, values, factors, average_over);
  }

  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    std::vector<std::vector<char>> memory(c.num_sources + 1);
    std::vector<char*> at(memory.size());
    for (size_t b = 0; b < memory.size(); ++b) {
      memory[b].assign(c.n * sizeof(T) + 3 * kGuard, kUntouched);
      char* const aligned = reinterpret_cast<char*>(
          (reinterpret_cast<uintptr_t>(memory[b].data()) + kGuard - 1) / kGuard * kGuard);
      at[b] = aligned + c.offset_bytes[b];
    }
    std::vector<const void*> sources;
    for (size_t s = 0; s < c.num_sources; ++s) {
      if (c.n > 0) std::memcpy(at[s], inputs[s].data(), c.n * sizeof(T));
      sources.push_back(at[s]);
    }
    const size_t output = c.alias < 0 ? c.num_sources : static_cast<size_t>(c.alias);
    ReduceInRankOrder(c.op, DTypeOf<T>::value, sources, factors, average_over, c.n, at[output], c.hint);
    hwy::SetSupportedTargetsForTest(0);

    const std::string where =
        absl::StrCat(Name(c.op), " of ", c.n, " ", Name(DTypeOf<T>::value), ", ", c.num_sources,
                     " sources, alias ", c.alias, ", ", hwy::TargetName(target));
    for (size_t i = 0; i < c.n; ++i) {
      T got;
      std::memcpy(&got, at[output] + i * sizeof(T), sizeof(T));
      ASSERT_TRUE(Same(got, expected[i])) << where << ", element " << i;
    }
    const char* const begin = memory[output].data();
    for (const char* p = begin; p < begin + memory[output].size(); ++p) {
      if (p == at[output]) p += c.n * sizeof(T);
      ASSERT_EQ(*p, kUntouched) << where << " writes outside, at byte " << p - at[output];
    }
    for (size_t s = 0; s < c.num_sources; ++s) {
      if (s != output && c.n > 0) {
        ASSERT_EQ(std::memcmp(at[s], inputs[s].data(), c.n * sizeof(T)), 0)
            << where << " writes source " << s;
      }
    }
  }
}

class ReductionTest : public ::testing::TestWithParam<std::tuple<DType, ReduceOp>> {
 protected:
  void SetUp() override {
    const auto [dtype, op] = GetParam();
    if (!SupportsReduction(op, dtype).ok()) GTEST_SKIP() << "has no meaning";
  }
  void ExpectCase(const Case& c) {
    DispatchDType(std::get<DType>(GetParam()), [&](auto type) { ExpectAsModel<decltype(type)>(c, random_); });
  }
  ReduceOp op() const { return std::get<ReduceOp>(GetParam()); }
  size_t element() const { return SizeOf(std::get<DType>(GetParam())); }

  std::mt19937_64 random_{7};
};

TEST_P(ReductionTest, IsAsTheModelOnEveryInstructionSetAtEveryLength) {
  for (size_t n = 0; n <= 70; ++n) {
    const size_t num_sources = 1 + n % 4;
    ExpectCase({.op = op(),
                .n = n,
                .num_sources = num_sources,
                .offset_bytes = std::vector<size_t>(num_sources + 1, 0)});
  }
  for (const size_t n : {127u, 128u, 129u, 255u, 1000u, 4097u, 10007u}) {
    ExpectCase({.op = op(), .n = n, .num_sources = 2, .offset_bytes = {0, 0, 0}});
  }
}

TEST_P(ReductionTest, AnyAlignmentAliasNumberOfSourcesAndStoreGivesTheSame) {
  for (int round = 0; round < 60; ++round) {
    Case c{.op = op(), .n = random_() % 3000, .num_sources = 1 + random_() % 7};
    c.alias = static_cast<int>(random_() % (c.num_sources + 1)) - 1;
    c.hint = random_() % 2 != 0 ? WriteHint::kStream : WriteHint::kCache;
    // Elements are aligned to their size in half of the rounds, as usual; otherwise they lie at any address.
    const size_t step = round % 2 == 0 ? element() : 1;
    for (size_t b = 0; b <= c.num_sources; ++b) c.offset_bytes.push_back(random_() % (64 / step) * step);
    ExpectCase(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ReductionTest,
                         ::testing::Combine(::testing::ValuesIn(kDTypes), ::testing::ValuesIn(kOps)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)), "_",
                                               Name(std::get<1>(info.param)));
                         });

template <typename T>
std::vector<T> Reduced(ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  std::vector<T> out(inputs[0].size());
  ReduceInRankOrder(op, DTypeOf<T>::value, sources, {}, static_cast<int>(inputs.size()), out.size(),
                    out.data());
  return out;
}

TEST(ReduceTest, SumsAreTakenInRankOrder) {
  // (1e8 + -1e8) + 1 = 1, but 1e8 + (-1e8 + 1) = 0 in float.
  EXPECT_EQ(Reduced<float>(ReduceOp::kSum, {{1e8f}, {-1e8f}, {1.0f}})[0], 1.0f);
  EXPECT_EQ(Reduced<float>(ReduceOp::kSum, {{1.0f}, {1e8f}, {-1e8f}})[0], 0.0f);
}

TEST(ReduceTest, HalvesAreAddedInFloatAndRoundedOnce) {
  // Float16 rounds 2048 + 1 to 2048 every time; the exact sum is 2050.
  const std::vector<std::vector<Float16>> f16 = {{Float16(2048.0f)}, {Float16(1.0f)}, {Float16(1.0f)}};
  EXPECT_EQ(static_cast<float>(Reduced(ReduceOp::kSum, f16)[0]), 2050.0f);
  const std::vector<std::vector<BFloat16>> bf16 = {{BFloat16(256.0f)}, {BFloat16(1.0f)}, {BFloat16(1.0f)}};
  EXPECT_EQ(static_cast<float>(Reduced(ReduceOp::kSum, bf16)[0]), 258.0f);
}

TEST(ReduceTest, FloatSumsAreCloseToSumsInDoublePrecision) {
  std::mt19937_64 random(3);
  std::vector<std::vector<float>> inputs(8, std::vector<float>(1000));
  for (auto& input : inputs) {
    for (float& value : input) value = std::ldexp(static_cast<float>(random() % 65536) - 32768.0f, -10);
  }
  const std::vector<float> sum = Reduced(ReduceOp::kSum, inputs);
  for (size_t i = 0; i < sum.size(); ++i) {
    double exact = 0, magnitude = 0;
    for (const auto& input : inputs) {
      exact += input[i];
      magnitude += std::fabs(input[i]);
    }
    EXPECT_NEAR(sum[i], exact, 8 * magnitude * std::numeric_limits<float>::epsilon());
  }
}

TEST(ReduceTest, IntegerSumsWrapAndAveragesRoundTowardsZero) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Reduced<int64_t>(ReduceOp::kSum, {{most}, {1}})[0], std::numeric_limits<int64_t>::min());
  EXPECT_THAT(Reduced<int64_t>(ReduceOp::kAvg, {{-3, 3}, {0, 0}}), ::testing::ElementsAre(-1, 1));
  EXPECT_THAT(Reduced<int8_t>(ReduceOp::kAvg, {{-7, 7}, {0, 0}}), ::testing::ElementsAre(-3, 3));
}

TEST(ReduceTest, NotANumberStaysInSumsAndIsKeptByMinAndMaxOnlyFromTheFirstRank) {
  const float nan = std::nanf("");
  EXPECT_TRUE(std::isnan(Reduced<float>(ReduceOp::kSum, {{1.0f}, {nan}})[0]));
  EXPECT_TRUE(std::isnan(Reduced<float>(ReduceOp::kMax, {{nan}, {1.0f}})[0]));
  EXPECT_EQ(Reduced<float>(ReduceOp::kMax, {{1.0f}, {nan}})[0], 1.0f);
  EXPECT_TRUE(std::signbit(Reduced<float>(ReduceOp::kMax, {{-0.0f}, {0.0f}})[0]));
  EXPECT_FALSE(std::signbit(Reduced<float>(ReduceOp::kMin, {{0.0f}, {-0.0f}})[0]));
}

TEST(ReduceTest, WhatHasNoMeaningIsRefusedByName) {
  EXPECT_THAT(SupportsReduction(ReduceOp::kBitOr, DType::kBF16),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("bor is for integers, not for bf16")));
  EXPECT_THAT(
      SupportsReduction(ReduceOp::kPremulSum, DType::kI64),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("premul_sum is for floating point, not for i64")));
  EXPECT_FALSE(SupportsReduction(ReduceOp::kSum, static_cast<DType>(77)).ok());
  EXPECT_FALSE(SupportsReduction(static_cast<ReduceOp>(77), DType::kF32).ok());
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
      TANDEM_EXPECT_OK(SupportsReduction(op, dtype));
    }
  }
}

}  // namespace
}  // namespace tandem::collectives
