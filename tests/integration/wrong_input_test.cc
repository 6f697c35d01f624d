// SPDX-License-Identifier: Apache-2.0
// Tests that each user error gives one clear message soon and a nonzero exit code.

#include <sys/mount.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/job_dir.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"

namespace tandem::integration {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using testing::Finished;
using ::testing::HasSubstr;
using testing::Lines;
using ::testing::Not;
using testing::ReadFile;

class WrongInputTest : public ::testing::Test {
 protected:
  // Expects that a launched job fails, that a line of the launcher or of a worker matches `what`, and that
  // the output is short.
  Finished ExpectError(const Args& more, const std::string& what, int servers = 2, size_t most_lines = 16) {
    const absl::Time began = absl::Now();
    const Finished finished = job_.Train(servers, 2, more);
    EXPECT_NE(finished.exit_code, 0);
    EXPECT_LT(finished.exit_code, 126) << "no crash";
    EXPECT_LT(absl::Now() - began, absl::Seconds(45)) << what;
    EXPECT_THAT(finished.err, ContainsRegex(what));
    EXPECT_LE(Lines(finished.err).size(), most_lines) << finished.err;
    EXPECT_THAT(finished.err,
                Not(AnyOf(HasSubstr("terminate called"), HasSubstr("CHECK"), HasSubstr("    @ "))));
    EXPECT_TRUE(job_.NoLeaks());
    return finished;
  }
  const JobDir job_{2000};
};

TEST_F(WrongInputTest, AnUnknownFieldIsShownWithLineAndSuggestion) {
  job_.Write("bad.yaml", absl::StrReplaceAll(ReadFile(job_.File("job.yaml")), {{"batch_size", "batchsize"}}));
  for (const Finished& finished : {job_.Train(1, 1, {}, "bad.yaml"), job_.Run({"train", "bad.yaml"})}) {
    EXPECT_EQ(finished.exit_code, 2);
    EXPECT_THAT(finished.err,
                ContainsRegex("bad.yaml:14: unknown field 'batchsize'.*did you mean 'batch_size'"));
    EXPECT_LE(Lines(finished.err).size(), 7u) << finished.err;
  }
  ExpectError({"--set", "train.epoks=3"},
              "--set train.epoks=3: unknown field 'epoks'.*did you mean 'epochs'");
  ExpectError({"--model", "dlmr"}, "'dlmr'.*did you mean 'dlrm'");
  const Finished missing = job_.Run({"train", "nowhere.yaml"});
  EXPECT_NE(missing.exit_code, 0);
  EXPECT_THAT(missing.err, HasSubstr("nowhere.yaml"));
  EXPECT_EQ(Lines(missing.err).size(), 1u);
}

TEST_F(WrongInputTest, CheckpointsOutsideTheLaunchersRootAreRefused) {
  const auto train = [this](const std::string& directory) {
    Args args = job_.LaunchArgs(1, 1, {"--set", absl::StrCat("checkpoint.dir=", job_.File(directory))});
    args.insert(args.begin() + 1,
                {"--checkpoint-root", "root"});  // below the current directory, not there yet
    return job_.Run(args);
  };
  const Finished outside = train("elsewhere");
  EXPECT_NE(outside.exit_code, 0);
  EXPECT_THAT(outside.err, AllOf(HasSubstr("(--checkpoint-root)"), HasSubstr("is not below")));
  const Finished inside = train("root/run");
  EXPECT_EQ(inside.exit_code, 0) << inside.err;
  EXPECT_THAT(job_.Checkpoints("root/run"), Not(::testing::IsEmpty()));
}

TEST_F(WrongInputTest, DataThatIsNotThereOrNotAsTheJobSaysIsNamed) {
  const Finished missing =
      ExpectError({"--set", "data.train=/no/such/log.tsv"},
                  "tandem run: the job failed: worker/[01]: .*'/no/such/log.tsv' cannot be opened");
  EXPECT_THAT(missing.err, Not(AnyOf(HasSubstr("\\'"), HasSubstr("worker/0: worker/0"))));
  ExpectError({"--set", "data.label=klick"},
              "log.tsv': label column 'klick' is not in the data; it has the columns click");
  ExpectError({"--set", "data.sparse=[c1, d9]"}, "log.tsv: .*'d9' is not in the data");
}

TEST_F(WrongInputTest, TooManyMalformedLinesAreFatalAndShown) {
  std::string text = ReadFile(job_.File("log.tsv"));
  for (int i = 0; i < 200; ++i) absl::StrAppend(&text, "garbage\n");
  job_.Write("bad.tsv", text);
  ExpectError({"--set", "data.train=bad.tsv", "--set", "data.max_malformed=3"},
              "more than 3 malformed lines \\(max_malformed\\): bad.tsv:[0-9]+: 1 fields found, 9 expected",
              1, 24);
  // Within the limit, malformed lines are counted.
  const Json report =
      job_.TrainAndReport(1, 2, {"--set", "data.train=bad.tsv", "--set", "data.max_malformed=500"});
  EXPECT_GT(report.at("malformed_lines"), 100);
}

TEST_F(WrongInputTest, CheckpointsThatCannotBeUsedAreNamedAndNothingIsTrained) {
  ExpectError({"--resume", "latest", "--set", "checkpoint.dir=none"}, "no checkpoint under none");
  job_.TrainAndReport(2, 2, {"--set", "train.epochs=1"});
  const Args checkpoints = job_.Checkpoints("ckpt");
  ASSERT_EQ(checkpoints.size(), 1u);
  const Args resume = {"--resume", "latest"};
  Args other = resume;
  other.insert(other.end(), {"--model", "dcn"});
  EXPECT_THAT(ExpectError(other, "holds a model 'deepfm', the job trains 'dcn'").out,
              Not(HasSubstr("epoch ")));
  Args wider = resume;
  wider.insert(wider.end(), {"--set", "model.dim=8"});
  EXPECT_THAT(ExpectError(wider, "embedding.*dim").out, Not(HasSubstr("epoch ")));

  std::string table;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints[0])) {
    if (absl::StartsWith(entry.path().filename().string(), "embedding.1")) table = entry.path();
  }
  ASSERT_NE(table, "");
  std::filesystem::resize_file(table, std::filesystem::file_size(table) / 2);
  EXPECT_THAT(ExpectError(resume, "embedding.1-of-2.table is damaged .*cut off").out,
              Not(HasSubstr("epoch ")));
  std::filesystem::remove(table);
  ExpectError(resume, "embedding.1-of-2.table.*No such file");
}

TEST_F(WrongInputTest, AJobWithoutServersIsRefused) {
  ExpectError({}, "no parameter server .*start it with `tandem run --ps N`", /*servers=*/0);
}

TEST_F(WrongInputTest, AnEnvironmentThatIsNotWholeOrLeadsNowhereIsNamed) {
  auto run = [&](std::map<std::string, std::string> variables) {
    variables.merge(job_.Mark());
    const absl::Time began = absl::Now();
    Finished finished = testing::RunTandem({"train", "job.yaml", "--set", "train.timeout_seconds=2"},
                                           variables, job_.File("."));
    EXPECT_NE(finished.exit_code, 0);
    EXPECT_LT(absl::Now() - began, absl::Seconds(45));
    EXPECT_LE(Lines(finished.err).size(), 2u) << finished.err;
    return finished.err;
  };
  EXPECT_THAT(run({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(run({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}}),
              HasSubstr("RANK=2 is out of range"));
  // No program listens at port 1.
  const std::map<std::string, std::string> nowhere = {{"RANK", "1"},
                                                      {"WORLD_SIZE", "2"},
                                                      {"MASTER_ADDR", "127.0.0.1"},
                                                      {"MASTER_PORT", "1"},
                                                      {"TANDEM_NUM_PS", "1"}};
  EXPECT_THAT(run(nowhere),
              ContainsRegex("worker/1 cannot reach the job's store at 127.0.0.1:1 within 2s: is rank 0 "
                            ".*are MASTER_ADDR and MASTER_PORT right"));
  std::map<std::string, std::string> variables = nowhere;
  variables["TANDEM_PS_INDEX"] = "0";
  const Finished server = testing::RunTandem({"ps", "--join-timeout", "1"}, variables, job_.File("."));
  EXPECT_NE(server.exit_code, 0);
  EXPECT_THAT(server.err, HasSubstr("ps/0 cannot reach the job's store at 127.0.0.1:1"));
  variables = nowhere;
  variables["MASTER_ADDR"] = "no.such.host.invalid";
  EXPECT_THAT(run(variables), HasSubstr("no.such.host.invalid"));
}

TEST_F(WrongInputTest, AServerThatIsNotWhereItSaysIsNamed) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, cluster::StoreServer::Start("127.0.0.1:0"));
  std::map<std::string, std::string> variables = {{"WORLD_SIZE", "1"},
                                                  {"TANDEM_STORE", absl::StrCat("127.0.0.1:", store->port())},
                                                  {"TANDEM_NUM_PS", "1"},
                                                  {"TANDEM_PS_INDEX", "0"}};
  variables.merge(job_.Mark());
  testing::TandemProcess server(Args{"ps", "--advertise", "127.0.0.1:1"}, variables, job_.File("."));
  // The six seconds bound the request to the wrong address, not the start of the server.
  TANDEM_ASSERT_OK(store->store()->Get("ps/0", testing::kTestTimeout));
  variables["RANK"] = "0";
  const Finished worker = testing::RunTandem({"train", "job.yaml", "--set", "train.timeout_seconds=6"},
                                             variables, job_.File("."));
  EXPECT_EQ(worker.exit_code, 1);
  EXPECT_THAT(worker.err, ContainsRegex("worker/0 server 0 \\(127.0.0.1:1\\): .*no answer within 6s"));
  EXPECT_EQ(Lines(worker.err).size(), 1u) << worker.err;
  // The server receives the reason and does not wait for its lease.
  EXPECT_EQ(server.Wait(), 1);
  EXPECT_THAT(server.err(), HasSubstr("the job failed: worker/0: server 0 (127.0.0.1:1)"));
}

TEST_F(WrongInputTest, OutputsThatCannotBeWrittenAreNamedBeforeTraining) {
  for (const char* flag : {"--report", "--predictions"}) {
    const Finished finished =
        ExpectError({flag, "nowhere/out"},
                    absl::StrCat(flag, " nowhere/out cannot be written: there is no such directory"));
    EXPECT_THAT(finished.out, Not(HasSubstr("epoch ")));
  }
  const Finished finished = ExpectError({"--set", "checkpoint.dir=log.tsv/here"},
                                        "checkpoints cannot be written to 'log.tsv/here': Not a directory");
  EXPECT_THAT(finished.out, Not(HasSubstr("epoch ")));
}

TEST_F(WrongInputTest, AFullDiskIsNamedAndLeavesNoCheckpoint) {
  ASSERT_EQ(::mkdir(job_.File("small").c_str(), 0755), 0);
  if (::mount("none", job_.File("small").c_str(), "tmpfs", 0, "size=8k") != 0) {
    GTEST_SKIP() << "a small file system needs the right to mount one";
  }
  ExpectError({"--set", "checkpoint.dir=small/ckpt"}, "the disk of small/ckpt/.* is full");
  const Finished list = job_.Run({"ckpt", "ls", "small/ckpt"});
  EXPECT_NE(list.exit_code, 0);
  EXPECT_THAT(list.err, HasSubstr("holds no checkpoint"));
  EXPECT_EQ(::umount(job_.File("small").c_str()), 0);
}

}  // namespace
}  // namespace tandem::integration
