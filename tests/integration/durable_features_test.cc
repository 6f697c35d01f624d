// SPDX-License-Identifier: Apache-2.0
// Each way to keep the tables of a dead server together with each update mode, and with what else may hold,
// move or change rows: disks, caches, quantised wires, and replicas in the workers.

#include <signal.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "gtest/gtest.h"
#include "tests/integration/job_dir.h"
#include "tests/integration/primaries.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::integration {
namespace {

using testing::Finished;
using testing::TandemProcess;

constexpr int kShards = 2;
constexpr int kWorkers = 2;

struct Feature {
  const char* name;
  Args settings;  // of the job
};
const Feature kFeatures[] = {
    {"plain", {"embedding.placement=sharded"}},
    {"spill",
     {"embedding.placement=sharded", "embedding.spill=true",
      "embedding.eviction={kind: lru, byte_budget: 65536}"}},
    {"cache", {"embedding.cache={bytes: 100000, max_uses: 4}"}},
    {"int8", {"embedding.placement=sharded", "embedding.wire={push: int8, pull: f16}"}},
    {"replicated", {"embedding.placement=replicated"}},
};
constexpr int kNumFeatures = 5;

struct Mode {
  const char* name;
  const char* setting;
};
constexpr Mode kModes[] = {
    {"sync", "sync"}, {"async", "async"}, {"bounded", "{bounded: 4}"}, {"gba", "{gba: 64}"}};
constexpr int kNumModes = 4;

struct Case {
  int mode;
  int feature;
  bool log;  // false: followers
};

// sync and gba promise the newest rows, so jobs with a cache are refused.
bool IsRefused(const Case& tested) {
  const std::string mode = kModes[tested.mode].name;
  return std::string(kFeatures[tested.feature].name) == "cache" && (mode == "sync" || mode == "gba");
}

// Returns cases in which each mode, feature and durability occurs; all if TANDEM_DURABLE_FEATURES is set.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  const bool all = std::getenv("TANDEM_DURABLE_FEATURES") != nullptr;
  for (int m = 0; m < kNumModes; ++m) {
    if (!all) cases.insert(cases.end(), {{m, m, false}, {m, (m + 3) % kNumFeatures, true}});
    for (int f = 0; f < kNumFeatures && all; ++f) cases.insert(cases.end(), {{m, f, false}, {m, f, true}});
  }
  std::erase_if(cases, IsRefused);
  return cases;
}

Args Launch(const JobDir& job, const Case& tested, const Args& before, const Args& settings) {
  Args more = {"--no-baselines", "--report", "report.json"};
  Args all = kFeatures[tested.feature].settings;
  all.insert(all.end(), {absl::StrCat("train.mode=", kModes[tested.mode].setting), "train.batch_size=32",
                         "train.epochs=24", "checkpoint.every_epochs=8"});
  all.insert(all.end(), settings.begin(), settings.end());
  for (const std::string& setting : all) more.insert(more.end(), {"--set", setting});
  Args args = job.LaunchArgs(kShards, kWorkers, more);
  args.insert(args.begin() + 1, {"--spill-dir", "spill"});
  args.insert(args.begin() + 1, before.begin(), before.end());
  return args;
}

double TestAuc(const JobDir& job) {
  const Json report = ParseJson(testing::ReadFile(job.File("report.json")));
  return report.is_discarded() ? NAN : report.at("test").at("auc").get<double>();
}

// Expects that the servers have applied each push of the run once, by the number of updates of each table.
void ExpectEachPushOnce(const JobDir& job, const std::string& mode, const std::string& feature) {
  const Finished shown = job.Run({"ckpt", "show", "ckpt", "--json"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  const Json checkpoint = ParseJson(shown.out);
  const int64_t steps = checkpoint.at("step");
  int tables = 0;
  for (const Json& file : checkpoint.at("files")) {
    if (!file.contains("clock")) continue;
    ++tables;
    const int64_t clock = file.at("clock");
    // A gba table adds pushes up. When a server has died, an update may have one push more or fewer, so the
    // number tells little; cli_failover_events_test counts the pushes of this mode.
    if (mode == "gba") {
      EXPECT_NEAR(static_cast<double>(clock), static_cast<double>(steps), static_cast<double>(steps) / 20)
          << file.dump();
    } else if (mode == "sync") {
      EXPECT_EQ(clock, steps) << file.dump();
    } else {
      // Each of the 20 steps of a synchronous start is one update. A table with a cache has no such start.
      const bool cached = feature == "cache" && file.at("table") == "embedding";
      EXPECT_EQ(clock, steps * kWorkers - (cached ? 0 : 20 * (kWorkers - 1))) << file.dump();
    }
  }
  EXPECT_EQ(tables, 2 * kShards);
}

class DurableFeaturesTest : public ::testing::TestWithParam<Case> {};

TEST_P(DurableFeaturesTest, AJobWhoseServersAreKilledCountsEachPushOnce) {
  const Case& tested = GetParam();
  const std::string mode = kModes[tested.mode].name;
  const JobDir job(4000, /*vocabulary=*/2000);
  const Finished undisturbed = job.Run(Launch(job, tested, {}, {"checkpoint.dir=undisturbed"}));
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.out << undisturbed.err;
  const double expected_auc = TestAuc(job);

  const Args durable = tested.log ? Args{"--wal-dir", "wal"} : Args{"--ps-followers", "1"};
  const Args required = {absl::StrCat("ps.durability=", tested.log ? "log" : "follower")};
  std::map<std::string, std::string> variables = job.Mark();
  variables["TANDEM_WAL_SNAPSHOT"] = "262144";  // so that servers also come back with snapshots
  TandemProcess launched(Launch(job, tested, durable, required), variables, job.File("."));
  int kills = 0;
  for (const int epoch : {2, 12}) {
    ASSERT_TRUE(launched.WaitForOutput(absl::StrCat("epoch ", epoch, "/24")))
        << launched.out() << launched.err();
    const int shard = kills % kShards;
    const pid_t victim = tested.log ? job.ProcessWith(absl::StrCat("TANDEM_PS_INDEX=", shard))
                                    : AwaitPrimary(job, shard, /*life=*/0);
    if (victim == 0 || ::kill(victim, SIGKILL) != 0) break;  // the job has ended
    ++kills;
    ASSERT_TRUE(launched.WaitForOutput(absl::StrCat("(pid ", victim, ") was killed"))) << launched.err();
  }
  EXPECT_GT(kills, 0);
  ASSERT_EQ(launched.Wait(), 0) << launched.out() << launched.err();
  ExpectEachPushOnce(job, mode, kFeatures[tested.feature].name);
  if (mode == "sync") {
    EXPECT_EQ(job.Digest("ckpt"), job.Digest("undisturbed"));
  }
  const double auc = TestAuc(job);
  EXPECT_NEAR(auc, expected_auc, .05);  // 400 examples
  std::printf("| %s | %s | %s | %d | %.4f | %.4f |\n", mode.c_str(), kFeatures[tested.feature].name,
              tested.log ? "log" : "follower", kills, expected_auc, auc);
  EXPECT_TRUE(job.NoLeaks());
}

INSTANTIATE_TEST_SUITE_P(Cases, DurableFeaturesTest, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return absl::StrCat(kModes[info.param.mode].name, "_", kFeatures[info.param.feature].name, "_",
                      info.param.log ? "log" : "follower");
});

}  // namespace
}  // namespace tandem::integration
