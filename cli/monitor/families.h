#ifndef TANDEM_CLI_MONITOR_FAMILIES_H_
#define TANDEM_CLI_MONITOR_FAMILIES_H_

#include <vector>

#include "cli/monitor/metrics_server.h"
#include "prometheus/metric_family.h"

namespace tandem::cli {

// The figures by Prometheus' conventions: base units (seconds, bytes), counters end in _total, histograms
// cumulate.
std::vector<prometheus::MetricFamily> MakeFamilies(const ServerMetrics& figures);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_FAMILIES_H_
