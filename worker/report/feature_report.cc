// SPDX-License-Identifier: Apache-2.0
#include "worker/report/feature_report.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::worker {

std::vector<FeatureReport> ReportFeatures(const LookupPlan& plan,
                                          const std::vector<std::string>& feature_names,
                                          const std::vector<std::vector<ps::RowStalenessCounts>>& measured,
                                          const ServedCounts& served) {
  std::vector<FeatureReport> features;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const LookupTable& table = plan.tables[t];
    const std::vector<std::vector<size_t>> segments = SegmentsOf(plan, table);
    for (size_t s = 0; s < segments.size(); ++s) {
      FeatureReport feature{.table = table.name, .placement = PlacementOf(table, segments[s])};
      for (const size_t k : segments[s]) {
        absl::StrAppend(&feature.feature, feature.feature.empty() ? "" : "+",
                        feature_names[table.features[k]]);
      }
      if (t < served.size() && s < served[t].size()) feature.served = served[t][s];
      if (t < measured.size() && s < measured[t].size()) feature.row_staleness = measured[t][s];
      // Servers measure a sample of the pulled rows' gradients: replicated rows are added in this proportion.
      const SegmentCounts& counts = feature.served;
      ps::RowStalenessCounts& staleness = feature.row_staleness;
      const double sampled =
          counts.pulled == 0 ? 1.0 : static_cast<double>(staleness.rows) / static_cast<double>(counts.pulled);
      const auto fresh =
          static_cast<uint64_t>(std::llround(sampled * static_cast<double>(counts.replicated)));
      staleness.rows += fresh;
      staleness.histogram[0] += fresh;
      features.push_back(std::move(feature));
    }
  }
  return features;
}

std::string RowStalenessWarning(const FeatureReport& feature, bool over_budget) {
  const double mean = feature.row_staleness.Mean();
  if (mean <= kHighRowStaleness) return "";
  const char* advice = "set 'train.max_in_flight' lower, or 'train.mode: sync'";
  if (feature.placement == ps::Placement::kSharded) {
    advice =
        "its rows are 'sharded': set 'placement: auto', a smaller 'train.max_in_flight', or "
        "'train.mode: sync'";
  } else if (over_budget) {
    advice = "'train.hot_rows.budget' is used up: raise it, or set a smaller 'train.max_in_flight'";
  }
  return absl::StrFormat(
      "feature '%s' (table '%s') loses quality: its rows are updated %.1f times on average between the pull "
      "and the push of a gradient; %s",
      feature.feature, feature.table, mean, advice);
}

}  // namespace tandem::worker
