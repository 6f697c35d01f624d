#ifndef TANDEM_BENCH_SUITES_IN_PROCESS_H_
#define TANDEM_BENCH_SUITES_IN_PROCESS_H_

// The table itself, without client, wire and server; its reads beside a plain gather.

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bench/harness/ps_case.h"

namespace tandem::bench {

// Measures the cases of a group without servers and prints each. A plain gather copies as many rows of the
// same size, asked for some rows ahead, out of an array of as many rows that lie as far apart (a row of the
// table is [embedding | Adagrad's sums]): no index, no locks. Of several distances and caches to fetch to,
// the one that is fastest on this machine is used. It and the table take turns, call by call; both rates are
// of the median call.
absl::Status MeasureInProcess(const PsGroup& group, uint64_t rows, absl::Duration time_per_case, bool json);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_IN_PROCESS_H_
