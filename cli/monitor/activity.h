// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_ACTIVITY_H_
#define TANDEM_CLI_MONITOR_ACTIVITY_H_

// Computes rates and other changes of a job's tables between two snapshots.

#include <optional>
#include <string>
#include <vector>

#include "cli/monitor/snapshot.h"

namespace tandem::cli {

struct TableActivity {
  tandem::v1::TableInfo info;  // at the later snapshot, over all servers that responded
  double pulls_per_s = 0;      // calls, summed over the servers; so are the other rates
  double pushes_per_s = 0;
  double rows_per_s = 0;  // pulled and pushed rows
  double pull_bytes_per_s = 0, push_bytes_per_s = 0;
  double evicted_per_s = 0;
  // The share of the rows that workers pulled which their caches served, from 0 to 1; nullopt without a cache
  // or without pulls.
  std::optional<double> cached_share;
  double pull_p50_us = 0, pull_p99_us = 0, push_p50_us = 0, push_p99_us = 0;
};

// Returns the activity of each table of `now`, in its order. Rates are over the time since `before` and over
// the servers that responded both times; if `before` is nullptr, over the time that the servers have been up.
std::vector<TableActivity> Activity(const Snapshot& now, const Snapshot* before);

// Returns the processor time that the server used, in processors (1.5: one and a half), since `before`, or
// since its start if `before` is nullptr.
double ProcessorShare(const ServerSnapshot& now, const ServerSnapshot* before);

// Returns one line of JSON: {"time":...,"servers":[...],"tables":[...]}. `before` may be nullptr, as for
// Activity.
std::string SnapshotToJson(const Snapshot& now, const Snapshot* before);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_ACTIVITY_H_
