// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_REPLAY_METRICS_H_
#define TANDEM_CLI_MONITOR_REPLAY_METRICS_H_

#include <string>

#include "tandem/v1/replay.pb.h"

namespace tandem::cli {

// Returns the metrics of a replay server in Prometheus' text format. docs/replay.md lists them.
std::string ReplayMetricsText(const tandem::v1::ListReplayTablesResponse& state);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_REPLAY_METRICS_H_
