// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_BENCH_FLAGS_H_
#define TANDEM_BENCH_HARNESS_BENCH_FLAGS_H_

// The flags of `tandem bench OP` and of the programs under bench/peers/ that select the measurements and the
// method.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/harness/bench_case.h"
#include "bench/harness/measure.h"

namespace CLI {
class App;
}

namespace tandem::bench {

struct BenchFlags {
  std::string sizes = "8,1K,64K,1M,64M";
  std::string dtype = "f32";
  std::string reduce = "sum";
  bool in_place = false, out_of_place = false;  // neither means both
  double time_per_size_ms = 60;
  double batch_us = 1000;
  int repeats = 7;
  bool json = false;
};

// Declares the flags that apply to `op`. `flags` must outlive the parsing.
void DeclareBenchFlags(BenchOp op, CLI::App* command, BenchFlags* flags);

// Return the cases and the method that the flags select. InvalidArgument names the flag.
absl::StatusOr<std::vector<BenchCase>> CasesOf(BenchOp op, const BenchFlags& flags, int ranks);
absl::StatusOr<Method> MethodOf(const BenchFlags& flags);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_BENCH_FLAGS_H_
