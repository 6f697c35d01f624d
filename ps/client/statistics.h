// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_STATISTICS_H_
#define TANDEM_PS_CLIENT_STATISTICS_H_

// Combines the statistics that several servers report of the same tables.

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Returns each table once, in order of first appearance, with its statistics over all servers:
//
// - counts, bytes and histograms are summed
// - means are weighted
// - of maxima and versions the largest is taken
// - the `hottest` most frequently pulled ids remain; each id is on one server only
//
// The configuration is that of the first server.
std::vector<v1::TableInfo> SumTables(absl::Span<const std::vector<v1::TableInfo>> servers, size_t hottest);

// Returns the number of durations in the histogram.
uint64_t CountOf(const v1::LatencyHistogram& histogram);
// Returns the duration in microseconds that a fraction `quantile` of the durations does not exceed; 0 if
// there are none. Exact within 7 % from one microsecond on: it is the middle of a bin (base/latency_bins.h).
double QuantileUs(const v1::LatencyHistogram& histogram, double quantile);
// Returns what was added since `before`, an earlier state of the same histogram. Returns all of `now` if
// `before` is not an earlier state, because a server was restarted.
v1::LatencyHistogram Since(const v1::LatencyHistogram& now, const v1::LatencyHistogram& before);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_STATISTICS_H_
