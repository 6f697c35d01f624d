// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tandem::bench {
namespace {

double Now() {  // seconds
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The number of batches of a repeat and of operations per batch. The same on all ranks.
struct Plan {
  uint64_t batches = 1;
  uint64_t per_batch = 1;
};

// Doubles the number of operations until they take long enough to estimate how many fill a repeat.
absl::StatusOr<Plan> MakePlan(BenchTarget* bench_target, const Method& method, uint64_t num_sets,
                              uint64_t* next) {
  const double target = absl::ToDoubleSeconds(method.time_per_size);
  double seconds = 0;
  // The first round touches all buffers and does not count.
  uint64_t count = num_sets / 2;
  do {
    count *= 2;
    TANDEM_RETURN_IF_ERROR(bench_target->Barrier());
    const double begin = Now();
    TANDEM_RETURN_IF_ERROR(bench_target->Run(*next, count));
    seconds = Now() - begin;
    TANDEM_RETURN_IF_ERROR(bench_target->MaxOverRanks(absl::MakeSpan(&seconds, 1)));
    *next += count;
  } while (seconds < target / 8 || *next <= num_sets);
  constexpr double kMinOperations = 3;  // fewest operations of a repeat
  const double each = seconds / static_cast<double>(count);
  const double operations = std::max(kMinOperations, target / each);
  const double per_batch =
      std::clamp(std::floor(absl::ToDoubleSeconds(method.batch) / each), 1.0, operations);
  return Plan{.batches = static_cast<uint64_t>(std::max(1.0, std::round(operations / per_batch))),
              .per_batch = static_cast<uint64_t>(per_batch)};
}

double Algbw(const BenchCase& c, const Timing& timing) {  // 10^9 bytes per second
  if (c.op == BenchOp::kBarrier || timing.median_us <= 0) return 0;
  return static_cast<double>(c.actual_bytes()) / timing.median_us / 1e3;
}

void PrintHeader(const BenchCase& c, const std::string& backend) {
  std::printf("%s, %s, %d ranks, %s\n", std::string(Name(c.op)).c_str(), backend.c_str(), c.ranks,
              std::string(Name(c.dtype)).c_str());
  std::printf("%12s %8s %12s %12s %12s %10s %10s\n", "bytes", "in place", "min us", "median us", "p99 us",
              "alg GB/s", "bus GB/s");
  std::fflush(stdout);
}

void PrintLine(const BenchCase& c, const Timing& t) {
  std::printf("%12zu %8s %12.2f %12.2f %12.2f %10.3f %10.3f\n", c.actual_bytes(), c.in_place ? "yes" : "no",
              t.min_us, t.median_us, t.p99_us, Algbw(c, t), Algbw(c, t) * BusFactor(c.op, c.ranks));
}

}  // namespace

Timing Summarize(std::vector<double> samples_us) {
  TANDEM_CHECK(!samples_us.empty());
  std::sort(samples_us.begin(), samples_us.end());
  const size_t n = samples_us.size();
  // The smallest sample that at least 99% of the samples do not exceed.
  const size_t p99 = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(n))) - 1;
  return {.min_us = samples_us[0],
          .median_us = (samples_us[(n - 1) / 2] + samples_us[n / 2]) / 2,
          .p99_us = samples_us[p99]};
}

absl::StatusOr<Timing> Measure(BenchTarget* bench_target, const BenchCase& c, const Method& method) {
  TANDEM_ASSIGN_OR_RETURN(const BufferSets buffers, BufferSets::Make(c, bench_target->rank()));
  TANDEM_RETURN_IF_ERROR(bench_target->Prepare(c, buffers));
  uint64_t next = 0;
  TANDEM_ASSIGN_OR_RETURN(const Plan plan, MakePlan(bench_target, method, buffers.size(), &next));
  std::vector<double> all, repeat(plan.batches);
  for (int r = 0; r < method.repeats; ++r) {
    TANDEM_RETURN_IF_ERROR(bench_target->Barrier());
    double begin = Now();
    for (double& sample : repeat) {
      TANDEM_RETURN_IF_ERROR(bench_target->Run(next, plan.per_batch));
      const double end = Now();
      sample = (end - begin) * 1e6 / static_cast<double>(plan.per_batch);
      begin = end;
      next += plan.per_batch;
    }
    TANDEM_RETURN_IF_ERROR(bench_target->MaxOverRanks(absl::MakeSpan(repeat)));
    all.insert(all.end(), repeat.begin(), repeat.end());
  }
  return Summarize(std::move(all));
}

std::string ToJson(const BenchCase& c, const std::string& backend, const Timing& t) {
  const double algbw = Algbw(c, t);
  return nlohmann::ordered_json({{"op", std::string(Name(c.op))},
                                 {"backend", backend},
                                 {"ranks", c.ranks},
                                 {"bytes", c.actual_bytes()},
                                 {"dtype", std::string(Name(c.dtype))},
                                 {"in_place", c.in_place},
                                 {"min_us", t.min_us},
                                 {"median_us", t.median_us},
                                 {"p99_us", t.p99_us},
                                 {"algbw_gbps", algbw},
                                 {"busbw_gbps", algbw * BusFactor(c.op, c.ranks)}})
      .dump();
}

absl::Status MeasureAndPrint(BenchTarget* bench_target, absl::Span<const BenchCase> cases,
                             const Method& method, bool json) {
  const bool prints = bench_target->rank() == 0;
  if (cases.empty()) return absl::OkStatus();
  const auto measure = [&](const BenchCase& c) -> absl::StatusOr<Timing> {
    absl::StatusOr<Timing> timing = Measure(bench_target, c, method);
    if (timing.ok()) return timing;
    return Annotate(timing.status(), absl::StrCat(Name(c.op), " of ", c.actual_bytes(), " bytes"));
  };
  if (prints && !json) PrintHeader(cases[0], bench_target->backend());
  // This result is discarded: in its first tenths of a second the scheduler still moves the new processes
  // between processors, which would distort the first size.
  TANDEM_RETURN_IF_ERROR(measure(cases[0]).status());
  for (const BenchCase& c : cases) {
    TANDEM_ASSIGN_OR_RETURN(const Timing timing, measure(c));
    if (!prints) continue;
    if (json) {
      std::printf("%s\n", ToJson(c, bench_target->backend(), timing).c_str());
    } else {
      PrintLine(c, timing);
    }
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace tandem::bench
