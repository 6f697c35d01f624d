// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/bench_flags.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "base/suggest.h"
#include "bench/harness/sizes.h"

namespace tandem::bench {
namespace {

constexpr Range kMilliseconds = {.min = 0, .max = 3600e3, .above_min = true};  // up to an hour

absl::StatusOr<DType> ParseDType(const std::string& name) {
  std::vector<absl::string_view> names;
  for (int number = 0; number < kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (Name(dtype) == name) return dtype;
    names.push_back(Name(dtype));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype: there is no dtype '", name, "'", DidYouMean(name, names)));
}

absl::Status Positive(const char* flag, double value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " is ", value, "; it must be above 0"));
}

}  // namespace

void DeclareBenchFlags(BenchOp op, CLI::App* command, BenchFlags* flags) {
  auto add = [command](const char* name, auto* value, const char* help) {
    return command->add_option(name, *value, help)->capture_default_str();
  };
  if (op != BenchOp::kBarrier) {
    add("--sizes", &flags->sizes,
        "Bytes of a rank's larger buffer (all ranks' parts together): a list of sizes like 1K or 64M, and of "
        "ranges from:to:factor");
    add("--dtype", &flags->dtype, "u8, i8, i32, i64, f16, bf16, f32 or f64");
  }
  if (Reduces(op)) {
    add("--op", &flags->reduce, "sum, avg, product, min, max, band, bor, bxor or premul_sum");
  }
  if (HasInPlace(op) && HasOutOfPlace(op)) {
    command->add_flag("--in-place", flags->in_place, "Only in place (default: both)");
    command->add_flag("--out-of-place", flags->out_of_place, "Only out of place (default: both)");
    command->add_flag_callback(
        "--both", [flags] { flags->in_place = flags->out_of_place = true; }, "In place and out of place");
  }
  LimitTo(kMilliseconds, add("--time-per-size", &flags->time_per_size_ms, "Milliseconds of one repeat"));
  LimitTo(Between(1, 1e6), add("--repeats", &flags->repeats, "Repeats of each size, each after a barrier"));
  CLI::Option* const batch =
      add("--batch", &flags->batch_us,
          "Microseconds of one sample: the mean time of so many operations one behind the other as take this "
          "long, "
          "on the slowest rank; min, median and p99 are over the samples of all repeats");
  LimitTo(Range{.min = 0, .max = 1e9, .above_min = true}, batch);
  command->add_flag(
      "--json", flags->json,
      "Print one JSON object a line: op, backend, ranks, bytes, dtype, in_place, min_us, median_us, "
      "p99_us, algbw_gbps, busbw_gbps (bandwidths in 10^9 bytes a second)");
}

absl::StatusOr<std::vector<BenchCase>> CasesOf(BenchOp op, const BenchFlags& flags, int ranks) {
  BenchCase c{.op = op, .ranks = ranks};
  if (op == BenchOp::kBarrier) {
    c.dtype = DType::kU8;
    return std::vector<BenchCase>{c};
  }
  TANDEM_ASSIGN_OR_RETURN(c.dtype, ParseDType(flags.dtype));
  const absl::StatusOr<std::vector<size_t>> sizes = ParseSizes(flags.sizes);
  if (!sizes.ok()) return Annotate(sizes.status(), "--sizes");
  const bool both = flags.in_place == flags.out_of_place;
  std::vector<BenchCase> cases;
  for (const size_t bytes : *sizes) {
    c.bytes = bytes;
    for (const bool in_place : {false, true}) {
      if (!(in_place ? HasInPlace(op) : HasOutOfPlace(op))) continue;
      if (!both && in_place != flags.in_place) continue;
      c.in_place = in_place;
      cases.push_back(c);
    }
  }
  return cases;
}

absl::StatusOr<Method> MethodOf(const BenchFlags& flags) {
  TANDEM_RETURN_IF_ERROR(Positive("--time-per-size", flags.time_per_size_ms));
  TANDEM_RETURN_IF_ERROR(Positive("--batch", flags.batch_us));
  TANDEM_RETURN_IF_ERROR(Positive("--repeats", flags.repeats));
  return Method{.time_per_size = absl::Milliseconds(flags.time_per_size_ms),
                .batch = absl::Microseconds(flags.batch_us),
                .repeats = flags.repeats};
}

}  // namespace tandem::bench
