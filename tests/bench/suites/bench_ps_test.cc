// SPDX-License-Identifier: Apache-2.0
// tandem bench ps: real runs of tiny tables.

#include <signal.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/bench/suites/results.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::bench {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::Lines;
using testing::RunTandem;
using testing::TandemProcess;
using testing::WaitUntilNoneMarked;
using Json = nlohmann::json;

const std::set<std::string> kFields = {"transport",
                                       "op",
                                       "ids",
                                       "dim",
                                       "servers",
                                       "workers",
                                       "in_flight",
                                       "distribution",
                                       "keys_per_s",
                                       "median_us",
                                       "p99_us",
                                       "client_cpu_s_per_mkeys",
                                       "server_cpu_s_per_mkeys"};

std::vector<std::string> BenchArgs(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"bench", "ps", "--rows", "4096", "--time-per-case", "5"});
  return flags;
}
Finished BenchPs(const std::vector<std::string>& flags) { return RunTandem(BenchArgs(flags)); }

std::set<std::string> FieldsOf(const Json& result) {
  std::set<std::string> fields;
  for (const auto& [name, value] : result.items()) fields.insert(name);
  return fields;
}

TEST(BenchPsTest, EachCaseIsOneObjectOfThirteenFields) {
  const std::vector<Json> results =
      Results(BenchPs({"--transport", "tcp,unix,shm", "--op", "pull,push,mixed", "--ids", "1,64", "--dim",
                       "8", "--servers", "1", "--in-flight", "1,3", "--distribution", "uniform", "--json"}));
  std::set<std::string> cases;
  for (const Json& result : results) {
    EXPECT_EQ(FieldsOf(result), kFields);
    EXPECT_EQ(result["dim"], 8);
    EXPECT_EQ(result["servers"], 1);
    EXPECT_EQ(result["workers"], 1);
    EXPECT_EQ(result["distribution"], "uniform");
    EXPECT_GT(result["keys_per_s"].get<double>(), 0);
    EXPECT_GT(result["median_us"].get<double>(), 0);
    EXPECT_LE(result["median_us"].get<double>(), result["p99_us"].get<double>());
    EXPECT_GT(result["client_cpu_s_per_mkeys"].get<double>(), 0);
    EXPECT_GT(result["server_cpu_s_per_mkeys"].get<double>(), 0);
    cases.insert(absl::StrCat(result["transport"].get<std::string>(), " ", result["op"].get<std::string>(),
                              " ", result["ids"].get<int>(), " ", result["in_flight"].get<int>()));
  }
  EXPECT_EQ(results.size(), 3u * 3 * 2 * 2);
  EXPECT_EQ(cases.size(), results.size());
}

TEST(BenchPsTest, TwoServersAndTwoWorkersOfZipfIds) {
  const std::vector<Json> results =
      Results(BenchPs({"--transport", "tcp", "--ids", "256", "--dim", "16", "--servers", "2", "--in-flight",
                       "2", "--distribution", "zipf", "--json"}));
  ASSERT_EQ(results.size(), 3u);
  for (const Json& result : results) {
    EXPECT_EQ(result["servers"], 2);
    EXPECT_EQ(result["workers"], 2);
    EXPECT_EQ(result["distribution"], "zipf");
  }
}

TEST(BenchPsTest, InProcessATableIsMeasuredBesideAPlainGather) {
  const std::vector<Json> results =
      Results(BenchPs({"--transport", "in-process", "--ids", "64", "--dim", "8,16", "--json"}));
  ASSERT_EQ(results.size(), 2u * 3 * 2);  // dims, operations, distributions
  for (const Json& result : results) {
    EXPECT_EQ(result["servers"], 0);
    EXPECT_EQ(result["in_flight"], 1);
    std::set<std::string> fields = kFields;
    if (result["op"] == "pull") {
      fields.insert({"plain_keys_per_s", "plain_ratio"});
      EXPECT_NEAR(result["plain_ratio"].get<double>(),
                  result["keys_per_s"].get<double>() / result["plain_keys_per_s"].get<double>(), 1e-9);
    }
    EXPECT_EQ(FieldsOf(result), fields);
  }
}

TEST(BenchPsTest, FairnessComparesTheTailsOfPullsWithAndWithoutPushesBeside) {
  const std::vector<Json> results =
      Results(BenchPs({"--op", "fairness", "--transport", "tcp", "--ids", "64", "--dim", "8", "--in-flight",
                       "4", "--distribution", "uniform", "--json"}));
  ASSERT_EQ(results.size(), 1u);
  const Json& result = results[0];
  EXPECT_EQ(result["op"], "fairness");
  EXPECT_EQ(result["workers"], 2);
  EXPECT_GT(result["idle_p50_us"].get<double>(), 0);
  EXPECT_LE(result["idle_p50_us"].get<double>(), result["idle_p99_us"].get<double>());
  EXPECT_LE(result["loaded_p50_us"].get<double>(), result["loaded_p99_us"].get<double>());
  EXPECT_NEAR(result["p99_ratio"].get<double>(),
              result["loaded_p99_us"].get<double>() / result["idle_p99_us"].get<double>(), 1e-9);
  EXPECT_GT(result["pushed_keys_per_s"].get<double>(), 0);
}

// Each pull is compared with the rows that it must have.
TEST(BenchPsTest, PullsThatFollowersMayAnswerAreMeasured) {
  const std::vector<Json> results = Results(BenchPs(
      {"--transport", "tcp,shm", "--op", "pull", "--ids", "64", "--dim", "8", "--servers", "1", "--in-flight",
       "1,3", "--distribution", "uniform", "--durability", "follower", "--max-lag", "200", "--json"}));
  EXPECT_EQ(results.size(), 4u);
  for (const Json& result : results) EXPECT_GT(result["keys_per_s"].get<double>(), 0);
}

TEST(BenchPsTest, WithoutJsonATableIsPrinted) {
  const Finished finished = BenchPs({"--transport", "in-process,tcp", "--op", "pull", "--ids", "64", "--dim",
                                     "8", "--servers", "1", "--in-flight", "1", "--distribution", "uniform"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::vector<std::string> lines = Lines(finished.out);
  ASSERT_EQ(lines.size(), 3u) << finished.out;
  EXPECT_THAT(lines[0], HasSubstr("Mkeys/s"));
  EXPECT_THAT(lines[1], HasSubstr("of a plain gather's"));
  EXPECT_THAT(lines[2], HasSubstr("tcp"));
  EXPECT_EQ(lines[0].size(), lines[2].size()) << "columns do not stand below each other:\n" << finished.out;
}

TEST(BenchPsTest, AWrongFlagIsNamedAndExitsWithTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--transport", "tpc"}, "--transport: there is no 'tpc' (did you mean 'tcp'?"},
      {{"--op", "pull,pusch"}, "--op: there is no 'pusch' (did you mean 'push'?"},
      {{"--distribution", "normal"}, "--distribution: there is no 'normal'"},
      {{"--ids", "0"}, "--ids: '0' is not a number from 1 to 1000000"},
      {{"--ids", "513"}, "--ids: 513 is more than an eighth of --rows, 4096"},
      {{"--dim", "64,x"}, "--dim: 'x' is not a number"},
      {{"--in-flight", "-1"}, "--in-flight: '-1' is not a number"},
      {{"--servers", "1,2", "--workers", "1,2,3"}, "--servers has 2 entries and --workers 3"},
      {{"--rows", "0"}, "--rows: 0 is not a number in [8, 100000000]"},
      {{"--time-per-case", "0"}, "--time-per-case: 0 is not a number in (0, 3600000]"},
      {{"--op", "fairness", "--transport", "in-process"},
       "--op fairness needs a --transport between processes"},
      {{"--max-lag", "100", "--op", "pull", "--transport", "tcp"}, "--max-lag needs servers with followers"},
      {{"--max-lag", "100", "--durability", "follower", "--op", "push", "--transport", "tcp"},
       "--max-lag is for pulls over tcp or shm (--op pull --transport tcp,shm), not for push over tcp"},
      {{"--sizes", "8"}, "--sizes"},
  };
  for (const auto& [flags, message] : cases) {
    std::vector<std::string> args = {"bench", "ps"};
    if (flags[0] != "--rows") args.insert(args.end(), {"--rows", "4096"});
    if (flags[0] != "--ids") args.insert(args.end(), {"--ids", "64"});
    args.insert(args.end(), flags.begin(), flags.end());
    const Finished finished = RunTandem(args);
    EXPECT_EQ(finished.exit_code, 2) << message << ": " << finished.err;
    EXPECT_THAT(finished.err, HasSubstr(message));
    EXPECT_EQ(finished.out, "");
  }
}

// The processes of a benchmark that runs until it is killed, with one server and one worker.
class LongBench {
 public:
  LongBench()
      : process_({"bench",           "ps", "--rows",      "4096",         "--ids",          "64",
                  "--dim",           "8",  "--transport", "tcp",          "--op",           "pull,push",
                  "--servers",       "1",  "--in-flight", Many("2", 500), "--distribution", "uniform",
                  "--time-per-case", "100"},
                 {{"TANDEM_TEST_MARK", dir_.path()}}) {}
  TandemProcess& process() { return process_; }
  std::string mark() const { return absl::StrCat("TANDEM_TEST_MARK=", dir_.path()); }
  // Returns the process of `rank`, or -1 if there is none.
  pid_t ProcessOfRank(int rank) const {
    for (const pid_t pid : testing::ProcessesMarked(mark())) {
      const std::string environment = testing::ReadFile(absl::StrCat("/proc/", pid, "/environ"));
      if (absl::StrContains(environment, absl::StrCat("LOCAL_RANK=", rank))) return pid;
    }
    return -1;
  }

 private:
  static std::string Many(const std::string& word, int times) {
    std::string list = word;
    for (int i = 1; i < times; ++i) absl::StrAppend(&list, ",", word);
    return list;
  }
  testing::TempDir dir_;
  TandemProcess process_;
};

TEST(BenchPsTest, AServerThatDiesEndsItWithAnErrorThatNamesIt) {
  LongBench bench;
  // it has started to measure
  ASSERT_TRUE(bench.process().WaitForOutput("uniform")) << bench.process().err();
  const pid_t server = bench.ProcessOfRank(1);
  ASSERT_GT(server, 0);
  ASSERT_EQ(::kill(server, SIGKILL), 0);
  EXPECT_EQ(bench.process().Wait(), 128 + SIGKILL);
  EXPECT_THAT(bench.process().err(), HasSubstr("server/0"));
  EXPECT_THAT(bench.process().err(), HasSubstr("was killed by signal 9"));
  EXPECT_TRUE(WaitUntilNoneMarked(bench.mark()));
}

TEST(BenchPsTest, ItsProcessesDieWithIt) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    LongBench bench;
    ASSERT_TRUE(bench.process().WaitForOutput("uniform")) << bench.process().err();
    bench.process().Signal(signal);
    EXPECT_EQ(bench.process().Wait(), 128 + signal);
    EXPECT_TRUE(WaitUntilNoneMarked(bench.mark()));
  }
}

}  // namespace
}  // namespace tandem::bench
