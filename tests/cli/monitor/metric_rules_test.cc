// SPDX-License-Identifier: Apache-2.0
// The rules of Prometheus that the metrics of every server follow.

#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cli/monitor/replay_metrics.h"
#include "cli/monitor/server_metrics.h"
#include "cli/monitor/weights_metrics.h"
#include "cluster/metrics/process_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

using ::testing::AnyOf;
using ::testing::IsSupersetOf;

struct Exported {
  std::string name;
  std::string type;
  std::string help;
};

// Returns the metrics of a page, of which each has its HELP line before its TYPE line.
std::vector<Exported> Parse(const std::string& page) {
  std::vector<Exported> metrics;
  std::string help_of, help;
  for (absl::string_view line : absl::StrSplit(page, '\n')) {
    line = absl::StripSuffix(line, "\r");
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
    if (words.size() < 4 || words[0] != "#") continue;
    if (words[1] == "HELP") {
      help_of = words[2];
      help = words[3];
    } else {
      EXPECT_EQ(help_of, words[2]) << "a TYPE without a HELP";
      metrics.push_back({words[2], words[3], help});
    }
  }
  return metrics;
}

// Returns the page of each kind of server, with every metric that it can have.
std::vector<std::string> AllPages() {
  ServerMetrics all;
  all.durability.set_enabled(true);
  all.failover.set_role(v1::REPLICA_ROLE_PRIMARY);
  all.tables.emplace_back().mutable_config()->set_name("user");
  v1::ListReplayTablesResponse replay;
  replay.add_tables()->mutable_options()->set_name("queue");
  v1::ListWeightsResponse weights;
  weights.add_models()->set_model("policy");
  std::vector<std::string> pages;
  for (const std::string& text :
       {ServerMetricsText(all), ReplayMetricsText(replay), WeightsMetricsText(weights)}) {
    pages.push_back(text + cluster::ProcessMetricsText());
  }
  return pages;
}

TEST(MetricRules, NamesSayTypeAndUnitAndHelpTextsAreSentencesThatStandAlone) {
  const std::vector<std::string> pages = AllPages();
  ASSERT_EQ(pages.size(), 3);
  for (const std::string& page : pages) {
    std::set<std::string> names;
    for (const Exported& metric : Parse(page)) {
      SCOPED_TRACE(metric.name + ": " + metric.help);
      EXPECT_TRUE(names.insert(metric.name).second) << "twice";
      EXPECT_TRUE(absl::StartsWith(metric.name, "tandem_") || absl::StartsWith(metric.name, "process_"));
      EXPECT_THAT(metric.type, AnyOf("counter", "gauge", "histogram"));
      EXPECT_EQ(absl::EndsWith(metric.name, "_total"), metric.type == "counter");
      // Base units, and the name has the unit that the text says. A ratio or limit may mention others' units.
      for (const char* unit : {"_ms", "_us", "_milliseconds", "_kb", "_mb", "_percent"}) {
        EXPECT_FALSE(absl::EndsWith(metric.name, unit));
      }
      for (const char* unit : {"bytes", "seconds"}) {
        const bool in_text = absl::EndsWith(metric.help, std::string("in ") + unit + ".");
        if (in_text) EXPECT_TRUE(absl::StrContains(metric.name, unit));
      }
      // A sentence of its own, which does not continue that of another metric.
      EXPECT_TRUE(absl::ascii_isupper(metric.help[0]) || absl::ascii_isdigit(metric.help[0]));
      EXPECT_TRUE(absl::EndsWith(metric.help, "."));
      const std::vector<std::string> words = absl::StrSplit(metric.help, ' ');
      EXPECT_GE(words.size(), 5);
      for (const char* first : {"Of", "Their", "Those", "What", "Since", "For", "The two", "How"}) {
        EXPECT_FALSE(absl::StartsWith(metric.help, std::string(first) + " "));
      }
    }
    EXPECT_THAT(names, IsSupersetOf({"process_cpu_seconds_total", "process_resident_memory_bytes",
                                     "process_virtual_memory_bytes", "process_open_fds", "process_max_fds",
                                     "process_start_time_seconds"}));
  }
}

}  // namespace
}  // namespace tandem::cli
