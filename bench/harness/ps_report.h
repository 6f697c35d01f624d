#ifndef TANDEM_BENCH_HARNESS_PS_REPORT_H_
#define TANDEM_BENCH_HARNESS_PS_REPORT_H_

// What `tandem bench ps` prints.

#include <optional>
#include <string>

#include "bench/harness/measure.h"
#include "bench/harness/ps_case.h"

namespace tandem::bench {

struct PsResult {
  double keys_per_s = 0;  // of all workers
  Timing call;            // of one call, over all workers
  double client_cpu_s_per_mkeys = 0;
  double server_cpu_s_per_mkeys = 0;
  std::optional<double> plain_keys_per_s;  // in process: the plain gather beside it
};

struct FairnessResult {
  Timing idle, loaded;  // of one worker's pulls, without and with the other's pushes
  double pushed_keys_per_s = 0;
  double ratio() const { return loaded.p99_us / idle.p99_us; }
};

// One JSON object, or a line of a table; with the newline, to stdout, at once.
void Print(const PsCase& bench_case, const PsResult& result, bool json);
void Print(const PsCase& bench_case, const FairnessResult& result, bool json);
// What stands above a table's lines.
void PrintPsHeader();
void PrintFairnessHeader();

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_PS_REPORT_H_
