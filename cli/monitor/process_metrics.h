// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_PROCESS_METRICS_H_
#define TANDEM_CLI_MONITOR_PROCESS_METRICS_H_

#include <string>

namespace tandem::cli {

// Returns the metrics of this process that Prometheus' client libraries have in common
// (process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds, ...) in Prometheus' text
// format. Reads /proc; leaves out what cannot be read there.
std::string ProcessMetricsText();

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_PROCESS_METRICS_H_
