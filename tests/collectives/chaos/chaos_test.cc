// Everything that happens to a job, at random: kill -9 of workers, of a node, of the first node together with
// a member of etcd, pauses, partitions, leaves and joins. The job goes on at the right size, and no step is
// lost or counted twice.
//
// TANDEM_CHAOS_EVENTS=200 runs the long version (pauses of 5 s); TANDEM_CHAOS_SEED chooses another history;
// TANDEM_CHAOS_COMMAND replaces the launcher: words, with {etcd}, {host}, {worker} (the worker's command).

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/collectives/chaos/chaos_cluster.h"
#include "tests/collectives/chaos/chaos_log.h"
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

std::vector<std::string> Command(const std::string& logs, int steps, int milliseconds, int lease_ms) {
  const std::vector<std::string> worker = {TANDEM_CHAOS_WORKER, logs, absl::StrCat(steps),
                                           absl::StrCat(milliseconds)};
  std::vector<std::string> command = {TANDEM_CHAOS_LAUNCHER,       "{etcd}", "{host}",
                                      absl::StrCat(kWorkersANode), "1",      "2",
                                      absl::StrCat(lease_ms)};
  if (const char* other = std::getenv("TANDEM_CHAOS_COMMAND"); other != nullptr) {
    command.clear();
    for (const auto& word : absl::StrSplit(other, ' ', absl::SkipEmpty())) {
      if (word != "{worker}") command.emplace_back(word);
    }
  }
  command.insert(command.end(), worker.begin(), worker.end());
  return command;
}

TEST(ChaosTest, AJobWithoutMishapsEndsWell) {
  testing::TempDir logs;
  ChaosCluster cluster(Command(logs.path(), 40, 5, 2000));
  if (!cluster.trouble().empty()) GTEST_SKIP() << cluster.trouble();
  ChaosLog log(logs.path());
  for (int node : {0, 1}) cluster.StartNode(node);
  for (int node : {0, 1}) EXPECT_EQ(cluster.AwaitEnd(node, 60), 0) << cluster.LastLines(node);
  TANDEM_EXPECT_OK(log.Check());
  EXPECT_EQ(log.Look().step, 40);
}

class Chaos {
 public:
  Chaos(const std::string& logs, absl::Duration lease, absl::Duration pause, int seed)
      : pause_(pause),
        random_(seed),
        cluster_(Command(logs, 1 << 30, 10, static_cast<int>(absl::ToInt64Milliseconds(lease)))),
        log_(logs) {}

  ChaosCluster& cluster() { return cluster_; }
  ChaosLog& log() { return log_; }

  // Until steps are counted by `world` ranks, in an epoch later than `after` (or in any); how long that took.
  absl::Duration AwaitSteps(int world, int64_t after, const std::string& doing) {
    const absl::Time start = absl::Now();
    const int64_t from = log_.Look().step;
    while (absl::Now() < start + absl::Seconds(45)) {
      const ChaosLog::Latest now = log_.Look();
      if (now.world_size == world && now.epoch > after && now.step > from) return absl::Now() - start;
      for (int node : {0, 1}) {
        if (!expected_[node] || cluster_.NodeRuns(node)) continue;
        ADD_FAILURE() << doing << ": node " << node << " has ended\n" << cluster_.LastLines(node);
        return absl::InfiniteDuration();
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
    const ChaosLog::Latest now = log_.Look();
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
    const int64_t epoch = log_.Look().epoch;
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
        absl::SleepFor(pause_);
        ::kill(worker, SIGCONT);
        took = AwaitSteps(8, 0, name);
        break;
      }
      case 4:
        cluster_.SignalNode(node, SIGSTOP);
        took = AwaitSteps(4, epoch, name);
        absl::SleepFor(std::max(pause_ - took, absl::ZeroDuration()));
        cluster_.SignalNode(node, SIGCONT);
        AwaitSteps(8, log_.Look().epoch, absl::StrCat(name, ", after it"));
        break;
      case 5:
        if (!cluster_.has_cables()) return;
        cluster_.Cut(node);
        took = AwaitSteps(4, epoch, name);
        absl::SleepFor(std::max(pause_ - took, absl::ZeroDuration()));
        cluster_.Mend(node);
        AwaitSteps(8, log_.Look().epoch, absl::StrCat(name, ", after it"));
        break;
      case 6:
        expected_[node] = false;
        cluster_.SignalNode(node, SIGTERM);
        took = AwaitSteps(4, epoch, name);
        EXPECT_EQ(cluster_.AwaitEnd(node, 20), 0);
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
    const int64_t epoch = log_.Look().epoch;
    Start(node);
    times_["join"].push_back(
        absl::ToDoubleMilliseconds(AwaitSteps(8, epoch, absl::StrCat(name, ", joining again"))));
  }

  const absl::Duration pause_;
  std::mt19937 random_;
  ChaosCluster cluster_;
  ChaosLog log_;
  bool expected_[2] = {false, false};  // to run
  std::map<std::string, std::vector<double>> times_;
};

TEST(ChaosTest, RandomMishapsLoseNoStepAndCountNoneTwice) {
  const int events = Number("TANDEM_CHAOS_EVENTS", 8);
  const bool all = events > 20;
  testing::TempDir logs;
  Chaos chaos(logs.path(), absl::Seconds(2), all ? absl::Seconds(5) : absl::Seconds(3),
              Number("TANDEM_CHAOS_SEED", 7));
  if (!chaos.cluster().trouble().empty()) GTEST_SKIP() << chaos.cluster().trouble();
  for (int node : {0, 1}) chaos.Start(node);
  chaos.AwaitSteps(8, 0, "starting");
  for (int event = 0; event < events && !HasFailure(); ++event) {
    chaos.RunEvent();
    TANDEM_ASSERT_OK(chaos.log().Check()) << "node 0:\n"
                                          << chaos.cluster().LastLines(0) << "\nnode 1:\n"
                                          << chaos.cluster().LastLines(1);
  }
  chaos.Report();
  for (int node : {0, 1}) chaos.cluster().SignalNode(node, SIGTERM);
  for (int node : {0, 1}) EXPECT_EQ(chaos.cluster().AwaitEnd(node, 30), 0) << chaos.cluster().LastLines(node);
  TANDEM_EXPECT_OK(chaos.log().Check());
  std::printf("%d events, %ld steps in %ld epochs\n", events, static_cast<long>(chaos.log().Look().step),
              static_cast<long>(chaos.log().Look().epoch));
  for (int node : {0, 1}) EXPECT_TRUE(chaos.cluster().Workers(node).empty());
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (chaos.cluster().KeysLeft() > 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(200));
  EXPECT_LE(chaos.cluster().KeysLeft(), 0) << "keys stay in etcd after the job";
}

}  // namespace
}  // namespace tandem::collectives
