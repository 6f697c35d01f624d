#ifndef TANDEM_PS_CLIENT_STATISTICS_H_
#define TANDEM_PS_CLIENT_STATISTICS_H_

// What several servers say of the same tables, as one.

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Each table once, in order of first appearance, with its statistics over all servers: counts, bytes and
// histograms add up, means are weighted, of maxima and versions the largest counts, and of the hottest ids
// (an id is on one server only) the `hottest` most pulled are left. The configuration is the first server's.
std::vector<v1::TableInfo> SumTables(absl::Span<const std::vector<v1::TableInfo>> servers, size_t hottest);

// How many durations the histogram holds.
uint64_t CountOf(const v1::LatencyHistogram& histogram);
// The duration in microseconds that a fraction `quantile` of them do not exceed, within 7 % (the middle of
// its bin; base/latency_bins.h) from a microsecond on; 0 when there are none.
double QuantileUs(const v1::LatencyHistogram& histogram, double quantile);
// What was added since `before`, an earlier state of the same histogram; all of it when it is not.
v1::LatencyHistogram Since(const v1::LatencyHistogram& now, const v1::LatencyHistogram& before);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_STATISTICS_H_
