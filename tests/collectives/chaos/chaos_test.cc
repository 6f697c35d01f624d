// SPDX-License-Identifier: Apache-2.0
// Random failures of a job under `tandem run`: kill -9 of workers, of a node, of the first node together with
// a member of etcd, pauses, partitions, leaves and joins. The job continues at the right size, and no step is
// lost or counted twice.
//
// TANDEM_CHAOS_EVENTS=200 runs the long version (pauses of 5 s); TANDEM_CHAOS_SEED chooses another history.

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/collectives/chaos/chaos_cluster.h"
#include "tests/collectives/chaos/chaos_log.h"
#include "tests/testing/processes/file_watch.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::collectives {
namespace {

constexpr int kWorkersANode = 4;

int Number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  int number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

std::vector<pid_t> Sorted(std::vector<pid_t> pids) {
  std::sort(pids.begin(), pids.end());
  return pids;
}

// `rendezvous_flags` holds the flags of the launchers' rendezvous.
std::vector<std::string> Command(const std::vector<std::string>& rendezvous_flags, const std::string& logs,
                                 int steps, int milliseconds) {
  std::vector<std::string> command = {
      TANDEM_BINARY, "run",  "--nnodes",     "1:2",    "--nproc-per-node", absl::StrCat(kWorkersANode),
      "--rdzv-id",   "job",  "--on-failure", "reform", "--max-restarts",   "1000000",
      "--log-dir",   "{log}"};
  command.insert(command.end(), rendezvous_flags.begin(), rendezvous_flags.end());
  command.insert(command.end(), {TANDEM_CHAOS_WORKER, logs, absl::StrCat(steps), absl::StrCat(milliseconds)});
  return command;
}

// `job_lease` is how long etcd keeps the keys of a job without a living process.
std::vector<std::string> Etcd(absl::Duration job_lease) {
  return {"--rdzv-backend",
          "etcd",
          "--rdzv-endpoint",
          "{etcd}",
          "--rdzv-conf",
          absl::StrCat("etcd_prefix=chaos,lease=2,last_call_timeout=3,join_timeout=60,etcd_lease=",
                       absl::ToDoubleSeconds(job_lease))};
}

// One launcher at a time is stopped or cut off, and any of them keeps the job's lease. It is much longer than
// the launchers' own lease, because the start of 13 processes can keep all of them from etcd for seconds.
constexpr absl::Duration kJobLease = absl::Seconds(20);

TEST(ChaosTest, AJobWithoutMishapsEndsWell) {
  testing::TempDir logs;
  ChaosCluster cluster(Command(Etcd(kJobLease), logs.path(), 40, 5));
  if (!cluster.trouble().empty()) GTEST_SKIP() << cluster.trouble();
  ChaosLog log(logs.path());
  for (int node : {0, 1}) cluster.StartNode(node);
  for (int node : {0, 1}) EXPECT_EQ(cluster.AwaitEnd(node, 60), 0) << cluster.LastLines(node);
  TANDEM_EXPECT_OK(log.Check());
  EXPECT_EQ(log.ReadLatest().step, 40);
}

class Chaos {
 public:
  Chaos(const std::vector<std::string>& rendezvous_flags, const std::string& logs, absl::Duration pause,
        int seed)
      : pause_(pause),
        random_(seed),
        cluster_(Command(rendezvous_flags, logs, 1 << 30, 10)),
        log_(logs),
        watch_({logs}) {}

  ChaosCluster& cluster() { return cluster_; }
  ChaosLog& log() { return log_; }

  // Waits until `world` ranks count steps, in an epoch later than `after` (or in any); returns how long that
  // took.
  absl::Duration AwaitSteps(int world, int64_t after, const std::string& doing) {
    const absl::Time start = absl::Now();
    const int64_t from = log_.ReadLatest().step;
    ChaosLog::Latest now;
    bool counted = false;
    std::optional<int> ended;
    const auto look = [&] {
      now = log_.ReadLatest();
      counted = now.world_size == world && now.epoch > after && now.step > from;
      for (int node : {0, 1}) {
        if (expected_[node] && !cluster_.NodeRuns(node)) ended = node;
      }
      return counted || ended.has_value();
    };
    watch_.Await(look, start + absl::Seconds(45), cluster_.Launchers());
    if (counted) return absl::Now() - start;
    if (ended.has_value()) {
      ADD_FAILURE() << doing << ": node " << *ended << " has ended\n" << cluster_.LastLines(*ended);
      return absl::InfiniteDuration();
    }
    ADD_FAILURE() << doing << ": no step of " << world << " ranks after epoch " << after << "; latest: epoch "
                  << now.epoch << " step " << now.step << " world " << now.world_size << "\nnode 0:\n"
                  << cluster_.LastLines(0) << "\nnode 1:\n"
                  << cluster_.LastLines(1);
    return absl::InfiniteDuration();
  }
  void Start(int node) {
    cluster_.StartNode(node);
    expected_[node] = true;
  }

  void RunEvent() {
    static constexpr const char* kNames[] = {
        "kill a worker", "kill a node",     "kill the first node and a member of etcd",
        "stop a worker", "stop a launcher", "pull a cable",
        "leave and join"};
    const int kind = random_() % 7;
    const int node = random_() % 2;
    const std::string name = kNames[kind];
    const int64_t epoch = log_.ReadLatest().epoch;
    absl::Duration took;
    switch (kind) {
      case 0: {
        const std::vector<pid_t> workers = cluster_.Workers(node);
        if (workers.empty()) return;
        ::kill(workers[random_() % workers.size()], SIGKILL);
        took = AwaitSteps(8, epoch, name);
        break;
      }
      case 1:
        expected_[node] = false;
        cluster_.KillNode(node);
        took = AwaitSteps(4, epoch, name);
        Rejoin(node, name);
        break;
      case 2: {
        const int member = random_() % 3;
        expected_[0] = false;
        cluster_.KillNode(0);
        cluster_.etcd(member).Kill();
        took = AwaitSteps(4, epoch, name);
        Rejoin(0, name);
        EXPECT_TRUE(cluster_.etcd(member).Restart());
        break;
      }
      case 3: {
        const std::vector<pid_t> workers = cluster_.Workers(node);
        if (workers.empty()) return;
        const pid_t worker = workers[random_() % workers.size()];
        ::kill(worker, SIGSTOP);
        absl::SleepFor(pause_);  // the mishap: so long does it stand still
        ::kill(worker, SIGCONT);
        took = AwaitSteps(8, 0, name);
        break;
      }
      case 4: {
        cluster_.SignalNode(node, SIGSTOP);
        took = AwaitSteps(4, epoch, name);
        absl::SleepFor(std::max(pause_ - took, absl::ZeroDuration()));  // the mishap's length
        const int64_t alone = log_.ReadLatest().epoch;
        cluster_.SignalNode(node, SIGCONT);
        AwaitSteps(8, alone, absl::StrCat(name, ", after it"));
        break;
      }
      case 5: {
        if (!cluster_.has_cables()) return;
        cluster_.Cut(node);
        took = AwaitSteps(4, epoch, name);
        absl::SleepFor(std::max(pause_ - took, absl::ZeroDuration()));  // the mishap's length
        const int64_t alone = log_.ReadLatest().epoch;
        cluster_.Mend(node);
        AwaitSteps(8, alone, absl::StrCat(name, ", after it"));
        break;
      }
      case 6:
        expected_[node] = false;
        cluster_.SignalNode(node, SIGTERM);
        took = AwaitSteps(4, epoch, name);
        EXPECT_EQ(cluster_.AwaitEnd(node, 20), 128 + SIGTERM);
        Rejoin(node, name);
        break;
    }
    times_[name].push_back(absl::ToDoubleMilliseconds(took));
  }

  void Report() {
    for (auto& [name, times] : times_) {
      std::sort(times.begin(), times.end());
      std::printf("%-45s %3zu times, until the next step: median %6.0f ms, most %6.0f ms\n", name.c_str(),
                  times.size(), times[times.size() / 2], times.back());
    }
  }

 private:
  void Rejoin(int node, const std::string& name) {
    const int64_t epoch = log_.ReadLatest().epoch;
    Start(node);
    times_["join"].push_back(
        absl::ToDoubleMilliseconds(AwaitSteps(8, epoch, absl::StrCat(name, ", joining again"))));
  }

  const absl::Duration pause_;
  std::mt19937 random_;
  ChaosCluster cluster_;
  ChaosLog log_;
  testing::FileWatch watch_;
  bool expected_[2] = {false, false};  // to run
  std::map<std::string, std::vector<double>> times_;
};

void RandomMishaps(const std::vector<std::string>& flags, int events) {
  const bool all = events > 20;
  testing::TempDir logs;
  Chaos chaos(flags, logs.path(), all ? absl::Seconds(5) : absl::Seconds(3), Number("TANDEM_CHAOS_SEED", 7));
  if (!chaos.cluster().trouble().empty()) GTEST_SKIP() << chaos.cluster().trouble();
  for (int node : {0, 1}) chaos.Start(node);
  chaos.AwaitSteps(8, 0, "starting");
  for (int event = 0; event < events && !::testing::Test::HasFailure(); ++event) {
    chaos.RunEvent();
    TANDEM_ASSERT_OK(chaos.log().Check()) << "node 0:\n"
                                          << chaos.cluster().LastLines(0) << "\nnode 1:\n"
                                          << chaos.cluster().LastLines(1);
  }
  chaos.Report();
  for (int node : {0, 1}) chaos.cluster().SignalNode(node, SIGTERM);
  for (int node : {0, 1}) {
    EXPECT_EQ(chaos.cluster().AwaitEnd(node, 30), 128 + SIGTERM) << chaos.cluster().LastLines(node);
  }
  TANDEM_EXPECT_OK(chaos.log().Check());
  std::printf("%d events, %ld steps in %ld epochs\n", events,
              static_cast<long>(chaos.log().ReadLatest().step),
              static_cast<long>(chaos.log().ReadLatest().epoch));
  for (int node : {0, 1}) EXPECT_TRUE(chaos.cluster().Workers(node).empty());
  // The job's lease in etcd runs out; etcd checks leases at intervals.
  EXPECT_TRUE(chaos.cluster().AwaitNoKeys(absl::Now() + kJobLease + absl::Seconds(30)))
      << "keys stay in etcd after the job";
}

TEST(ChaosTest, RandomMishapsLoseNoStepAndCountNoneTwice) {
  RandomMishaps(Etcd(kJobLease), Number("TANDEM_CHAOS_EVENTS", 8));
}

TEST(ChaosTest, TheSameWithTheJobsStoreInEtcd) {
  std::vector<std::string> flags = Etcd(kJobLease);
  flags.insert(flags.end(), {"--job-store", "etcd"});
  RandomMishaps(flags, Number("TANDEM_CHAOS_EVENTS", 4));
}

TEST(ChaosTest, AnOutageOfEtcdLongerThanALeaseCostsNoState) {
  testing::TempDir logs;
  Chaos chaos(Etcd(absl::Seconds(30)), logs.path(), absl::ZeroDuration(), 0);
  ChaosCluster& cluster = chaos.cluster();
  if (!cluster.trouble().empty()) GTEST_SKIP() << cluster.trouble();
  for (int node : {0, 1}) chaos.Start(node);
  chaos.AwaitSteps(8, 0, "starting");
  const int64_t epoch = chaos.log().ReadLatest().epoch;
  const std::vector<pid_t> before[] = {Sorted(cluster.Workers(0)), Sorted(cluster.Workers(1))};
  for (int member : {0, 1, 2}) cluster.etcd(member).Signal(SIGSTOP);
  // Longer than three leases, so that the first attempt to join again fails, too.
  absl::SleepFor(absl::Seconds(7));
  for (int member : {0, 1, 2}) cluster.etcd(member).Signal(SIGCONT);
  chaos.AwaitSteps(8, epoch, "etcd is back");
  TANDEM_EXPECT_OK(chaos.log().Check()) << cluster.LastLines(0) << cluster.LastLines(1);
  for (int node : {0, 1}) EXPECT_EQ(Sorted(cluster.Workers(node)), before[node]) << cluster.LastLines(node);
}

TEST(ChaosTest, AStoreThatDiesWithItsLauncherEndsTheJobByName) {
  testing::TempDir logs;
  Chaos chaos({"--rdzv-backend", "c10d", "--rdzv-endpoint", "{first}:29400", "--rdzv-conf",
               "lease=2,last_call_timeout=3,join_timeout=60"},
              logs.path(), absl::ZeroDuration(), 0);
  ChaosCluster& cluster = chaos.cluster();
  if (!cluster.trouble().empty()) GTEST_SKIP() << cluster.trouble();
  if (!cluster.has_cables()) GTEST_SKIP() << "without a network of its own the port might be taken";
  chaos.Start(0);
  chaos.AwaitSteps(4, 0, "starting the first");
  chaos.Start(1);
  chaos.AwaitSteps(8, 0, "starting the second");
  cluster.KillNode(0);
  EXPECT_EQ(cluster.AwaitEnd(1, 30), 1) << cluster.LastLines(1);
  EXPECT_THAT(cluster.LastLines(1),
              ::testing::AllOf(::testing::ContainsRegex("the job failed: worker/[4-7]: "),
                               ::testing::HasSubstr("has not reached the job's store"),
                               ::testing::HasSubstr("this node cannot take part: the node that served")));
  EXPECT_TRUE(cluster.Workers(1).empty());
  TANDEM_EXPECT_OK(chaos.log().Check());
}

}  // namespace
}  // namespace tandem::collectives
