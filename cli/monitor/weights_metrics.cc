// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/weights_metrics.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace tandem::cli {
namespace {

using tandem::v1::WeightsModelState;

struct WeightsMetric {
  const char* name;
  const char* type;
  const char* help;
  double (*value)(const WeightsModelState& model);
};

constexpr WeightsMetric kModelMetrics[] = {
    {"version", "gauge", "Number of the newest committed version of the model.",
     [](const WeightsModelState& m) { return double(m.head().version()); }},
    {"step", "gauge", "Number of the learner's updates in the newest version of the model.",
     [](const WeightsModelState& m) { return double(m.head().step()); }},
    {"bytes", "gauge", "Size of the values of one version of the model, in bytes.",
     [](const WeightsModelState& m) { return double(m.bytes()); }},
    {"kept_versions", "gauge", "Number of versions of the model that can be pulled.",
     [](const WeightsModelState& m) { return double(m.kept_size()); }},
    {"publishes_total", "counter", "Number of versions of the model that were committed.",
     [](const WeightsModelState& m) { return double(m.publishes()); }},
    {"refused_publishes_total", "counter",
     "Number of commits that were refused: of a replaced publisher, with a number that does "
     "not rise, or with damaged values.",
     [](const WeightsModelState& m) { return double(m.refused()); }},
    {"pulls_total", "counter", "Number of versions of the model that were read.",
     [](const WeightsModelState& m) { return double(m.pulls()); }},
    {"waiting_readers", "gauge", "Number of calls that wait for a newer version of the model.",
     [](const WeightsModelState& m) { return double(m.waiting()); }},
    {"publish_age_seconds", "gauge", "Time since the newest version of the model was committed, in seconds.",
     [](const WeightsModelState& m) { return m.seconds_since_publish(); }},
};

// Figures of the server; they are not of one model.
struct UploadMetric {
  const char* name;
  const char* type;
  const char* help;
  double (*value)(const tandem::v1::ListWeightsResponse& state);
};

constexpr UploadMetric kUploadMetrics[] = {
    {"uploads", "gauge", "Number of versions whose pieces are on their way to the server.",
     [](const tandem::v1::ListWeightsResponse& s) { return double(s.uploads()); }},
    {"upload_bytes", "gauge", "Size of the values of the versions that are on their way, in bytes.",
     [](const tandem::v1::ListWeightsResponse& s) { return double(s.upload_bytes()); }},
    {"dropped_uploads_total", "counter",
     "Number of uploads that were dropped because they gave way to others or were idle.",
     [](const tandem::v1::ListWeightsResponse& s) { return double(s.dropped_uploads()); }},
};

void WeightsHead(std::string* out, absl::string_view name, absl::string_view type, absl::string_view help) {
  absl::StrAppend(out, "# HELP tandem_weights_", name, " ", help, "\n# TYPE tandem_weights_", name, " ", type,
                  "\n");
}

}  // namespace

std::string WeightsMetricsText(const tandem::v1::ListWeightsResponse& state) {
  std::string out;
  WeightsHead(&out, "uptime_seconds", "gauge", "Time since the weights server started, in seconds.");
  absl::StrAppendFormat(&out, "tandem_weights_uptime_seconds %.15g\n", state.uptime_s());
  for (const UploadMetric& metric : kUploadMetrics) {
    WeightsHead(&out, metric.name, metric.type, metric.help);
    absl::StrAppendFormat(&out, "tandem_weights_%s %.15g\n", metric.name, metric.value(state));
  }
  for (const WeightsMetric& metric : kModelMetrics) {
    WeightsHead(&out, metric.name, metric.type, metric.help);
    for (const WeightsModelState& model : state.models()) {
      const std::string name =
          absl::StrReplaceAll(model.model(), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
      absl::StrAppendFormat(&out, "tandem_weights_%s{model=\"%s\"} %.15g\n", metric.name, name,
                            metric.value(model));
    }
  }
  return out;
}

}  // namespace tandem::cli
