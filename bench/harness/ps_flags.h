// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_PS_FLAGS_H_
#define TANDEM_BENCH_HARNESS_PS_FLAGS_H_

// The flags of `tandem bench ps`. Each list flag restricts one choice. Without the flag all its values are
// measured, or with --quick some of them.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/harness/ps_case.h"

namespace CLI {
class App;
}

namespace tandem::bench {

struct PsFlags {
  // Comma-separated lists; "": not given.
  std::string transports, ops, ids, dims, servers, workers, in_flight, distributions;
  uint64_t rows = 1000000;
  double time_ms = 200;
  bool quick = false;
  bool json = false;
};

// Declares the flags. `flags` must outlive the parsing.
void DeclarePsFlags(CLI::App* command, PsFlags* flags);

// Returns the cases that the flags select, in the order of measurement. InvalidArgument names the flag.
absl::StatusOr<std::vector<PsGroup>> PsGroupsOf(const PsFlags& flags);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_PS_FLAGS_H_
