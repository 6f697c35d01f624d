// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_IN_PROCESS_H_
#define TANDEM_BENCH_SUITES_IN_PROCESS_H_

// Measures the table alone, without client, wire and server, and compares its reads with a plain gather.

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bench/harness/ps_case.h"

namespace tandem::bench {

// Measures the cases of a group without servers and prints each.
//
// A plain gather copies as many rows of the same size, prefetched some rows ahead, out of an array. The array
// has as many rows, at the same distance as in the table (where a row is [embedding | Adagrad's sums]). It
// has no index and no locks. Of several prefetch distances and cache levels the fastest on this machine is
// used. The gather and the table alternate, call by call; both rates are those of the median call.
absl::Status MeasureInProcess(const PsGroup& group, uint64_t rows, absl::Duration time_per_case, bool json);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_IN_PROCESS_H_
