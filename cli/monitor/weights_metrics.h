// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_WEIGHTS_METRICS_H_
#define TANDEM_CLI_MONITOR_WEIGHTS_METRICS_H_

#include <string>

#include "tandem/v1/weights.pb.h"

namespace tandem::cli {

// Returns the metrics of a weight server in Prometheus' text format. docs/weights.md lists them.
std::string WeightsMetricsText(const tandem::v1::ListWeightsResponse& state);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_WEIGHTS_METRICS_H_
