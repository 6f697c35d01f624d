// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_METRICS_PROCESS_METRICS_H_
#define TANDEM_CLUSTER_METRICS_PROCESS_METRICS_H_

#include <string>

namespace tandem::cluster {

// Returns the metrics of this process that Prometheus' client libraries have in common
// (process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds, ...) in Prometheus' text
// format. Reads /proc; leaves out what cannot be read there.
std::string ProcessMetricsText();

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_METRICS_PROCESS_METRICS_H_
