// SPDX-License-Identifier: Apache-2.0
// Tests the benchmark harness: sizes, cases, buffers, samples.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "bench/harness/bench_case.h"
#include "bench/harness/bench_flags.h"
#include "bench/harness/buffer_sets.h"
#include "bench/harness/measure.h"
#include "bench/harness/sizes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"

namespace tandem::bench {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

std::vector<size_t> Sizes(absl::string_view text) { return ParseSizes(text).value_or(std::vector<size_t>()); }

TEST(SizesTest, AreNumbersWithUnitsAndRanges) {
  EXPECT_THAT(Sizes("8,1K,64k,1M,2G"), ElementsAre(8, 1024, 65536, 1 << 20, size_t{2} << 30));
  EXPECT_THAT(Sizes("8:512:4"), ElementsAre(8, 32, 128, 512));
  EXPECT_THAT(Sizes("1K:5K"), ElementsAre(1024, 2048, 4096));
  EXPECT_THAT(Sizes("0,3:3:9"), ElementsAre(0, 3));
}

TEST(SizesTest, WhatIsNoneIsNamed) {
  for (const char* text :
       {"", "8Q", "K", "-1", "1,,2", "1.5M", "8:4", "8:64:1", "0:8", "1:2:3:4", "100000G"}) {
    EXPECT_THAT(ParseSizes(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
  EXPECT_THAT(ParseSizes("1K,8Q"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'8Q' is no size")));
}

TEST(BenchCaseTest, PartsAreEqualAndWhole) {
  const BenchCase gather{.op = BenchOp::kAllGather, .bytes = 1000, .dtype = DType::kF32, .ranks = 3};
  EXPECT_EQ(gather.part(), 83u);
  EXPECT_EQ(gather.count(), 249u);
  EXPECT_EQ(gather.in_count(), 83u);
  EXPECT_EQ(gather.out_count(), 249u);
  const BenchCase scatter{.op = BenchOp::kReduceScatter, .bytes = 8, .dtype = DType::kF64, .ranks = 4};
  EXPECT_EQ(scatter.in_count(), 4u);  // at least one element
  EXPECT_EQ(scatter.out_count(), 1u);
  EXPECT_EQ(scatter.actual_bytes(), 32u);
  const BenchCase reduce{.op = BenchOp::kAllReduce, .bytes = 1024, .dtype = DType::kBF16, .ranks = 3};
  EXPECT_EQ(reduce.count(), 512u);
}

TEST(BenchCaseTest, BusBandwidthIsAsInNcclTests) {
  EXPECT_THAT(BusFactor(BenchOp::kAllReduce, 4), DoubleEq(1.5));
  EXPECT_THAT(BusFactor(BenchOp::kAllGather, 4), DoubleEq(0.75));
  EXPECT_THAT(BusFactor(BenchOp::kReduceScatter, 2), DoubleEq(0.5));
  EXPECT_THAT(BusFactor(BenchOp::kAllToAll, 4), DoubleEq(0.75));
  EXPECT_THAT(BusFactor(BenchOp::kBroadcast, 4), DoubleEq(1));
  EXPECT_THAT(BusFactor(BenchOp::kSendRecv, 2), DoubleEq(1));
}

TEST(BufferSetsTest, GoRoundAndDoNotOverlap) {
  const BenchCase c{.op = BenchOp::kAllReduce, .bytes = 4000, .dtype = DType::kF32, .ranks = 2};
  TANDEM_ASSERT_OK_AND_ASSIGN(const BufferSets sets, BufferSets::Make(c, 0));
  ASSERT_EQ(sets.size(), 16u);
  std::set<char*> begins;
  for (size_t i = 0; i < 16; ++i) {
    begins.insert(static_cast<char*>(sets.in(i)));
    begins.insert(static_cast<char*>(sets.out(i)));
    EXPECT_EQ(sets.in(i), sets.in(i + 16));
    EXPECT_THAT(absl::MakeSpan(static_cast<float*>(sets.in(i)), 1000), Each(1.0f));
  }
  ASSERT_EQ(begins.size(), 32u);
  for (auto at = begins.begin(); std::next(at) != begins.end(); ++at) EXPECT_GE(*std::next(at) - *at, 4000);
}

TEST(BufferSetsTest, LargeOnesAreAtLeastTwoAndInPlaceTheyAreOne) {
  const BenchCase large{.op = BenchOp::kBroadcast, .bytes = 16 << 20, .in_place = true, .ranks = 2};
  TANDEM_ASSERT_OK_AND_ASSIGN(const BufferSets sets, BufferSets::Make(large, 1));
  EXPECT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets.in(0), sets.out(0));
  EXPECT_NE(sets.in(0), sets.in(1));
}

TEST(BufferSetsTest, InPlaceTheSmallerOneIsThisRanksPart) {
  BenchCase c{.op = BenchOp::kAllGather, .bytes = 1200, .dtype = DType::kF32, .in_place = true, .ranks = 3};
  TANDEM_ASSERT_OK_AND_ASSIGN(const BufferSets gather, BufferSets::Make(c, 2));
  EXPECT_EQ(gather.in(5), static_cast<char*>(gather.out(5)) + 800);
  c.op = BenchOp::kReduceScatter;
  TANDEM_ASSERT_OK_AND_ASSIGN(const BufferSets scatter, BufferSets::Make(c, 1));
  EXPECT_EQ(scatter.out(5), static_cast<char*>(scatter.in(5)) + 400);
}

TEST(SummaryTest, IsOverAllSamples) {
  std::vector<double> samples;
  for (int i = 200; i >= 1; --i) samples.push_back(i);
  const Timing timing = Summarize(samples);
  EXPECT_THAT(timing.min_us, DoubleEq(1));
  EXPECT_THAT(timing.median_us, DoubleEq(100.5));
  EXPECT_THAT(timing.p99_us, DoubleEq(198));
  EXPECT_THAT(Summarize({7}).p99_us, DoubleEq(7));
}

// Takes `us` per operation; another rank takes `slowest` times as long.
class Spinner : public BenchTarget {
 public:
  Spinner(double us, double slowest) : us_(us), slowest_(slowest) {}
  int rank() const override { return 0; }
  std::string backend() const override { return "spinner"; }
  absl::Status Prepare(const BenchCase& bench_case, const BufferSets& buffers) override {
    return absl::OkStatus();
  }
  absl::Status Run(uint64_t first, uint64_t count) override {
    contiguous_ = contiguous_ && first == next_;
    next_ = first + count;
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration<double, std::micro>(us_ * count);
    while (std::chrono::steady_clock::now() < end) {
    }
    return next_ > fails_at_ ? absl::UnavailableError("rank 1 died") : absl::OkStatus();
  }
  absl::Status Barrier() override {
    ++barriers_;
    return absl::OkStatus();
  }
  absl::Status MaxOverRanks(absl::Span<double> values) override {
    for (double& value : values) value *= slowest_;
    return absl::OkStatus();
  }

  uint64_t fails_at_ = UINT64_MAX;
  uint64_t next_ = 0;
  bool contiguous_ = true;
  int barriers_ = 0;

 private:
  const double us_, slowest_;
};

constexpr Method kQuick{
    .time_per_size = absl::Milliseconds(4), .batch = absl::Microseconds(200), .repeats = 3};

TEST(MeasureTest, TheSlowestRanksTimeIsTheOperations) {
  Spinner spinner(/*us=*/10, /*slowest=*/3);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Timing timing, Measure(&spinner, {.bytes = 8, .ranks = 2}, kQuick));
  EXPECT_GE(timing.min_us, 30);
  EXPECT_LE(timing.min_us, 60);
  EXPECT_LE(timing.min_us, timing.median_us);
  EXPECT_LE(timing.median_us, timing.p99_us);
  EXPECT_TRUE(spinner.contiguous_);  // every operation uses the next set of buffers
  EXPECT_GE(spinner.barriers_, 3);
}

TEST(MeasureTest, AnOperationLongerThanARepeatIsRunThreeTimes) {
  Spinner spinner(/*us=*/6000, /*slowest=*/1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Timing timing,
                              Measure(&spinner, {.bytes = 64 << 20, .ranks = 2}, kQuick));
  EXPECT_GE(timing.min_us, 6000);
  EXPECT_EQ(spinner.next_, 2 + 4 + 3 * 3);
}

TEST(MeasureTest, AnErrorSaysAtWhichSize) {
  Spinner spinner(1, 1);
  spinner.fails_at_ = 40;
  const BenchCase c{.op = BenchOp::kAllReduce, .bytes = 4096, .ranks = 2};
  EXPECT_THAT(MeasureAndPrint(&spinner, {c}, kQuick, /*json=*/true),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("allreduce of 4096 bytes: rank 1 died")));
}

TEST(MeasureTest, JsonHasExactlyTheElevenFields) {
  const BenchCase c{.op = BenchOp::kAllReduce, .bytes = 4000, .in_place = true, .ranks = 4};
  const auto json = ParseJson(ToJson(c, "shm", {.min_us = 1, .median_us = 2, .p99_us = 3}));
  EXPECT_EQ(json, nlohmann::json({{"op", "allreduce"},
                                  {"backend", "shm"},
                                  {"ranks", 4},
                                  {"bytes", 4000},
                                  {"dtype", "f32"},
                                  {"in_place", true},
                                  {"min_us", 1.0},
                                  {"median_us", 2.0},
                                  {"p99_us", 3.0},
                                  {"algbw_gbps", 2.0},
                                  {"busbw_gbps", 3.0}}));
}

TEST(BenchFlagsTest, BothPlacesUnlessOneIsAskedFor) {
  BenchFlags flags{.sizes = "8,16"};
  EXPECT_EQ(CasesOf(BenchOp::kAllReduce, flags, 2)->size(), 4u);
  EXPECT_EQ(CasesOf(BenchOp::kBroadcast, flags, 2)->size(), 2u);
  flags.in_place = true;
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<BenchCase> cases, CasesOf(BenchOp::kAllGather, flags, 2));
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_TRUE(cases[0].in_place && cases[1].in_place);
  EXPECT_EQ(CasesOf(BenchOp::kBarrier, flags, 2)->size(), 1u);
}

TEST(BenchFlagsTest, AWrongValueNamesItsFlag) {
  EXPECT_THAT(CasesOf(BenchOp::kAllReduce, {.sizes = "x"}, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--sizes: 'x' is no size")));
  EXPECT_THAT(CasesOf(BenchOp::kAllReduce, {.dtype = "f23"}, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--dtype: there is no dtype 'f23'")));
  EXPECT_THAT(MethodOf({.repeats = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--repeats is 0")));
  EXPECT_THAT(MethodOf({.time_per_size_ms = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--time-per-size is -1")));
}

}  // namespace
}  // namespace tandem::bench
