// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_PS_REPORT_H_
#define TANDEM_BENCH_HARNESS_PS_REPORT_H_

// Prints the results of `tandem bench ps`.

#include <optional>
#include <string>

#include "bench/harness/measure.h"
#include "bench/harness/ps_case.h"

namespace tandem::bench {

struct PsResult {
  double keys_per_s = 0;  // sum over all workers
  Timing call;            // latency of one call, over all workers
  double client_cpu_s_per_mkeys = 0;
  double server_cpu_s_per_mkeys = 0;
  // only in process: rate of the plain gather that was measured in turn with the table
  std::optional<double> plain_keys_per_s;
};

struct FairnessResult {
  Timing idle, loaded;  // latency of one worker's pulls, without and with the other's pushes
  double pushed_keys_per_s = 0;
  double ratio() const { return loaded.p99_us / idle.p99_us; }
};

// Prints a result to stdout, with a newline, and flushes: a JSON object or a line of a table.
void Print(const PsCase& bench_case, const PsResult& result, bool json);
void Print(const PsCase& bench_case, const FairnessResult& result, bool json);
// Print the header of a table.
void PrintPsHeader();
void PrintFairnessHeader();

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_PS_REPORT_H_
