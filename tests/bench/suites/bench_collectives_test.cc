// SPDX-License-Identifier: Apache-2.0
// tandem bench allreduce, ...: real runs at tiny sizes.

#include <signal.h>

#include <map>
#include <set>
#include <string>
#include <vector>

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

const std::vector<std::string> kQuick = {"--time-per-size", "1", "--repeats", "2", "--batch", "100"};

Finished Bench(const std::string& op, std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"bench", op});
  flags.insert(flags.end(), kQuick.begin(), kQuick.end());
  return RunTandem(flags);
}

TEST(BenchCollectivesTest, EachSizeAndPlaceIsOneObjectOfElevenFields) {
  const std::vector<Json> results = Results(Bench(
      "allreduce", {"--ranks", "2", "--sizes", "8,1K:4K:4", "--dtype", "bf16", "--op", "max", "--json"}));
  ASSERT_EQ(results.size(), 6u);
  std::set<std::pair<int, bool>> seen;
  for (const Json& result : results) {
    std::set<std::string> fields;
    for (const auto& [name, value] : result.items()) fields.insert(name);
    EXPECT_EQ(fields, std::set<std::string>({"op", "backend", "ranks", "bytes", "dtype", "in_place", "min_us",
                                             "median_us", "p99_us", "algbw_gbps", "busbw_gbps"}));
    EXPECT_EQ(result["op"], "allreduce");
    EXPECT_EQ(result["ranks"], 2);
    EXPECT_EQ(result["dtype"], "bf16");
    const double min = result["min_us"], median = result["median_us"], p99 = result["p99_us"];
    EXPECT_GT(min, 0);
    EXPECT_LE(min, median);
    EXPECT_LE(median, p99);
    EXPECT_NEAR(result["algbw_gbps"].get<double>(), result["bytes"].get<double>() / median / 1e3, 1e-9);
    EXPECT_DOUBLE_EQ(result["busbw_gbps"].get<double>(), result["algbw_gbps"].get<double>());
    seen.emplace(result["bytes"], result["in_place"]);
  }
  EXPECT_EQ(seen, (std::set<std::pair<int, bool>>{
                      {8, false}, {8, true}, {1024, false}, {1024, true}, {4096, false}, {4096, true}}));
}

TEST(BenchCollectivesTest, EveryOperationRunsWithThreeRanks) {
  const std::map<std::string, double> bus_factors = {{"broadcast", 1},
                                                     {"all_gather", 2.0 / 3},
                                                     {"reduce_scatter", 2.0 / 3},
                                                     {"all_to_all", 2.0 / 3},
                                                     {"sendrecv", 1}};
  for (const auto& [op, factor] : bus_factors) {
    const std::vector<Json> results = Results(Bench(op, {"--ranks", "3", "--sizes", "3K", "--json"}));
    ASSERT_EQ(results.size(), op == "all_gather" || op == "reduce_scatter" ? 2u : 1u) << op;
    for (const Json& result : results) {
      EXPECT_EQ(result["op"], op);
      EXPECT_EQ(result["bytes"], 3072);
      EXPECT_NEAR(result["busbw_gbps"].get<double>(), result["algbw_gbps"].get<double>() * factor, 1e-9)
          << op;
    }
  }
  EXPECT_EQ(Results(Bench("barrier", {"--ranks", "3", "--json"})).size(), 1u);
}

TEST(BenchCollectivesTest, TheBackendIsTheOneThatIsAskedFor) {
  const std::vector<Json> results =
      Results(Bench("allreduce", {"--backend", "tcp", "--sizes", "64", "--in-place", "--json"}));
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0]["backend"], "tcp");
  EXPECT_EQ(results[0]["in_place"], true);
}

TEST(BenchCollectivesTest, WithoutJsonATableIsPrinted) {
  const Finished finished = Bench("broadcast", {"--sizes", "1K"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::vector<std::string> lines = Lines(finished.out);
  ASSERT_EQ(lines.size(), 3u) << finished.out;
  EXPECT_THAT(lines[0], HasSubstr("broadcast, "));
  EXPECT_THAT(lines[1], HasSubstr("median us"));
  EXPECT_THAT(lines[2], HasSubstr("1024"));
}

TEST(BenchCollectivesTest, AWrongFlagIsNamedAndExitsWithTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"allreduce", "--sizes", "8Q"}, "--sizes: '8Q' is no size"},
      {{"allreduce", "--dtype", "f23"}, "--dtype: there is no dtype 'f23' (did you mean 'f32'?"},
      {{"allreduce", "--op", "summ"}, "--op: there is no reduction 'summ' (did you mean 'sum'?"},
      {{"allreduce", "--op", "band"}, "--op: reduction band is for integers, not for f32"},
      {{"allreduce", "--ranks", "0"}, "--ranks: 0 is not a number in [1, 256]"},
      {{"allreduce", "--repeats", "0"}, "--repeats: 0 is not a number in [1, 1000000]"},
      {{"broadcast", "--op", "sum"}, "--op"},  // broadcast does not reduce
      {{"barrier", "--sizes", "8"}, "--sizes"},
      {{"allreduce", "--backend", "carrier-pigeon", "--sizes", "8"}, "carrier-pigeon"},
  };
  for (const auto& [flags, message] : cases) {
    std::vector<std::string> args = {"bench"};
    args.insert(args.end(), flags.begin(), flags.end());
    const Finished finished = RunTandem(args);
    EXPECT_EQ(finished.exit_code, 2) << message << ": " << finished.err;
    EXPECT_THAT(finished.err, HasSubstr(message));
    EXPECT_EQ(finished.out, "");
  }
}

TEST(BenchCollectivesTest, ItsRanksDieWithIt) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    testing::TempDir dir;
    const std::string mark = absl::StrCat("TANDEM_TEST_MARK=", dir.path());
    TandemProcess bench({"bench", "allreduce", "--ranks", "3", "--sizes", "8", "--time-per-size", "100",
                         "--repeats", "100000", "--in-place"},
                        {{"TANDEM_TEST_MARK", dir.path()}});
    ASSERT_TRUE(bench.WaitForOutput("median us")) << bench.err();  // the ranks have started to measure
    bench.Signal(signal);
    EXPECT_EQ(bench.Wait(), 128 + signal);
    EXPECT_TRUE(WaitUntilNoneMarked(mark));
  }
}

}  // namespace
}  // namespace tandem::bench
