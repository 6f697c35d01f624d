// SPDX-License-Identifier: Apache-2.0
// If a process dies or hangs, the whole job ends soon, names that process, and leaves nothing behind.

#include <signal.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/job_dir.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::integration {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::Lines;
using testing::TandemProcess;

constexpr absl::Duration kDeadline = absl::Seconds(30);  // a lease is 10 s
// The end of a job whose launcher sees the death. The others learn of it within a quarter of a lease. Less
// than a lease: the end must not come from the silence.
constexpr absl::Duration kAtOnce = absl::Seconds(9);

// Arguments of a job that trains until it is stopped.
const Args kEndless = {"--set", "train.epochs=1000000", "--set", "checkpoint.every_epochs=0",
                       "--no-baselines"};
constexpr char kProgress[] = "epoch 2/1000000";

Args Endless(const Args& more) {
  Args args = kEndless;
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// Returns the arguments of `tandem run` with further flags.
Args With(Args run, const Args& flags) {
  run.insert(run.begin() + 1, flags.begin(), flags.end());
  return run;
}

int LinesWith(const std::string& text, const std::string& part) {
  int count = 0;
  for (const std::string& line : Lines(text)) count += absl::StrContains(line, part) ? 1 : 0;
  return count;
}

// Runs scenarios concurrently; they spend nearly all their time waiting for leases.
void RunConcurrently(const std::vector<std::function<void()>>& scenarios) {
  std::vector<std::thread> threads;
  for (const auto& scenario : scenarios) threads.emplace_back(scenario);
  for (std::thread& thread : threads) thread.join();
}

// Expects that none of these files, which the processes of a job used, still exists. The files of other
// programs may come and go.
void ExpectRemoved(const std::set<std::string>& shared_memory) {
  for (const std::string& path : shared_memory) EXPECT_FALSE(std::filesystem::exists(path)) << path;
}

// A job under `tandem run` that is training.
class Launched {
 public:
  explicit Launched(const Args& more = {}, const Args& flags = {})
      : tandem_(With(job_.LaunchArgs(2, 2, Endless(more)), flags), job_.Mark(), job_.File(".")) {
    EXPECT_TRUE(tandem_.WaitForOutput(kProgress)) << tandem_.err();
  }
  TandemProcess& tandem() { return tandem_; }
  const JobDir& job() const { return job_; }
  // Sends `signal` to the process that has `variable` in its environment, and stores the time.
  void SendSignal(const std::string& variable, int signal) {
    victim_ = job_.ProcessWith(variable);
    ASSERT_NE(victim_, 0) << variable;
    shared_memory_ = job_.SharedMemory();
    signalled_at_ = absl::Now();
    ASSERT_EQ(::kill(victim_, signal), 0);
  }
  pid_t victim() const { return victim_; }
  void ExpectEndIn(absl::Duration most, int exit_code) {
    EXPECT_EQ(tandem_.Wait(), exit_code) << tandem_.err();
    EXPECT_LT(absl::Now() - signalled_at_, most);
    EXPECT_EQ(LinesWith(tandem_.err(), "stopping the job"), 1) << tandem_.err();
    EXPECT_TRUE(job_.NoLeaks());
    ExpectRemoved(shared_memory_);
    EXPECT_LT(Lines(tandem_.err()).size(), 40u) << tandem_.err();
  }

 private:
  const JobDir job_{2000};
  TandemProcess tandem_;
  pid_t victim_ = 0;
  std::set<std::string> shared_memory_;
  absl::Time signalled_at_;
};

TEST(DeathTest, AKilledProcessOfALaunchedJobEndsItAtOnce) {
  for (const auto& [variable, name] : std::vector<std::pair<std::string, std::string>>{
           {"RANK=0", "worker/0"}, {"RANK=1", "worker/1"}, {"TANDEM_PS_INDEX=1", "ps/1"}}) {
    Launched launched;
    launched.SendSignal(variable, SIGKILL);
    launched.ExpectEndIn(kAtOnce, 137);
    EXPECT_THAT(launched.tandem().err(),
                HasSubstr(absl::StrCat("tandem run: ", name, " (pid ", launched.victim(),
                                       ") was killed by signal 9 (SIGKILL); stopping the job")));
  }
}

TEST(DeathTest, AKilledWorkerEndsAJobWhoseReplicatedRowsMoveInEveryStep) {
  const Args moving = {"--set", "train.mode=async",
                       "--set", "train.hot_rows.first_steps=1",
                       "--set", "train.hot_rows.every_steps=1"};
  for (const auto& [variable, name] :
       std::vector<std::pair<std::string, std::string>>{{"RANK=0", "worker/0"}, {"RANK=1", "worker/1"}}) {
    Launched launched(moving);
    launched.SendSignal(variable, SIGKILL);
    launched.ExpectEndIn(kAtOnce, 137);
    EXPECT_THAT(launched.tandem().err(),
                HasSubstr(absl::StrCat("tandem run: ", name, " (pid ", launched.victim(),
                                       ") was killed by signal 9 (SIGKILL); stopping the job")));
  }
}

// Its group cannot take it back, and the others would wait until their time-out, again and again.
TEST(DeathTest, AWorkerThatIsStartedAgainAloneEndsTheJobAndSaysWhatToDo) {
  Launched launched({"--set", "train.mode=async"}, {"--restart", "worker=alone"});
  launched.SendSignal("RANK=1", SIGKILL);
  launched.ExpectEndIn(kDeadline, 1);
  EXPECT_THAT(launched.tandem().err(), HasSubstr("--max-restarts"));
  EXPECT_THAT(launched.tandem().err(), HasSubstr("worker/1 has died and was started again alone"));
}

TEST(DeathTest, AProcessOfALaunchedJobThatHangsIsNamedWhenItsLeaseIsOver) {
  auto hang = [](const char* variable, const char* name) {
    Launched launched;
    launched.SendSignal(variable, SIGSTOP);
    launched.ExpectEndIn(kDeadline, 137);
    EXPECT_THAT(launched.tandem().err(),
                ContainsRegex(absl::StrCat("tandem run: ", name, " .pid ", launched.victim(),
                                           ". was silent for 1.* .hung; lease 10s., ended by the launcher; "
                                           "stopping the job")));
    EXPECT_THAT(launched.tandem().err(), ::testing::Not(HasSubstr("signal 9")));
  };
  RunConcurrently({[&] { hang("RANK=1", "worker/1"); }, [&] { hang("TANDEM_PS_INDEX=0", "ps/0"); }});
}

TEST(DeathTest, ControlCEndsTrainingCleanly) {
  Launched launched;
  launched.tandem().Signal(SIGINT);
  EXPECT_EQ(launched.tandem().Wait(), 75) << launched.tandem().err();
  EXPECT_THAT(launched.tandem().err(), HasSubstr("tandem run: stopping on SIGINT"));
  EXPECT_EQ(LinesWith(launched.tandem().err(), " E "), 0) << launched.tandem().err();
  EXPECT_TRUE(launched.job().NoLeaks());
}

// Two workers and a server that were started by hand. Rank 0 serves the store.
class ByHand {
 public:
  enum Member { kServer, kWorker0, kWorker1 };
  ByHand() {
    // Another process may take the port after FreePort has found it.
    for (int attempt = 0; attempt < 3; ++attempt) {
      processes_.clear();
      const std::string port = absl::StrCat(FreePort());
      for (Member member : {kServer, kWorker0, kWorker1}) {
        auto variables = job_.Mark();
        variables.insert({{"WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", port},
                          {"TANDEM_NUM_PS", "1"}});
        Args args = {"train", "job.yaml"};
        args.insert(args.end(), kEndless.begin(), kEndless.end());
        if (member == kServer) {
          args = {"ps"};
          variables["TANDEM_PS_INDEX"] = "0";
        } else {
          variables["RANK"] = member == kWorker0 ? "0" : "1";
        }
        processes_.push_back(std::make_unique<TandemProcess>(args, variables, job_.File(".")));
      }
      if (processes_[kWorker0]->WaitForOutput(kProgress)) return;
    }
    ADD_FAILURE() << processes_[kWorker0]->err();
  }
  void SendSignal(Member member, int signal) {
    shared_memory_ = job_.SharedMemory();
    signalled_at_ = absl::Now();
    signalled_member_ = member;
    processes_[member]->Signal(signal);
  }
  // Expects that all other processes end in time with an error that matches `who`.
  void ExpectOthersEnd(const std::string& who) {
    for (Member member : {kServer, kWorker0, kWorker1}) {
      if (member == signalled_member_) continue;
      TandemProcess& process = *processes_[member];
      EXPECT_EQ(process.Wait(), 1) << member;
      EXPECT_LT(absl::Now() - signalled_at_, kDeadline);
      EXPECT_THAT(process.err(), ContainsRegex(who)) << member;
      EXPECT_LE(LinesWith(process.err(), " E "), 2) << process.err();
    }
    // A process that was only stopped learns of the failure when it continues.
    processes_[signalled_member_]->Signal(SIGCONT);
    EXPECT_NE(processes_[signalled_member_]->Wait(), 0);
    EXPECT_TRUE(job_.NoLeaks());
    ExpectRemoved(shared_memory_);
  }

 private:
  const JobDir job_{2000};
  std::vector<std::unique_ptr<TandemProcess>> processes_;
  std::set<std::string> shared_memory_;
  absl::Time signalled_at_;
  Member signalled_member_ = kServer;
};

TEST(DeathTest, WithoutALauncherTheOthersNameTheSilentOneAndEnd) {
  auto strike = [](ByHand::Member member, int signal, const char* who) {
    ByHand job;
    job.SendSignal(member, signal);
    job.ExpectOthersEnd(who);
  };
  const char* const worker = "the job (has )?failed: worker/1 has been silent";
  RunConcurrently(
      {[&] { strike(ByHand::kWorker1, SIGKILL, worker); },
       [&] { strike(ByHand::kServer, SIGKILL, "the job has failed: ps/0 has been silent"); },
       [&] { strike(ByHand::kWorker0, SIGKILL, "the job.s store at .* has been silent for .*was rank 0"); },
       [&] { strike(ByHand::kWorker1, SIGSTOP, worker); }});
}

}  // namespace
}  // namespace tandem::integration
