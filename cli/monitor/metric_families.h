// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_METRIC_FAMILIES_H_
#define TANDEM_CLI_MONITOR_METRIC_FAMILIES_H_

#include <vector>

#include "cli/monitor/server_metrics.h"
#include "prometheus/metric_family.h"

namespace tandem::cli {

// Returns the metrics in Prometheus' form and by its conventions: base units (seconds, bytes), names of
// counters that end in _total, cumulative histograms.
std::vector<prometheus::MetricFamily> MakeMetricFamilies(const ServerMetrics& figures);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_METRIC_FAMILIES_H_
