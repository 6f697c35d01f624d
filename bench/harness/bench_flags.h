#ifndef TANDEM_BENCH_HARNESS_BENCH_FLAGS_H_
#define TANDEM_BENCH_HARNESS_BENCH_FLAGS_H_

// The flags that say what is measured and how: of `tandem bench OP` and of the programs under bench/peers/.

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
  bool in_place = false, out_of_place = false;  // neither is as both
  double time_per_size_ms = 60;
  double batch_us = 1000;
  int repeats = 7;
  bool json = false;
};

// Declares those that `op` has a use for. `flags` outlives the parsing.
void DeclareBenchFlags(BenchOp op, CLI::App* command, BenchFlags* flags);

// What they ask for. InvalidArgument names the flag.
absl::StatusOr<std::vector<BenchCase>> CasesOf(BenchOp op, const BenchFlags& flags, int ranks);
absl::StatusOr<Method> MethodOf(const BenchFlags& flags);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_BENCH_FLAGS_H_
