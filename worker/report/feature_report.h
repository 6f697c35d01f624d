// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_REPORT_FEATURE_REPORT_H_
#define TANDEM_WORKER_REPORT_FEATURE_REPORT_H_

// How stale the rows of each feature are when gradients are applied to them, and how much of a feature the
// workers replicate. docs/hybrid_quality.md explains why it matters.

#include <cstdint>
#include <string>
#include <vector>

#include "ps/replicated/replicated_tables.h"
#include "ps/row_staleness.h"
#include "worker/step/lookup.h"

namespace tandem::worker {

// A feature of a table, or several that share ids: one segment of the table's lookups.
struct FeatureReport {
  std::string table;
  std::string feature;  // several are joined by '+'
  ps::Placement placement = ps::Placement::kAuto;
  // Counts a sample of the gradients. It contains those of replicated rows in proportion, with a staleness of
  // 0.
  ps::RowStalenessCounts row_staleness;
  SegmentCounts served;  // by all workers
  double replicated_share() const {
    const uint64_t distinct = served.replicated + served.pulled;
    return distinct == 0 ? 0.0 : static_cast<double>(served.replicated) / static_cast<double>(distinct);
  }
};

// Returns the features of all tables of the plan. `measured` has the servers' counts by table and segment (an
// empty list: none for this table), `feature_names` the name of each feature of the data.
std::vector<FeatureReport> ReportFeatures(const LookupPlan& plan,
                                          const std::vector<std::string>& feature_names,
                                          const std::vector<std::vector<ps::RowStalenessCounts>>& measured,
                                          const ServedCounts& served);

// Returns whether the rows of `a` are less stale than those of `b`, on average.
inline bool LessStale(const FeatureReport& a, const FeatureReport& b) {
  return a.row_staleness.Mean() < b.row_staleness.Mean();
}

// Mean row staleness above which a feature loses quality.
inline constexpr double kHighRowStaleness = 1.0;
// Returns what to tell the user of a feature whose mean row staleness is above kHighRowStaleness, and what to
// change; empty for other features. `over_budget`: some rows were not replicated for lack of memory.
std::string RowStalenessWarning(const FeatureReport& feature, bool over_budget);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPORT_FEATURE_REPORT_H_
