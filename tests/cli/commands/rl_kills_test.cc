// SPDX-License-Identifier: Apache-2.0
// Jobs of `tandem rl` in several processes, whose actors, replay servers and learner are killed (SIGKILL)
// while they train, learn CartPole all the same. As in containers, the learner hosts the job's store, and the
// test starts each process again that ends.
//
// First the processes are killed, each kill after the learner has made progress since the one before. Then
// the job trains undisturbed for the steps that remain, and the greedy policy must reach 475. The ledger of
// the replay tables must close whenever a replay server is about to be killed, and at the end. Replay servers
// of these jobs have no checkpoints, so that a killed one loses everything; the items that the next one
// counts as lost must be at most those that had been inserted before.
//
// TANDEM_RL_KILLS=50 sets the number of kills, and chooses the processes at random. The short form has fewer,
// and doubles the steps up to three times if the policy is not good. That of DQN has few steps, which are
// enough to see that it learns.
// TANDEM_TEST_SEED repeats the choices of an earlier run.

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/host/port_reservation.h"
#include "nlohmann/json.hpp"
#include "replay/client/remote_replay.h"
#include "rpc/connect.h"
#include "tandem/v1/replay.pb.h"
#include "tests/testing/processes/processes.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/random_seed.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/test_key.h"
#include "weights/client/remote_weights.h"

namespace tandem::cli {
namespace {

using testing::TandemProcess;

// A job that is killed.
struct KillsJob {
  const char* file = "";
  std::string table;  // that the learner samples from
  int replay_servers = 1;
  int actors = 1;
  // Changes of the job while processes are killed: it then ends after steps that it never reaches.
  std::vector<std::string> unending;
  uint64_t progress = 1;  // by the weights' step, between two kills
  // The inserts after which an actor of a server has certainly learned of some that they were taken.
  uint64_t inserts = 1;
  uint64_t steps = 1;  // of the whole job
  int kills = 24;      // of the short form
  double good = 475;   // the wanted mean return of the greedy policy over 100 episodes
};

class RlKillsTest : public ::testing::Test {
 protected:
  void Begin(const KillsJob& job) {
    job_ = job;
    wanted_kills_ = job.kills;
    inserted_by_server_.resize(static_cast<size_t>(job.replay_servers));
    if (const char* const text = std::getenv("TANDEM_RL_KILLS"); text != nullptr) {
      whole_ = true;
      ASSERT_TRUE(absl::SimpleAtoi(text, &wanted_kills_)) << text;
    }
    for (int i = 0; i <= job.replay_servers; ++i) {
      auto port = launcher::PortReservation::Keep(0);
      TANDEM_ASSERT_OK(port);
      ports_.push_back(*std::move(port));
    }
    settings_ = job.unending;
    Start("learner/0");
    for (int i = 0; i < job.replay_servers; ++i) {
      Start(absl::StrCat("replay/", i));
      auto channel = rpc::Connect(AddressOf(i), {.channel = {.caller = testing::WithTestKey()}});
      TANDEM_ASSERT_OK(channel);
      channels_.push_back(*std::move(channel));
      replays_.push_back(std::make_unique<replay::RemoteReplay>(channels_.back()));
    }
    StartActors();
    weights_ = std::make_unique<weights::RemoteWeights>(channels_[0]);
  }

  std::string AddressOf(int replay_server) const {
    return absl::StrCat("127.0.0.1:", ports_[static_cast<size_t>(replay_server)]->port());
  }

  // Starts a process, "actor/3".
  void Start(const std::string& name) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(name, '/');
    const auto& [role, index] = parts;
    std::vector<std::string> args = {"rl", absl::StrCat(TANDEM_JOBS_DIR, "/", job_.file), "--set",
                                     absl::StrCat("model=", folder_.File("runs/model.safetensors"))};
    for (const std::string& change : settings_) args.insert(args.end(), {"--set", change});
    std::map<std::string, std::string> variables = {{"TANDEM_ROLE", role},
                                                    {"WORLD_SIZE", "1"},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"MASTER_PORT", absl::StrCat(ports_.back()->port())}};
    if (role == "learner") {
      args.insert(args.end(), {"--resume", "--report", folder_.File("report.json"), "--set",
                               "checkpoint.every_seconds=0.2"});
      variables["RANK"] = index;
    } else {
      const int count = role == "replay" ? job_.replay_servers : job_.actors;
      variables["ROLE_RANK"] = index;
      variables["ROLE_WORLD_SIZE"] = absl::StrCat(count);
    }
    int place = 0;
    if (role == "replay" && absl::SimpleAtoi(index, &place))
      args.insert(args.end(), {"--listen", AddressOf(place)});
    processes_[name] = std::make_unique<TandemProcess>(args, variables, folder_.path());
  }
  void StartActors() {
    for (int i = 0; i < job_.actors; ++i) Start(absl::StrCat("actor/", i));
  }
  void Kill(const std::string& name) {
    processes_[name]->Signal(SIGKILL);
    if (processes_[name]->Wait() != 128 + SIGKILL) ++ended_;
  }

  // Starts the processes again that have ended by themselves, because they could not go on without another.
  void RestartEnded() {
    for (auto& [name, process] : processes_) {
      siginfo_t info = {};
      const bool runs =
          ::waitid(P_PID, static_cast<id_t>(process->pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid == 0;
      if (runs) continue;
      const int code = process->Wait();
      std::cout << name << " has ended with " << code << ":\n" << process->err() << std::endl;
      ASSERT_LT(++ended_, 3 * (wanted_kills_ + 1)) << "processes end again and again";
      Start(name);
    }
  }

  // Waits until one learner has made `progress` from the first of its weights that are seen.
  void AwaitProgress(uint64_t progress) {
    const absl::Time deadline = MonotonicNow() + testing::kTestTimeout;
    weights::ModelVersion seen;
    std::optional<uint64_t> begin;
    while (true) {
      const auto newer = weights_->Newer("policy", seen, MonotonicNow() + absl::Milliseconds(500));
      if (newer.ok() && *newer != nullptr) {
        const weights::ModelInfo& info = (*newer)->info;
        if (!begin || info.version.epoch != seen.epoch) begin = info.step;
        seen = info.version;
        if (info.step >= *begin + progress) return;
      }
      ASSERT_NO_FATAL_FAILURE(RestartEnded());
      ASSERT_LT(MonotonicNow(), deadline) << "no progress since step " << begin.value_or(0) << "\n"
                                          << Errors();
    }
  }
  std::string Errors() const {
    std::string all;
    for (const auto& [name, process] : processes_) absl::StrAppend(&all, name, ": ", process->err(), "\n");
    return all;
  }

  // Returns the learner's table of a replay server. Its ledger must close.
  v1::ReplayTableInfo Table(int replay_server) {
    v1::ListReplayTablesRequest request;
    request.set_table(job_.table);
    v1::ListReplayTablesResponse response;
    const absl::Status status =
        replays_[static_cast<size_t>(replay_server)]->Call("ListTables", request, &response);
    EXPECT_TRUE(status.ok() && response.tables_size() == 1) << status << Errors();
    if (response.tables_size() != 1) return {};
    const v1::ReplayTableInfo& table = response.tables(0);
    EXPECT_EQ(table.total_inserts(),
              table.items() + table.removed_by_max_items() + table.removed_by_max_bytes() + table.consumed() +
                  table.removed_by_reset() + table.removed_stale() + table.removed_by_ttl())
        << table.DebugString();
    return table;
  }
  // Waits until `holds` is true of the table of a replay server.
  template <typename Holds>
  v1::ReplayTableInfo AwaitTable(int replay_server, const Holds& holds) {
    const absl::Time deadline = MonotonicNow() + testing::kTestTimeout;
    weights::ModelVersion seen;
    while (true) {
      v1::ReplayTableInfo table = Table(replay_server);
      if (holds(table) || HasFailure()) return table;
      RestartEnded();
      EXPECT_LT(MonotonicNow(), deadline) << table.DebugString() << Errors();
      // Looks again with the next version, or a moment later.
      const auto newer = weights_->Newer("policy", seen, MonotonicNow() + absl::Milliseconds(50));
      if (newer.ok() && *newer != nullptr) seen = (*newer)->info.version;
    }
  }

  void KillReplayServer(int i) {
    const uint64_t before = Table(i).total_inserts();
    AwaitTable(i, [&](const auto& table) { return table.total_inserts() > before + job_.inserts; });
    PauseActors();
    // Every insert that an actor knows to be taken is in this state of the table.
    const v1::ReplayTableInfo last = Table(i);
    const std::string name = absl::StrCat("replay/", i);
    Kill(name);
    Start(name);
    for (int actor = 0; actor < job_.actors; ++actor)
      processes_[absl::StrCat("actor/", actor)]->Signal(SIGCONT);
    inserted_by_server_[static_cast<size_t>(i)] += last.total_inserts();
    // The actors say what they had been told.
    AwaitTable(i, [](const v1::ReplayTableInfo& table) { return table.lost_items() > 0; });
    CheckLostItems(i);
    inserted_ += last.total_inserts();
    lost_ += last.items();
  }
  // Stops the actors (SIGSTOP), and waits until none of them runs.
  void PauseActors() {
    for (int actor = 0; actor < job_.actors; ++actor) {
      TandemProcess& process = *processes_[absl::StrCat("actor/", actor)];
      process.Signal(SIGSTOP);
      siginfo_t info = {};
      EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(process.pid()), &info, WSTOPPED | WEXITED | WNOWAIT), 0);
    }
  }
  // The actors count what all lives of a server have acknowledged to them. Each of these items was inserted.
  void CheckLostItems(int replay_server) {
    EXPECT_LE(Table(replay_server).lost_items(), inserted_by_server_[static_cast<size_t>(replay_server)])
        << "replay/" << replay_server;
  }

  // Kills processes while the job trains: in turn, or at random ones.
  void KillAll() {
    const uint64_t seed = testing::RandomSeed();
    CounterRandom random(seed, 0);
    const std::vector<std::string> roles = {"actor", "replay", "learner"};
    for (int kill = 0; kill < wanted_kills_; ++kill) {
      ASSERT_NO_FATAL_FAILURE(AwaitProgress(job_.progress + random.Below(job_.progress)));
      const size_t chosen = whole_ ? random.Below(roles.size()) : static_cast<size_t>(kill) % roles.size();
      const std::string& role = roles[chosen];
      ++kills_[role];
      if (role == "replay") {
        ASSERT_NO_FATAL_FAILURE(
            KillReplayServer(static_cast<int>(random.Below(static_cast<uint64_t>(job_.replay_servers)))));
        continue;
      }
      const uint64_t count = role == "actor" ? static_cast<uint64_t>(job_.actors) : 1;
      const std::string name = absl::StrCat(role, "/", random.Below(count));
      Kill(name);
      Start(name);
    }
    AwaitProgress(job_.progress);
  }

  // Waits for the end of the learner, and returns its report.
  nlohmann::json LearnerEnds(int exit_code) {
    TandemProcess& learner = *processes_["learner/0"];
    EXPECT_TRUE(testing::AwaitProcessEnd(learner.pid(), absl::Now() + absl::Minutes(10)));
    EXPECT_EQ(learner.Wait(), exit_code) << learner.out() << learner.err();
    nlohmann::json report =
        nlohmann::json::parse(testing::ReadFile(folder_.File("report.json")), nullptr, false);
    EXPECT_FALSE(report.is_discarded()) << learner.out() << learner.err();
    return report;
  }
  uint64_t Samples() {
    uint64_t samples = 0;
    for (int i = 0; i < job_.replay_servers; ++i) samples += Table(i).total_samples();
    return samples;
  }

  // Trains undisturbed until `steps`, from the learner's checkpoint. No sample may be under way.
  nlohmann::json Train(uint64_t steps) {
    settings_ = {absl::StrCat("stop.env_steps=", steps)};
    const uint64_t before = Samples();
    Start("learner/0");
    StartActors();
    nlohmann::json report = LearnerEnds(0);
    taken_ = Samples() - before;
    for (int i = 0; i < job_.actors; ++i) Kill(absl::StrCat("actor/", i));
    return report;
  }

  // Runs the whole test; returns the report of the last training.
  nlohmann::json KillAndTrain(const KillsJob& job) {
    const absl::Time begin = MonotonicNow();
    Begin(job);
    if (!HasFatalFailure()) KillAll();
    if (HasFatalFailure()) return {};
    const absl::Time killed = MonotonicNow();
    for (int i = 0; i < job.actors; ++i) Kill(absl::StrCat("actor/", i));
    processes_["learner/0"]->Signal(SIGTERM);
    nlohmann::json report = LearnerEnds(75);
    if (HasFailure()) return report;
    const uint64_t done = report["env_steps"];
    // The learning rate falls to 0 in the steps that remain.
    uint64_t steps = std::max(job.steps, done + job.steps / 2);
    report = Train(steps);
    for (int more = 0; !whole_ && more < 3 && !HasFailure() && report["evaluation"]["mean"] < job.good;
         ++more)
      report = Train(steps *= 2);
    if (HasFailure()) return report;
    EXPECT_GE(report["evaluation"]["mean"], job.good) << report.dump();
    for (int i = 0; i < job.replay_servers; ++i) CheckLostItems(i);
    std::cout << job.file << ": kills of actors " << kills_["actor"] << ", replay servers "
              << kills_["replay"] << ", the learner " << kills_["learner"] << "; " << ended_
              << " processes ended by themselves; steps " << done << " and " << report["env_steps"] << "; of "
              << inserted_ << " items of killed servers " << lost_ << " were lost; evaluation "
              << report["evaluation"]["mean"] << "; "
              << absl::FormatDuration(absl::Trunc(killed - begin, absl::Milliseconds(100))) << " and "
              << absl::FormatDuration(absl::Trunc(MonotonicNow() - killed, absl::Milliseconds(100)))
              << std::endl;
    return report;
  }

  testing::TempDir folder_;
  KillsJob job_;
  bool whole_ = false;
  int wanted_kills_ = 0;
  std::vector<std::unique_ptr<launcher::PortReservation>> ports_;  // of replay servers, then of the store
  std::vector<std::string> settings_;
  std::map<std::string, std::unique_ptr<TandemProcess>> processes_;  // by name
  std::vector<std::shared_ptr<rpc::Channel>> channels_;              // to the replay servers
  std::vector<std::unique_ptr<replay::RemoteReplay>> replays_;
  std::unique_ptr<weights::RemoteWeights> weights_;
  std::map<std::string, int> kills_;
  int ended_ = 0;                             // processes, by themselves
  std::vector<uint64_t> inserted_by_server_;  // items of all lives of a replay server that were killed
  uint64_t inserted_ = 0, lost_ = 0;  // items of replay servers that were killed, when they were seen last
  uint64_t taken_ = 0;                // samples in the last training
};

TEST_F(RlKillsTest, ImpalaLearnsCartPoleAlthoughActorsReplayServerAndLearnerAreKilled) {
  const nlohmann::json report = KillAndTrain({.file = "cartpole_impala.yaml",
                                              .table = "unrolls",
                                              .replay_servers = 1,
                                              .actors = 2,
                                              .unending = {"stop.env_steps=1000000000"},
                                              .progress = 20,
                                              .inserts = 32,
                                              .steps = 1'000'000});
  if (HasFailure()) return;
  // Each unroll that the table has given was taken once, and none that was used was too old. Those that had
  // waited for the learner before may be, and are dropped.
  const uint64_t steps = report["env_steps"], begin = report["resumed_at"];
  EXPECT_EQ(taken_ * 20, steps - begin) << report.dump();
  EXPECT_LE(report["lag"]["greatest"], 4) << report.dump();
  EXPECT_LE(report["lag"]["dropped"], 40) << report.dump();
}

TEST_F(RlKillsTest, DqnLearnsCartPoleAlthoughActorsReplayServersAndLearnerAreKilled) {
  const bool whole = std::getenv("TANDEM_RL_KILLS") != nullptr;
  KillAndTrain({.file = "cartpole_dqn.yaml",
                .table = "transitions",
                .replay_servers = 2,
                .actors = 4,
                .unending = {"stop.env_steps=1000000000", "algorithm.epsilon_fraction=0.00005"},
                .progress = 2000,
                .inserts = 2000,
                .steps = whole ? 500'000u : 100'000u,
                .kills = 6,
                .good = whole ? 475.0 : 150.0});
}

}  // namespace
}  // namespace tandem::cli
