// SPDX-License-Identifier: Apache-2.0
// Tests tandem status, tandem trace and --tensorboard with a real job.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/profiling/trace_checker.h"
#include "tests/testing/processes/file_watch.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/report/event_file_reader.h"

namespace tandem::cli {
namespace {

using tandem::testing::EventFile;
using tandem::testing::Finished;
using tandem::testing::kTestTimeout;
using tandem::testing::ReadFile;
using tandem::testing::RunTandem;
using tandem::testing::TandemProcess;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

// Two servers and two workers that train until they are told to stop.
class ProfilingTest : public ::testing::Test {
 protected:
  static constexpr char kJob[] = R"(name: small
data:
  format: tsv
  train: log.tsv
  label: click
  sparse: [c1, c2, c3, c4]
  dense: [d1, d2]
model: {kind: deepfm, dim: 8, hidden: [32]}
embedding: {optimizer: {kind: adagrad, lr: 0.05}}
optimizer: {kind: adam, lr: 0.002}
train: {mode: async, batch_size: 256, epochs: 100000, log_every_seconds: 0.2}
checkpoint: {dir: checkpoints, every_epochs: 0}
)";

  static void SetUpTestSuite() {
    dir_ = std::make_unique<tandem::testing::TempDir>();
    const Finished data = RunTandem({"data", "planted", "--rows", "20000", "--out", dir_->File("log.tsv")});
    ASSERT_EQ(data.exit_code, 0) << data.err;
    std::ofstream(dir_->File("job.yaml")) << kJob;
    job_ = std::make_unique<TandemProcess>(
        std::vector<std::string>{"run", "--ps", "2", "--workers", "2", "--log-dir", dir_->File("logs"), "--",
                                 "tandem", "train", "job.yaml", "--no-baselines", "--tensorboard",
                                 dir_->File("scalars")},
        std::map<std::string, std::string>{}, dir_->path());
    const std::string job_file = dir_->File("logs/job.json");
    std::filesystem::create_directory(dir_->File("logs"));
    tandem::testing::FileWatch watch({dir_->File("logs")});
    ASSERT_TRUE(
        watch.Await([&] { return !ReadFile(job_file).empty(); }, absl::Now() + kTestTimeout, {job_->pid()}))
        << job_->err();
    // The job's store learns of a process from its heartbeats, one every quarter of its lease.
    TandemProcess status({"status", "--json", "--interval", "0.2", "--job", dir_->File("logs")});
    ASSERT_TRUE(status.WaitForLine([](const std::string& line) {
      int far = 0;
      for (const Json& member : ParseJson(line).value("members", Json::array())) {
        far += member["state"] == "serving" || member["step"] > 0 ? 1 : 0;
      }
      return far == 4;
    })) << "the job does not get going: "
        << job_->err() << status.out() << status.err();
  }
  static void TearDownTestSuite() {
    job_ = nullptr;
    dir_ = nullptr;
  }

  static Json Status() {
    const Finished finished = RunTandem({"status", "--json", "--job", dir_->File("logs")});
    return finished.exit_code == 0 ? ParseJson(finished.out) : Json::object();
  }
  static Json Member(const std::string& name) {
    const Json status = Status();
    for (const Json& member : status.at("members")) {
      if (member["member"] == name) return member;
    }
    return Json();
  }

  static std::unique_ptr<tandem::testing::TempDir> dir_;
  static std::unique_ptr<TandemProcess> job_;
};
std::unique_ptr<tandem::testing::TempDir> ProfilingTest::dir_;
std::unique_ptr<TandemProcess> ProfilingTest::job_;

TEST_F(ProfilingTest, StatusSaysWhoIsThereAndHowFar) {
  // A busy machine may delay a heartbeat, but not in each of several looks.
  const auto all_alive = [](const Json& status) {
    for (const Json& member : status.value("members", Json::array())) {
      if (member["liveness"] != "alive") return false;
    }
    return true;
  };
  Json status = Status();
  for (const absl::Time end = absl::Now() + kTestTimeout; !all_alive(status) && absl::Now() < end;)
    status = Status();
  EXPECT_EQ(status["ended"], false);
  ASSERT_EQ(status["members"].size(), 4u);
  std::set<std::string> names;
  for (const Json& member : status["members"]) {
    names.insert(member["member"]);
    EXPECT_EQ(member["liveness"], "alive") << member;
    EXPECT_FALSE(member["host"].get<std::string>().empty());
    EXPECT_TRUE(tandem::testing::IsAlive(member["pid"])) << member;
    EXPECT_FALSE(member["diagnostics"].get<std::string>().empty());
    EXPECT_LT(member["last_heartbeat_s"].get<double>(), member["lease_s"].get<double>());
    if (member["role"] == "worker") {
      EXPECT_GT(member["train_epoch"], 0);
    }
  }
  EXPECT_THAT(names, ::testing::ElementsAre("ps/0", "ps/1", "worker/0", "worker/1"));
  const Finished text = RunTandem({"status", "--job", dir_->File("logs")});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(tandem::testing::Lines(text.out).size(), 5u) << text.out;
  EXPECT_THAT(text.out, HasSubstr("MEMBER"));
  EXPECT_THAT(text.out, HasSubstr("serving"));
}

TEST_F(ProfilingTest, TraceShowsBothHalvesOfCallsAndEveryPartOfAStep) {
  const std::string path = dir_->File("trace.json");
  const Finished finished = RunTandem({"trace", "--seconds", "3", "-o", path, "--job", dir_->File("logs")});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  EXPECT_THAT(finished.out, HasSubstr("4 processes"));
  EXPECT_THAT(finished.out, HasSubstr("worker/1: computed for "));
  const Json trace = ParseJson(ReadFile(path));
  EXPECT_THAT(testing::CheckTrace(trace), IsEmpty());
  for (const char* name :
       {"step", "forward", "backward inputs", "backward parameters", "gather", "optimizer", "read batch",
        "dedupe", "all_reduce", "pull", "encode pull", "decode pull", "push", "encode push", "lookup",
        "queued push", "apply", "tandem.v1.ParameterServer/Pull", "tandem.v1.ParameterServer/Push"}) {
    EXPECT_THAT(testing::EventsNamed(trace, name), ::testing::Not(IsEmpty())) << name;
  }
  EXPECT_GT(trace["otherData"]["joined_calls"], 10);
  EXPECT_EQ(trace["otherData"]["clock_error_us"], 0.0);  // one kernel
  // A call's server half lies within the caller's, in another process.
  std::map<int64_t, Json> begins;
  int checked = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "s") begins[event["id"]] = event;
    if (event["ph"] != "f") continue;
    const Json& begin = begins.at(event["id"]);
    EXPECT_LE(begin["ts"], event["ts"]);
    ++checked;
  }
  EXPECT_GT(checked, 10);
  // The job continues and can be traced again.
  EXPECT_EQ(RunTandem({"trace", "--seconds", "0.1", "-o", path, "--job", dir_->File("logs")}).exit_code, 0);
}

TEST_F(ProfilingTest, AProcessThatHangsIsNamedAndTheOthersAreInTheTrace) {
  const pid_t pid = Member("ps/1").at("pid");
  const std::string path = dir_->File("hang.json");
  ::kill(pid, SIGSTOP);
  const Finished finished =
      RunTandem({"trace", "--seconds", "0.3", "-o", path, "--job", dir_->File("logs"), "--timeout", "4"});
  ::kill(pid, SIGCONT);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.err, HasSubstr("ps/1 is not in the trace"));
  EXPECT_THAT(finished.err, HasSubstr(absl::StrCat("pid ", pid)));
  const Json trace = ParseJson(ReadFile(path));
  EXPECT_THAT(testing::CheckTrace(trace), IsEmpty());
  EXPECT_EQ(trace["otherData"]["missing"][0]["member"], "ps/1");
  EXPECT_EQ(trace["otherData"]["processes"].size(), 3u);
}

TEST_F(ProfilingTest, ScalarsOfEveryRoleAreThereForTensorBoard) {
  EventFile worker, server;
  tandem::testing::FileWatch watch({dir_->File("scalars/worker-0"), dir_->File("scalars/ps-1")});
  const auto written = [&] {
    worker = tandem::testing::ReadRun(dir_->File("scalars/worker-0"));
    server = tandem::testing::ReadRun(dir_->File("scalars/ps-1"));
    return worker.scalars.count("epoch/valid_auc") > 0 && server.scalars.count("embedding/staleness") > 0;
  };
  EXPECT_TRUE(watch.Await(written, absl::Now() + kTestTimeout));
  EXPECT_EQ(worker.version, "brain.Event:2");
  EXPECT_EQ(tandem::testing::ReadRun(dir_->File("scalars/worker-1")).version, "brain.Event:2");
  EXPECT_EQ(tandem::testing::ReadRun(dir_->File("scalars/ps-0")).version, "brain.Event:2");
  for (const char* tag : {"train/loss", "train/samples_per_s", "train/learning_rate", "epoch/train_loss",
                          "epoch/samples_per_s", "epoch/valid_auc", "epoch/valid_logloss"}) {
    EXPECT_GT(worker.scalars.count(tag), 0u) << tag;
  }
  for (const char* tag : {"embedding/staleness", "embedding/rows", "embedding/bytes"}) {
    EXPECT_GT(server.scalars.count(tag), 0u) << tag;
  }
  int64_t last = -1;
  for (const auto& [step, loss] : worker.scalars["train/loss"]) {
    EXPECT_GE(step, last);
    EXPECT_GT(loss, 0.0f);
    EXPECT_LT(loss, 2.0f);
    last = step;
  }
}

TEST(Profiling, MistakesAreOneClearError) {
  tandem::testing::TempDir dir;
  Finished finished = RunTandem({"status"}, {}, dir.path());
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("which job?"));
  finished = RunTandem({"status", "--store", "127.0.0.1:1", "--timeout", "1"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("the job has ended, or"));
  finished = RunTandem({"trace", "--store", "127.0.0.1:1", "--timeout", "1", "-o", "/nowhere/trace.json"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("/nowhere"));
}

}  // namespace
}  // namespace tandem::cli
