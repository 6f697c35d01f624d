// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/server_metrics.h"

#include "cli/monitor/metric_families.h"
#include "prometheus/text_serializer.h"

namespace tandem::cli {

absl::Status CheckServerMetrics() { return absl::OkStatus(); }

std::string ServerMetricsText(const ServerMetrics& figures) {
  return prometheus::TextSerializer().Serialize(MakeMetricFamilies(figures));
}

}  // namespace tandem::cli
