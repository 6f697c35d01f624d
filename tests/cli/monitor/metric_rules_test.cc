// SPDX-License-Identifier: Apache-2.0
// The rules of Prometheus that the metrics of every server follow.

#include <ctime>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cli/monitor/metrics_server.h"
#include "cli/monitor/page_http.h"
#include "cli/monitor/replay_metrics.h"
#include "cli/monitor/weights_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/monitor/http_client.h"
#include "tests/testing/status_matchers.h"

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
  const auto figures = [] {
    ServerMetrics all;
    all.durability.set_enabled(true);
    all.failover.set_role(v1::REPLICA_ROLE_PRIMARY);
    all.tables.emplace_back().mutable_config()->set_name("user");
    return all;
  };
  v1::ListReplayTablesResponse replay;
  replay.add_tables()->mutable_options()->set_name("queue");
  v1::ListWeightsResponse weights;
  weights.add_models()->set_model("policy");
  std::vector<std::string> pages;
  const auto servers = MetricsServer::Start("127.0.0.1", 0, figures);
  TANDEM_EXPECT_OK(servers);
  if (servers.ok()) pages.push_back(HttpGet((*servers)->port(), "/metrics"));
  for (const std::string& text : {ReplayMetricsText(replay), WeightsMetricsText(weights)}) {
    const auto server = PageHttp::Start("127.0.0.1", 0, [text] { return text; });
    TANDEM_EXPECT_OK(server);
    if (server.ok()) pages.push_back(HttpGet((*server)->port(), "/metrics"));
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

TEST(MetricRules, TheFiguresOfTheProcessAreThoseOfThisProcess) {
  const auto server = PageHttp::Start("127.0.0.1", 0, [] { return ""; });
  TANDEM_ASSERT_OK(server);
  const std::string page = HttpGet((*server)->port(), "/metrics");
  const auto value = [&](const std::string& name) {
    for (absl::string_view line : absl::StrSplit(page, '\n')) {
      double number = 0;
      if (absl::ConsumePrefix(&line, name + " ") && absl::SimpleAtod(line, &number)) return number;
    }
    ADD_FAILURE() << "no " << name;
    return 0.0;
  };
  EXPECT_GT(value("process_cpu_seconds_total"), 0);
  EXPECT_GT(value("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(value("process_virtual_memory_bytes"), value("process_resident_memory_bytes"));
  EXPECT_GE(value("process_open_fds"), 4);  // the standard ones and the server's
  EXPECT_GE(value("process_max_fds"), value("process_open_fds"));
  const auto now = static_cast<double>(::time(nullptr));
  EXPECT_LE(value("process_start_time_seconds"), now + 2);
  EXPECT_GT(value("process_start_time_seconds"), now - 3600);
}

}  // namespace
}  // namespace tandem::cli
