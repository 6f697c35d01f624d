// SPDX-License-Identifier: Apache-2.0
// Tests tandem top, tandem table and /metrics with real servers.

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/json.h"
#include "cli/monitor/server_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "ps/table.h"
#include "tests/cli/monitor/live_servers.h"
#include "tests/testing/http_client.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::HttpGet;
using ::tandem::testing::HttpRequest;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunTandem;
using testing::TandemProcess;
using Json = nlohmann::json;

using TopTest = LiveServers;

TEST_F(TopTest, OncePrintsServersAndTables) {
  const Finished finished = RunTandem({"top", "--once", "--servers", Servers()});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr(absl::StrCat("0 ", addresses_[0])));
  EXPECT_THAT(finished.out, HasSubstr(absl::StrCat("1 ", addresses_[1])));
  EXPECT_THAT(finished.out, HasSubstr("async"));
  EXPECT_THAT(finished.out, HasSubstr("user:  7 ("));
  EXPECT_THAT(finished.out, Not(HasSubstr("\x1b")));
  for (const std::string& line : testing::Lines(finished.out)) EXPECT_LE(line.size(), 80u) << line;
}

TEST_F(TopTest, JsonIsOneObjectARefresh) {
  const Finished finished =
      RunTandem({"top", "--json", "--count", "2", "--interval", "0.1", "--store", Store()});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::vector<std::string> lines = testing::Lines(finished.out);
  ASSERT_EQ(lines.size(), 2u);
  const Json first = ParseJson(lines[0]), second = ParseJson(lines[1]);
  const Json& user = first["tables"][0];
  EXPECT_EQ(user["name"], "user");
  EXPECT_EQ(user["pulls"], 2 * kSteps);  // each goes to both servers
  EXPECT_EQ(user["pushes"], 2 * kSteps);
  EXPECT_EQ(user["rows"], 1 + kSteps * 3);
  EXPECT_EQ(user["pulled_rows"], kSteps * 4);
  EXPECT_GT(user["pull_latency"]["p99_us"], 0.0);
  EXPECT_EQ(user["hottest"][0]["id"], 7);
  EXPECT_EQ(second["tables"][0]["pulls_per_s"], 0.0);  // nothing since
  EXPECT_GT(first["servers"][1]["rss_bytes"], 0);
}

TEST_F(TopTest, FindsTheJobByTheEnvironment) {
  const Finished finished = RunTandem({"table", "list"}, Variables());
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("user\n"));
}

TEST_F(TopTest, AServerThatDiesDoesNotEndIt) {
  servers_[1]->Signal(SIGKILL);
  servers_[1]->Wait();
  const Finished finished = RunTandem({"top", "--once", "--servers", Servers(), "--timeout", "5"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr(absl::StrCat("1 ", addresses_[1], "  does not answer")));
  EXPECT_THAT(finished.out, HasSubstr("user"));
  // A change that only some servers would make is refused.
  const Finished refused = RunTandem(
      {"table", "set-mode", "--table", "user", "--mode", "sync", "--servers", Servers(), "--timeout", "5"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("server 1"));
}

TEST_F(TopTest, SetModeSaysThatARunInModeSyncReplicatesNoRows) {
  const auto set = [this](const char* mode) {
    return RunTandem({"table", "set-mode", "--table", "user", "--mode", mode, "--store", Store()}).out;
  };
  EXPECT_EQ(set("sync"), "table 'user': sync, was async\n");
  EXPECT_THAT(set("async"),
              ::testing::StartsWith("table 'user': async, was sync\nnote: a run that began with "
                                    "'train.mode: sync' replicates none of its rows"));
}

TEST_F(TopTest, SetModeChangesTheModeOnAllServers) {
  Finished finished =
      RunTandem({"table", "set-mode", "--table", "user", "--mode", "gba:4:3", "--store", Store()});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.out, "table 'user': gba:4:3, was async\n");
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto servers, client_->ListTablesPerServer(0));
  for (const auto& server : servers) {
    EXPECT_EQ(ps::FormatUpdateMode(server[0].config().update_mode()), "gba:4:3");
  }
  const std::vector<uint64_t> ids = {7};
  const std::vector<float> gradient(4, 1.0f);
  TANDEM_ASSERT_OK(client_->Push(kSteps, {{.table = "user", .ids = ids, .gradients = gradient.data()}}));
  finished = RunTandem({"table", "list", "--servers", Servers()});
  EXPECT_THAT(finished.out, HasSubstr("gba:4:3"));
  EXPECT_THAT(finished.out, HasSubstr("4 updates, older ones are left out"));
  EXPECT_THAT(finished.out, HasSubstr(absl::StrCat("pushes by staleness  0: ", 2 * kSteps)));
  finished = RunTandem({"table", "flush", "--table", "user", "--store", Store()});
  EXPECT_EQ(finished.out, "table 'user': 2 kept pushes applied\n");  // one on each server
}

TEST_F(TopTest, DropRemovesTheTableFromAllServers) {
  Finished finished = RunTandem({"table", "drop", "--table", "user", "--store", Store()});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("table 'user': dropped, it had "));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto servers, client_->ListTablesPerServer(0));
  for (const auto& server : servers) EXPECT_TRUE(server.empty());
  finished = RunTandem({"table", "drop", "--table", "user", "--store", Store()});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("no table 'user'; it has: none"));
}

TEST_F(TopTest, MistakesAreOneClearError) {
  Finished finished =
      RunTandem({"table", "set-mode", "--table", "user", "--mode", "gab:3", "--servers", Servers()});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("update mode 'gab:3' is none of sync, bounded:STALENESS"));
  finished = RunTandem({"table", "set-mode", "--table", "usr", "--mode", "sync", "--servers", Servers()});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("no table 'usr'; it has: user"));
  testing::TempDir dir;
  finished = RunTandem({"top", "--once"}, {}, dir.path());
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("--servers HOST:PORT"));
  finished = RunTandem({"top", "--once", "--job", dir.path()});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("job.json"));
  finished = RunTandem({"top", "--once", "--servers", "127.0.0.1:1", "--timeout", "1"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("no server answered"));
}

// --- /metrics

// Parses Prometheus' text format. Returns the values by "name{labels}"; a malformed line fails the test.
std::map<std::string, double> ParseMetrics(const std::string& body) {
  std::map<std::string, double> metrics;
  std::map<std::string, std::string> types;
  for (const std::string& line : testing::Lines(body)) {
    if (line.empty()) continue;
    if (line[0] == '#') {
      const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
      EXPECT_EQ(words.size(), 4u) << line;
      if (words.size() == 4 && words[1] == "TYPE") types[words[2]] = words[3];
      continue;
    }
    const size_t space = line.rfind(' ');
    double value = 0;
    const std::string text = line.substr(space + 1);
    EXPECT_TRUE(absl::SimpleAtod(text, &value)) << line;
    const std::string name = line.substr(0, line.find_first_of("{ "));
    bool typed = types.count(name) > 0;
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      if (name.size() > std::string(suffix).size() &&
          name.compare(name.size() - std::string(suffix).size(), std::string::npos, suffix) == 0) {
        typed = typed || types[name.substr(0, name.size() - std::string(suffix).size())] != "";
      }
    }
    EXPECT_TRUE(typed) << "no TYPE before " << line;
    EXPECT_TRUE(metrics.emplace(line.substr(0, space), value).second) << "twice: " << line;
  }
  return metrics;
}

// Returns the port at which a server has announced its metrics, or 0.
int MetricsPort(TandemProcess& server) {
  if (!server.WaitForOutput("path /metrics")) return 0;
  const std::string log = server.err() + server.out(), before = "metrics at port ";
  const size_t at = log.find(before);
  return at == std::string::npos ? 0 : std::atoi(log.c_str() + at + before.size());
}

TEST_F(TopTest, AServerSurvivesEveryRequestToItsMetricsPort) {
  if (!CheckServerMetrics().ok()) GTEST_SKIP() << "built without prometheus-cpp";
  const int port = MetricsPort(*servers_[0]);
  ASSERT_NE(port, 0);
  for (const char* request : {"GET / HTTP/1.1\r\n\r\n", "GET /favicon.ico HTTP/1.1\r\n\r\n",
                              "POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "\r\n\r\n"}) {
    EXPECT_THAT(HttpRequest(port, request), HasSubstr("HTTP/1.1 40")) << request;
  }
  EXPECT_THAT(HttpGet(port, "/metrics"), HasSubstr("200 OK"));
}

TEST_F(TopTest, MetricsAreServedToPrometheus) {
  if (!CheckServerMetrics().ok()) GTEST_SKIP() << "built without prometheus-cpp";
  double rows = 0, pulls = 0;
  for (auto& server : servers_) {
    const int port = MetricsPort(*server);
    ASSERT_NE(port, 0);
    const std::string response = HttpGet(port, "/metrics");
    ASSERT_THAT(response, HasSubstr("200 OK"));
    EXPECT_THAT(response, HasSubstr("text/plain"));
    const auto metrics = ParseMetrics(response.substr(response.find("\r\n\r\n") + 4));
    const auto value = [&](const std::string& name) {
      const auto found = metrics.find(name);
      EXPECT_TRUE(found != metrics.end()) << name;
      return found == metrics.end() ? -1 : found->second;
    };
    rows += value("tandem_table_rows{table=\"user\"}");
    pulls += value("tandem_table_pulls_total{table=\"user\"}");
    EXPECT_EQ(value("tandem_pull_latency_seconds_count{table=\"user\"}"), kSteps);
    EXPECT_EQ(value("tandem_pull_latency_seconds_bucket{table=\"user\",le=\"+Inf\"}"), kSteps);
    EXPECT_GT(value("tandem_pull_latency_seconds_sum{table=\"user\"}"), 0);
    EXPECT_EQ(value("tandem_table_staleness_bucket{table=\"user\",le=\"0\"}"), kSteps);
    EXPECT_GT(value("tandem_table_row_staleness_bucket{table=\"user\",le=\"0\"}"), 0);
    EXPECT_EQ(value("tandem_table_mode{table=\"user\",mode=\"async\"}"), 1);
    EXPECT_TRUE(std::isinf(value("tandem_table_staleness_allowed{table=\"user\"}")));
    EXPECT_GT(value("process_resident_memory_bytes"), 0);
    double below = 0;  // buckets cumulate
    for (int bin = 0; bin < 20; ++bin) {
      for (const auto& [name, count] : metrics) {
        double bound = 0;
        const std::string prefix = "tandem_pull_latency_seconds_bucket{table=\"user\",le=\"";
        if (name.rfind(prefix, 0) != 0) continue;
        ASSERT_TRUE(absl::SimpleAtod(name.substr(prefix.size(), name.size() - prefix.size() - 2), &bound));
        if (std::abs(bound - std::ldexp(1e-6, bin)) > 1e-9) continue;
        EXPECT_GE(count, below);
        below = count;
      }
    }
    EXPECT_GT(below, 0);  // within half a second
  }
  EXPECT_EQ(rows, 1 + kSteps * 3);
  EXPECT_EQ(pulls, 2 * kSteps);
}

TEST(Run, LeavesWordOfTheJobForTop) {
  testing::TempDir dir;
  TandemProcess run({"run", "--ps", "1", "--workers", "1", "--log-dir", dir.path(), "--", "/bin/sh", "-c",
                     "cat " + dir.path() + "/job.json"});
  EXPECT_EQ(run.Wait(), 0) << run.err();
  const size_t brace = run.out().find('{');
  ASSERT_NE(brace, std::string::npos) << run.out();
  const Json job = ParseJson(run.out().substr(brace));
  EXPECT_EQ(job["servers"], 1);
  EXPECT_THAT(job["store"].get<std::string>(), HasSubstr("unix:"));
}

}  // namespace
}  // namespace tandem::cli
