// SPDX-License-Identifier: Apache-2.0
// Checkpoints of training runs: which run they belong to, where a run resumes, and what a failure leaves.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/digest.h"
#include "tests/testing/random_seed.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/trainer/training_job.h"
#include "worker/report/report.h"
#include "worker/trainer/training_run.h"

namespace tandem::worker {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr RunOptions kPlain{.baselines = false};
const RunOptions kLatest{.resume = "latest", .baselines = false};

class CheckpointsTest : public TrainingJob {
 protected:
  std::string CheckpointDir(const std::string& name) {
    return absl::StrCat("checkpoint.dir=", dir_.File(name));
  }
  std::vector<ps::CheckpointEntry> Entries(const std::string& name) {
    const absl::StatusOr<std::vector<ps::CheckpointEntry>> entries = ps::ListCheckpoints(dir_.File(name));
    EXPECT_TRUE(entries.ok()) << entries.status();
    return entries.value_or(std::vector<ps::CheckpointEntry>());
  }
  std::vector<uint64_t> Steps(const std::string& name) {
    std::vector<uint64_t> steps;
    for (const ps::CheckpointEntry& entry : Entries(name)) steps.push_back(entry.step);
    return steps;
  }
  // Returns rows and dense parameters of the newest checkpoint as text.
  std::string NewestDigest(const std::string& name) {
    const absl::StatusOr<std::string> path = ps::LatestCheckpoint(dir_.File(name));
    if (!path.ok()) return path.status().ToString();
    const absl::StatusOr<ps::CheckpointDigest> digest = ps::DigestCheckpoint(*path);
    if (!digest.ok()) return digest.status().ToString();
    std::string text = absl::StrCat(digest->dense);
    for (const ps::TableDigest& table : digest->tables) {
      absl::StrAppend(&text, " ", table.table, ":", table.rows, ":", table.digest);
    }
    return text;
  }
  // Returns faults by which every push fails once there were `pushes` of them: the job dies in that moment.
  static rpc::FaultInjector DieAfter(int pushes) {
    const auto count = std::make_shared<std::atomic<int>>(0);
    return [count, pushes](absl::string_view method, int64_t) -> rpc::Fault {
      if (!absl::EndsWith(method, "/Push") || ++*count <= pushes) return {};
      return {rpc::Fault::Kind::kFailBefore, absl::InternalError("the job dies")};
    };
  }
};

TEST_F(CheckpointsTest, ANewRunDoesNotStartAmongTheCheckpointsOfAnother) {
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=2"}), 1, 1, kPlain).status());
  const std::vector<uint64_t> before = Steps("ckpt");
  const std::string digest = NewestDigest("ckpt");
  ASSERT_THAT(before, SizeIs(2));
  const std::string run_id = Entries("ckpt")[0].manifest.run_id();
  EXPECT_THAT(run_id, Not(IsEmpty()));
  EXPECT_THAT(Run(Job({"train.epochs=1"}), 1, 2, kPlain).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--resume latest"), HasSubstr("checkpoint.dir=DIR"),
                             HasSubstr("--overwrite"), HasSubstr(ps::CheckpointName(before.back())))));
  EXPECT_EQ(Steps("ckpt"), before);
  EXPECT_EQ(NewestDigest("ckpt"), digest);

  TANDEM_ASSERT_OK(Run(Job({"train.epochs=1"}), 1, 1, {.overwrite = true, .baselines = false}).status());
  ASSERT_THAT(Entries("ckpt"), SizeIs(1));
  EXPECT_NE(Entries("ckpt")[0].manifest.run_id(), run_id);
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=2"}), 1, 1, kLatest).status());
  ASSERT_THAT(Entries("ckpt"), SizeIs(2));
  EXPECT_EQ(Entries("ckpt")[0].manifest.run_id(), Entries("ckpt")[1].manifest.run_id());
}

TEST_F(CheckpointsTest, ResumingFromAnEarlierCheckpointDoesNotLeaveLaterOnesBehind) {
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=3"}), 1, 1, kPlain).status());
  const std::vector<ps::CheckpointEntry> entries = Entries("ckpt");
  ASSERT_THAT(entries, SizeIs(3));
  RunOptions from{.resume = entries[0].path, .baselines = false};
  EXPECT_THAT(Run(Job({"train.epochs=3"}), 1, 1, from).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("later checkpoints"), HasSubstr("--overwrite"))));
  // Resuming into another directory begins another run.
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=2", CheckpointDir("branch")}), 1, 1, from).status());
  EXPECT_THAT(Steps("branch"), ElementsAre(entries[1].step));
  EXPECT_NE(Entries("branch")[0].manifest.run_id(), entries[0].manifest.run_id());
  from.overwrite = true;
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=2"}), 1, 1, from).status());
  EXPECT_THAT(Steps("ckpt"), ElementsAre(entries[0].step, entries[1].step));
}

TEST_F(CheckpointsTest, ARunThatDiesAtAnyStepResumesInMidEpochWithTheSameBits) {
  const std::string every = "checkpoint.every_steps=7";
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport whole, Run(Job({CheckpointDir("whole")}), 2, 2, kPlain));
  const std::string digest = NewestDigest("whole");
  CounterRandom random(11, tandem::testing::RandomSeed());
  for (int round = 0; round < 3; ++round) {
    const std::string name = absl::StrCat("dying", round);
    // The run has 3 epochs of 19 steps, with 2 workers and 2 servers.
    const int pushes = 30 + static_cast<int>(random.Below(3 * 19 * 4 - 40));
    SCOPED_TRACE(absl::StrCat("dies after ", pushes, " pushes"));
    EXPECT_FALSE(
        Run(Job({CheckpointDir(name), every}), 2, 2, kPlain, absl::Seconds(6), DieAfter(pushes)).ok());
    const std::vector<ps::CheckpointEntry> left = Entries(name);
    ASSERT_THAT(left, Not(IsEmpty()));
    TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport rest, Run(Job({CheckpointDir(name), every}),
                                                          1 + static_cast<int>(random.Below(3)), 2, kLatest));
    EXPECT_EQ(NewestDigest(name), digest);
    EXPECT_EQ(rest.epochs.back().valid.logloss, whole.epochs.back().valid.logloss);
    EXPECT_EQ(rest.epochs.back().step, whole.epochs.back().step);
    // The loss of a resumed epoch includes the steps before the checkpoint; its sum has another order.
    EXPECT_NEAR(rest.epochs.front().train_loss, whole.epochs[rest.epochs.front().epoch - 1].train_loss,
                1e-12);
    EXPECT_EQ(rest.test.logloss, whole.test.logloss);
  }
}

TEST_F(CheckpointsTest, ARunThatSavesWhileItTrainsResumesInMidEpochWithTheSameBits) {
  const std::vector<std::string> saving = {"checkpoint.every_steps=7", "checkpoint.async_save=true"};
  TANDEM_ASSERT_OK(Run(Job({CheckpointDir("whole")}), 2, 2, kPlain).status());
  const std::string digest = NewestDigest("whole");
  CounterRandom random(12, tandem::testing::RandomSeed());
  for (int round = 0; round < 4; ++round) {
    const std::string name = absl::StrCat("dying", round);
    std::vector<std::string> overrides = saving;
    overrides.push_back(CheckpointDir(name));
    if (round % 2 == 1) overrides.push_back("checkpoint.deltas=3");
    // The first checkpoint is of step 7, after 28 pushes of 2 workers to 2 servers.
    const int pushes = 30 + static_cast<int>(random.Below(3 * 19 * 4 - 40));
    SCOPED_TRACE(absl::StrCat("dies after ", pushes, " pushes"));
    EXPECT_FALSE(Run(Job(overrides), 2, 2, kPlain, absl::Seconds(6), DieAfter(pushes)).ok());
    ASSERT_THAT(Entries(name), Not(IsEmpty()));
    TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport rest,
                                Run(Job(overrides), 1 + static_cast<int>(random.Below(3)), 2, kLatest));
    EXPECT_EQ(NewestDigest(name), digest);
    EXPECT_EQ(rest.save_error, "");
  }
}

TEST_F(CheckpointsTest, AnAsyncRunThatDiesAndResumesAppliesEachPushOnce) {
  const std::vector<std::string> overrides = {"train.mode=async", "checkpoint.every_steps=7",
                                              "checkpoint.async_save=true"};
  EXPECT_FALSE(Run(Job(overrides), 1, 2, kPlain, absl::Seconds(6), DieAfter(60)).ok());
  ASSERT_THAT(Entries("ckpt"), Not(IsEmpty()));
  const uint64_t start = Job().train.hot_rows.first_steps;
  const uint64_t synchronous = std::min(Entries("ckpt").back().step, start) + start;
  TANDEM_ASSERT_OK(Run(Job(overrides), 1, 2, kLatest).status());
  // A table's clock counts its updates: one for each of the first steps of both runs, which are synchronous,
  // and one for each push of the 2 workers in the others of 57 steps.
  int tables = 0;
  const std::vector<ps::CheckpointEntry> entries = Entries("ckpt");
  for (const v1::CheckpointFile& file : entries.back().manifest.files()) {
    if (!absl::EndsWith(file.name(), ".table")) continue;
    ++tables;
    EXPECT_EQ(file.clock(), 114u - synchronous) << file.name();
  }
  EXPECT_EQ(tables, 2);
}

TEST_F(CheckpointsTest, AFailedSaveWhileTrainingIsReportedAndTheNextOneIsMade) {
  const auto fail_first = [](absl::string_view failing) -> rpc::FaultInjector {
    const auto count = std::make_shared<std::atomic<int>>(0);
    return [=](absl::string_view method, int64_t) -> rpc::Fault {
      if (!absl::EndsWith(method, failing) || ++*count > 1) return {};
      return {rpc::Fault::Kind::kFailBefore, absl::ResourceExhaustedError("the disk is full")};
    };
  };
  for (const char* method : {"/BeginCheckpoint", "/SaveCheckpoint"}) {
    SCOPED_TRACE(method);
    const std::vector<std::string> overrides = {"train.epochs=1", "checkpoint.every_steps=10",
                                                "checkpoint.async_save=true", CheckpointDir(method + 1)};
    TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report,
                                Run(Job(overrides), 1, 2, kPlain, absl::Seconds(30), fail_first(method)));
    EXPECT_EQ(report.save_error, "");
    EXPECT_THAT(Steps(method + 1), ElementsAre(19));
    std::vector<std::string> stopping = overrides;
    stopping.insert(stopping.end(), {"checkpoint.on_failure=stop", CheckpointDir("stop")});
    EXPECT_THAT(Run(Job(stopping), 1, 2, kPlain, absl::Seconds(30), fail_first(method)).status(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("step 10"), HasSubstr("the disk is full"))));
  }
}

TEST_F(CheckpointsTest, ACheckpointWhoseConnectionBreaksWhileItIsWrittenIsNotLost) {
  const auto count = std::make_shared<std::atomic<int>>(0);
  const auto break_first = [count](absl::string_view method, int64_t) -> rpc::Fault {
    if (!absl::EndsWith(method, "/SaveCheckpoint") || ++*count > 1) return {};
    return {.kind = rpc::Fault::Kind::kFailAfter};
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const RunReport report,
      Run(Job({"train.epochs=1", "checkpoint.every_steps=10", "checkpoint.async_save=true",
               "checkpoint.keep=10", "checkpoint.on_failure=stop"}),
          1, 2, kPlain, absl::Seconds(30), break_first));
  EXPECT_THAT(Steps("ckpt"), ElementsAre(10, 19));
}

TEST_F(CheckpointsTest, ACheckpointIsLeftOutWhileServersWriteOneForAnother) {
  const auto count = std::make_shared<std::atomic<int>>(0);
  const auto busy = [count](absl::string_view method, int64_t) -> rpc::Fault {
    if (!absl::EndsWith(method, "/BeginCheckpoint") || ++*count > 1) return {};
    return {rpc::Fault::Kind::kFailBefore, absl::AlreadyExistsError("another is not written yet")};
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report,
                              Run(Job({"train.epochs=1", "checkpoint.every_steps=10",
                                       "checkpoint.async_save=true", "checkpoint.on_failure=stop"}),
                                  1, 2, kPlain, absl::Seconds(30), busy));
  EXPECT_EQ(report.skipped_checkpoints, 1);
  EXPECT_THAT(Steps("ckpt"), ElementsAre(19));
}

TEST_F(CheckpointsTest, ARunThatFailsDoesNotWaitForServersThatNeverWrite) {
  const auto pushes = std::make_shared<std::atomic<int>>(0);
  const auto faults = [pushes](absl::string_view method, int64_t) -> rpc::Fault {
    if (absl::EndsWith(method, "/SaveCheckpoint")) return {.kind = rpc::Fault::Kind::kNeverRespond};
    if (!absl::EndsWith(method, "/Push") || ++*pushes <= 30) return {};
    return {rpc::Fault::Kind::kFailBefore, absl::InternalError("the job dies")};
  };
  const absl::Time begin = MonotonicNow();
  EXPECT_FALSE(
      Run(Job({"checkpoint.every_steps=10", "checkpoint.async_save=true", "train.timeout_seconds=2"}), 1, 2,
          kPlain, absl::Seconds(6), faults)
          .ok());
  EXPECT_LT(MonotonicNow() - begin, absl::Minutes(2));  // checkpoint.timeout_seconds is 600
}

TEST_F(CheckpointsTest, ServersOfAnOlderVersionSaveWhileAllWait) {
  const auto old = [](absl::string_view method, int64_t) -> rpc::Fault {
    if (!absl::EndsWith(method, "/BeginCheckpoint")) return {};
    return {rpc::Fault::Kind::kFailBefore, absl::UnimplementedError("no such method")};
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report,
                              Run(Job({"train.epochs=1", "checkpoint.every_steps=5",
                                       "checkpoint.async_save=true", "checkpoint.keep=10"}),
                                  1, 2, kPlain, absl::Seconds(30), old));
  EXPECT_THAT(Steps("ckpt"), ElementsAre(5, 10, 15, 19));
  EXPECT_EQ(report.checkpoint_holds.size(), 3u);
}

TEST_F(CheckpointsTest, WorkersThatAreAskedToStopDoSoAfterTheSameStepAndResumeWithTheSameBits) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport whole, Run(Job({CheckpointDir("whole")}), 1, 2, kPlain));
  std::atomic<bool> stop{false};
  std::atomic<int> pushes{0};
  const auto ask = [&](absl::string_view method, int64_t) -> rpc::Fault {
    if (absl::EndsWith(method, "/Push") && ++pushes == 20) stop = true;
    return {};
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport first, Run(Job(), 1, 2, kPlain, absl::Seconds(30), ask, &stop));
  EXPECT_TRUE(first.interrupted);
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::CheckpointManifest manifest, ps::ReadManifest(first.checkpoint));
  EXPECT_GE(manifest.step(), 9u);
  EXPECT_LT(manifest.step(), 3u * 19u);
  stop = false;
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport rest,
                              Run(Job(), 2, 2, kLatest, absl::Seconds(30), nullptr, &stop));
  EXPECT_FALSE(rest.interrupted);
  EXPECT_EQ(NewestDigest("ckpt"), NewestDigest("whole"));
  EXPECT_EQ(rest.test.logloss, whole.test.logloss);
}

TEST_F(CheckpointsTest, AnotherNumberOfWorkersResumesAtTheSameExamples) {
  EXPECT_FALSE(
      Run(Job({"train.epochs=1", "checkpoint.every_steps=10"}), 1, 2, kPlain, absl::Seconds(6), DieAfter(30))
          .ok());
  ASSERT_THAT(Steps("ckpt"), ElementsAre(10));
  EXPECT_EQ(Entries("ckpt")[0].manifest.position().batches(), 10u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport rest, Run(Job({"train.epochs=1"}), 1, 4, kLatest));
  // 19 steps of 2 workers are 10 of 4; the first 5 of them are done.
  EXPECT_EQ(rest.epochs[0].steps, 5u);
}

TEST_F(CheckpointsTest, LatestStepsBackPastADamagedCheckpointAndSetsItAside) {
  TANDEM_ASSERT_OK(Run(Job({CheckpointDir("whole")}), 1, 1, kPlain).status());
  const auto flip = [](const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(200);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(200);
    file.put(byte);
  };
  for (const char* file : {"embedding.0-of-1.table", "DENSE", "MANIFEST", "missing"}) {
    SCOPED_TRACE(file);
    std::filesystem::copy(dir_.File("whole"), dir_.File(file), std::filesystem::copy_options::recursive);
    const std::vector<ps::CheckpointEntry> entries = Entries(file);
    const std::string damaged = entries.back().path;
    if (file == std::string("missing")) {
      std::filesystem::remove(absl::StrCat(damaged, "/wide.0-of-1.table"));
    } else {
      flip(absl::StrCat(damaged, "/", file));
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport rest, Run(Job({CheckpointDir(file)}), 1, 1, kLatest));
    ASSERT_EQ(rest.epochs.size(), 1u);
    EXPECT_EQ(rest.epochs[0].epoch, 3);
    EXPECT_EQ(NewestDigest(file), NewestDigest("whole"));
    EXPECT_TRUE(std::filesystem::exists(
        dir_.File(absl::StrCat(file, "/damaged-", ps::CheckpointName(entries.back().step)))));
  }
  for (const ps::CheckpointEntry& entry : Entries("DENSE")) flip(absl::StrCat(entry.path, "/DENSE"));
  const size_t count = Entries("DENSE").size();
  EXPECT_THAT(Run(Job({CheckpointDir("DENSE")}), 1, 1, {.resume = "auto", .baselines = false}).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("are damaged")));
  EXPECT_THAT(Entries("DENSE"), SizeIs(count));
}

TEST_F(CheckpointsTest, ARunWithIncrementalCheckpointsResumesWithTheSameBits) {
  TANDEM_ASSERT_OK(Run(Job({CheckpointDir("whole")}), 2, 2, kPlain).status());
  // All rows change in a few steps, so that every delta is followed by a complete one: those of steps 7, 19
  // (the end of the epoch) and 28 are complete, those of 14, 21 and 35 are not.
  const std::vector<std::string> deltas = {"checkpoint.deltas=3", "checkpoint.every_steps=7",
                                           "checkpoint.keep=1"};
  for (const bool broken : {false, true}) {
    SCOPED_TRACE(broken);
    const std::string name = broken ? "broken" : "dying";
    std::vector<std::string> overrides = deltas;
    overrides.push_back(CheckpointDir(name));
    EXPECT_FALSE(Run(Job(overrides), 2, 2, kPlain, absl::Seconds(6), DieAfter(37 * 4)).ok());
    EXPECT_THAT(Steps(name), ElementsAre(19, 28, 35));  // the best, the base, the newest
    EXPECT_EQ(Entries(name)[2].manifest.base(), ps::CheckpointName(28));
    if (broken) {
      TANDEM_ASSERT_OK(ps::RemoveCheckpoint(Entries(name)[1].path));
    }
    TANDEM_ASSERT_OK(Run(Job(overrides), 1, 2, kLatest).status());
    EXPECT_EQ(NewestDigest(name), NewestDigest("whole"));
    EXPECT_EQ(std::filesystem::exists(dir_.File(absl::StrCat(name, "/damaged-", ps::CheckpointName(35)))),
              broken);
  }
}

TEST_F(CheckpointsTest, AFailedSaveIsReportedAndTrainingGoesOn) {
  const auto fail_save = [](int first, int last) -> rpc::FaultInjector {
    const auto count = std::make_shared<std::atomic<int>>(0);
    return [=](absl::string_view method, int64_t) -> rpc::Fault {
      if (!absl::EndsWith(method, "/SaveCheckpoint")) return {};
      const int save = ++*count;
      if (save < first || save > last) return {};
      return {rpc::Fault::Kind::kFailBefore, absl::ResourceExhaustedError("the disk is full")};
    };
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(
      RunReport report, Run(Job({CheckpointDir("first")}), 1, 2, kPlain, absl::Seconds(30), fail_save(1, 1)));
  EXPECT_EQ(report.epochs.size(), 3u);
  EXPECT_EQ(report.save_error, "");
  EXPECT_THAT(Steps("first"), ElementsAre(38, 57));
  TANDEM_ASSERT_OK_AND_ASSIGN(
      report, Run(Job({CheckpointDir("last")}), 1, 2, kPlain, absl::Seconds(30), fail_save(3, 99)));
  EXPECT_THAT(report.save_error, AllOf(HasSubstr("step 57"), HasSubstr("the disk is full")));
  EXPECT_THAT(Steps("last"), ElementsAre(19, 38));
  EXPECT_THAT(Run(Job({CheckpointDir("stop"), "checkpoint.on_failure=stop"}), 1, 1, kPlain, absl::Seconds(30),
                  fail_save(2, 2))
                  .status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the disk is full")));
}

// A job that diverges after the first epochs, so that later ones are not saved as the best. With two workers
// an epoch has 19 steps.
const std::vector<std::string> kDiverging = {
    "train.epochs=4", "train.early_stopping={metric: logloss, patience: 0}", "optimizer.lr=0.3",
    "embedding.optimizer={kind: sgd, lr: 30}", "checkpoint.keep=10"};

TEST_F(CheckpointsTest, TheLastStepOfAnEpochIsSavedIfItIsAMultipleOfEverySteps) {
  std::vector<std::string> overrides = kDiverging;
  overrides.insert(overrides.end(), {"checkpoint.every_epochs=0", "checkpoint.every_steps=19"});
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Run(Job(overrides), 1, 2, kPlain));
  ASSERT_LT(report.best_epoch, 3);
  EXPECT_THAT(Steps("ckpt"), ElementsAre(19, 38, 57, 76));
}

TEST_F(CheckpointsTest, TheReportNamesTheTestedEpochIfTheBestOneCouldNotBeSaved) {
  const rpc::FaultInjector never = [](absl::string_view method, int64_t) -> rpc::Fault {
    if (!absl::EndsWith(method, "/SaveCheckpoint")) return {};
    return {rpc::Fault::Kind::kFailBefore, absl::ResourceExhaustedError("the disk is full")};
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report,
                              Run(Job(kDiverging), 1, 2, kPlain, absl::Seconds(30), never));
  ASSERT_LT(report.best_epoch, 4);
  EXPECT_EQ(report.tested_epoch, 4);
  EXPECT_THAT(FormatReport(report), HasSubstr("(epoch 4)"));
  std::vector<std::string> saved = kDiverging;
  saved.push_back(CheckpointDir("saved"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport best, Run(Job(saved), 1, 2, kPlain));
  EXPECT_EQ(best.tested_epoch, best.best_epoch);
  EXPECT_NE(best.test.logloss, report.test.logloss);
}

TEST_F(CheckpointsTest, AnEpochThatCannotBeEvaluatedIsNotLost) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport whole, Run(Job({CheckpointDir("whole")}), 1, 1, kPlain));
  const std::string valid = absl::StrCat("data.valid=", dir_.File("valid.csv"));
  WriteClicks(dir_.File("valid.csv"), 300);
  TANDEM_ASSERT_OK(Run(Job({valid, CheckpointDir("straight")}), 1, 1, kPlain).status());
  {
    std::ofstream out(dir_.File("valid.csv"));
    out << "click,user,item,price\n";
    for (int i = 0; i < 300; ++i) out << "maybe,u1,i1,1\n";
  }
  EXPECT_THAT(Run(Job({valid}), 1, 1, kPlain).status(), StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_THAT(Entries("ckpt"), SizeIs(1));
  EXPECT_EQ(Entries("ckpt")[0].manifest.epoch(), 0u);
  WriteClicks(dir_.File("valid.csv"), 300);
  RunOptions corrected = kLatest;
  corrected.data_changed = true;  // the validation data
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport rest, Run(Job({valid}), 1, 1, corrected));
  ASSERT_EQ(rest.epochs.size(), 3u);
  EXPECT_EQ(rest.epochs[0].steps, 0u);  // only its evaluation was missing
  EXPECT_EQ(rest.epochs[0].epoch, 1);
  EXPECT_EQ(Entries("ckpt").front().manifest.epoch(), 1u);
  EXPECT_FALSE(Entries("ckpt").front().manifest.has_position());
  EXPECT_EQ(NewestDigest("ckpt"), NewestDigest("straight"));
}

TEST_F(CheckpointsTest, WithoutExamplesOfBothClassesTheAucIsNotAvailableAndNothingIsLost) {
  int count = 0;
  for (const char* split : {"{valid: 0, test: 0}", "{valid: 0.1, test: 0}", "{valid: 0, test: 0.1}"}) {
    SCOPED_TRACE(split);
    TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report,
                                Run(Job({absl::StrCat("data.split=", split),
                                         CheckpointDir(absl::StrCat("split", ++count)), "train.epochs=2"}),
                                    1, 2));
    EXPECT_EQ(report.epochs.size(), 2u);
    const bool has_valid = absl::StrContains(split, "valid: 0.1");
    EXPECT_EQ(std::isnan(report.epochs[0].valid.auc), !has_valid);
    EXPECT_EQ(std::isnan(report.test.auc), !absl::StrContains(split, "test: 0.1"));
    EXPECT_EQ(report.test.examples == 0, !absl::StrContains(split, "test: 0.1"));
    EXPECT_TRUE(has_valid || report.best_epoch == 2) << report.best_epoch;
    TANDEM_EXPECT_OK(ps::VerifyCheckpoint(report.checkpoint));
    if (std::isnan(report.test.auc)) {
      EXPECT_THAT(FormatReport(report), HasSubstr("n/a"));
      EXPECT_THAT(ReportToJson(report), HasSubstr("\"auc\": null"));
    }
  }
  {
    std::ofstream out(dir_.File("negative.csv"));
    out << "click,user,item,price\n";
    for (int i = 0; i < 50; ++i) out << "0,u1,i1,1\n";
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const RunReport report,
      Run(Job({absl::StrCat("data.valid=", dir_.File("negative.csv")), CheckpointDir("one_class")}), 1, 2,
          kPlain));
  EXPECT_TRUE(std::isnan(report.epochs[0].valid.auc));
  EXPECT_GT(report.epochs[0].valid.logloss, 0);
  EXPECT_EQ(report.epochs[0].valid.examples, 50u);
  EXPECT_EQ(report.best_epoch, 3);
}

TEST_F(CheckpointsTest, ARunThatOverwritesAnotherLeavesItInPlaceUntilItHasACheckpointOfItsOwn) {
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=3"}), 1, 1, kPlain).status());
  const std::vector<uint64_t> before = Steps("ckpt");
  const std::string digest = NewestDigest("ckpt");
  const RunOptions overwriting{.overwrite = true, .baselines = false};
  // Wrong data, and a run that dies within its first epoch.
  EXPECT_FALSE(Run(Job({"data.train=/no/such/file.csv"}), 1, 1, overwriting).ok());
  EXPECT_EQ(Steps("ckpt"), before);
  EXPECT_FALSE(Run(Job(), 1, 1, overwriting, absl::Seconds(6), DieAfter(10)).ok());
  EXPECT_EQ(Steps("ckpt"), before);
  EXPECT_EQ(NewestDigest("ckpt"), digest);

  // The first checkpoint of the new run is of a lower step than those of the old one, and is the newest all
  // the same.
  const std::string every = "checkpoint.every_steps=5";
  EXPECT_FALSE(Run(Job({every}), 1, 1, overwriting, absl::Seconds(6), DieAfter(8)).ok());
  EXPECT_THAT(Steps("ckpt"), ElementsAre(5));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport rest, Run(Job({every, "train.epochs=3"}), 1, 1, kLatest));
  EXPECT_EQ(rest.epochs.size(), 3u);
  EXPECT_EQ(NewestDigest("ckpt"), digest);
}

TEST_F(CheckpointsTest, ABranchThatOverwritesLaterCheckpointsKeepsThemUntilItHasOneOfItsOwn) {
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=3"}), 1, 1, kPlain).status());
  const std::vector<ps::CheckpointEntry> entries = Entries("ckpt");
  const std::vector<uint64_t> before = Steps("ckpt");
  const RunOptions branch{.resume = entries[0].path, .overwrite = true, .baselines = false};
  EXPECT_FALSE(Run(Job(), 1, 1, branch, absl::Seconds(6), DieAfter(10)).ok());
  EXPECT_EQ(Steps("ckpt"), before);
  EXPECT_FALSE(Run(Job({"checkpoint.every_steps=50"}), 1, 1, branch, absl::Seconds(6), DieAfter(20)).ok());
  EXPECT_THAT(Steps("ckpt"), ElementsAre(before[0], 50));
  const std::string run_id = Entries("ckpt")[1].manifest.run_id();
  EXPECT_NE(run_id, entries[0].manifest.run_id());
  EXPECT_EQ(Entries("ckpt")[0].manifest.run_id(), run_id);
}

}  // namespace
}  // namespace tandem::worker
