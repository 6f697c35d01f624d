#ifndef TANDEM_CLI_MONITOR_ACTIVITY_H_
#define TANDEM_CLI_MONITOR_ACTIVITY_H_

// What happened to a job's tables between two snapshots.

#include <optional>
#include <string>
#include <vector>

#include "cli/monitor/snapshot.h"

namespace tandem::cli {

struct TableActivity {
  tandem::v1::TableInfo info;  // now, over all servers that answer
  double pulls_per_s = 0;      // calls of all servers
  double pushes_per_s = 0;
  double rows_per_s = 0;  // pulled and pushed
  double pull_bytes_per_s = 0, push_bytes_per_s = 0;
  double evicted_per_s = 0;
  std::optional<double> cached_share;  // of the rows that workers pulled, if any, those their copies served
  double pull_p50_us = 0, pull_p99_us = 0, push_p50_us = 0, push_p99_us = 0;
};

// The tables of `now`, in its order. Rates are over the time since `before`, over the servers that answered
// both times; without a `before`, over the time that the servers have been up.
std::vector<TableActivity> Activity(const Snapshot& now, const Snapshot* before);

// The share of a processor that the server used since `before`, or since it was started.
double ProcessorShare(const ServerSnapshot& now, const ServerSnapshot* before);

// One line: {"time":...,"servers":[...],"tables":[...]}.
std::string SnapshotToJson(const Snapshot& now, const Snapshot* before);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_ACTIVITY_H_
