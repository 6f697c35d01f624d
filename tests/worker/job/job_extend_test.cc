// SPDX-License-Identifier: Apache-2.0
// A job file may extend another one, and its relative paths are relative to itself.

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/job/job_parser.h"

namespace tandem::worker {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JobExtendTest : public ::testing::Test {
 protected:
  JobExtendTest() { std::filesystem::create_directory(dir_.File("sub")); }

  void Write(const std::string& name, const std::string& text) { std::ofstream(dir_.File(name)) << text; }
  absl::StatusOr<JobSpec> Load(const std::string& name, std::vector<std::string> overrides = {}) {
    return LoadJob(dir_.File(name), overrides);
  }
  std::string Errors(const std::string& name, std::vector<std::string> overrides = {}) {
    const absl::Status status = Load(name, std::move(overrides)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  testing::TempDir dir_;
};

constexpr char kBase[] = R"(name: base
data: {train: a.csv, label: y, sparse: [s]}
model: {kind: dlrm, dim: 8, hidden: [32]}
optimizer: {kind: adagrad, lr: 0.5, initial_accumulator: 0.1}
train: {batch_size: 64, epochs: 3}
)";

TEST_F(JobExtendTest, MappingsAreMergedAndOtherValuesReplaced) {
  Write("base.yaml", kBase);
  Write("x.yaml",
        "extend: base.yaml\nname: x\ndata: {sparse: [t, u]}\nmodel: {kind: deepfm, hidden: [8, 4]}\n"
        "train: {epochs: 5}\nembedding: {l2: 0.5}\n");
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec job, Load("x.yaml"));
  EXPECT_EQ(job.name, "x");
  EXPECT_EQ(job.data.schema.label, "y");
  ASSERT_EQ(job.data.schema.sparse.size(), 2u);
  EXPECT_EQ(job.data.schema.sparse[1].column, "u");
  EXPECT_EQ(job.model.kind, "deepfm");
  EXPECT_EQ(job.model.dim, 8);
  EXPECT_THAT(job.model.hidden, ElementsAre(8, 4));
  EXPECT_EQ(job.optimizer.kind, "adagrad");
  EXPECT_EQ(job.train.batch_size, 64u);
  EXPECT_EQ(job.train.epochs, 5);
  EXPECT_EQ(job.embedding.optimizer.l2(), 0.5f);
  // A printed job is complete.
  EXPECT_THAT(JobToYaml(job), ::testing::Not(HasSubstr("extend")));
}

TEST_F(JobExtendTest, AGroupOfAnotherKindReplacesTheGroup) {
  Write("base.yaml", kBase);
  Write("x.yaml", "extend: base.yaml\noptimizer: {kind: sgd, l2: 0.25}\n");
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec job, Load("x.yaml"));
  EXPECT_EQ(job.optimizer.kind, "sgd");
  EXPECT_EQ(job.optimizer.l2, 0.25f);
  EXPECT_EQ(job.schedule.base, 0.001);  // not the base's 0.5
}

TEST_F(JobExtendTest, AGlobalBatchReplacesThatOfAWorker) {
  Write("base.yaml", kBase);
  Write("x.yaml", "extend: base.yaml\ntrain: {global_batch_size: 4096}\n");
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec job, Load("x.yaml"));
  EXPECT_EQ(job.train.global_batch_size, 4096u);
  EXPECT_EQ(job.train.epochs, 3);
}

TEST_F(JobExtendTest, FilesExtendFilesAndPathsAreRelativeToTheirOwn) {
  Write("base.yaml", kBase);
  Write("sub/middle.yaml", "extend: ../base.yaml\ndata: {valid: v.csv}\n");
  Write("x.yaml", "extend: sub/middle.yaml\ndata: {test: [/t.csv, u.csv]}\ncheckpoint: {dir: out}\n");
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec job, Load("x.yaml", {"train.epochs=9"}));
  EXPECT_THAT(job.data.train_files, ElementsAre(dir_.File("sub/../a.csv")));
  EXPECT_THAT(job.data.valid_files, ElementsAre(dir_.File("sub/v.csv")));
  EXPECT_THAT(job.data.test_files, ElementsAre("/t.csv", dir_.File("u.csv")));
  EXPECT_EQ(job.checkpoint.dir, dir_.File("out"));
  EXPECT_EQ(job.train.epochs, 9);
}

TEST_F(JobExtendTest, PathsOfOverridesAndVariablesAreRelativeToTheCurrentDirectory) {
  ::unsetenv("TANDEM_TEST_UNSET");
  Write("x.yaml",
        "data: {train: '${TANDEM_TEST_UNSET:-a.csv}', label: y, sparse: [s], valid: v.csv}\nmodel: lr\n");
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec job, Load("x.yaml", {"data.valid=w.csv"}));
  EXPECT_THAT(job.data.train_files, ElementsAre("a.csv"));
  EXPECT_THAT(job.data.valid_files, ElementsAre("w.csv"));
  EXPECT_EQ(job.checkpoint.dir, "runs/job");  // the default is no path of the file
  // A printed job has resolved paths, so that it may be parsed from anywhere below the same directory.
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec plain, Load("x.yaml"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec again, ParseJob(JobToYaml(plain), "printed"));
  EXPECT_EQ(again.data.valid_files, plain.data.valid_files);
}

TEST_F(JobExtendTest, ErrorsNameTheFileThatHasTheLine) {
  Write("base.yaml", absl::StrCat(kBase, "wide: {row_type: f8}\nembedding:\n  row_type: f9\n"));
  Write("x.yaml", "extend: base.yaml\nembedding:\n  pooling: nobody\ntrain: {epochs: 0}\n");
  const std::string errors = Errors("x.yaml", {"train.seed=-1"});
  EXPECT_THAT(errors, HasSubstr(absl::StrCat(dir_.File("base.yaml"), ":6: field 'row_type' in 'wide'")));
  EXPECT_THAT(errors, HasSubstr(absl::StrCat(dir_.File("base.yaml"), ":8: field 'row_type' in 'embedding'")));
  EXPECT_THAT(errors, HasSubstr(absl::StrCat(dir_.File("x.yaml"), ":3: field 'pooling' in 'embedding'")));
  EXPECT_THAT(errors, HasSubstr(absl::StrCat(dir_.File("x.yaml"), ":4: field 'epochs' in 'train'")));
  EXPECT_THAT(errors, HasSubstr("--set train.seed=-1: field 'seed'"));
  // An override of a field of the other file is to blame for itself.
  Write("good.yaml", kBase);
  Write("y.yaml", "extend: good.yaml\n");
  EXPECT_THAT(Errors("y.yaml", {"train.epochs=0"}),
              ::testing::StartsWith("--set train.epochs=0: field 'epochs'"));
}

TEST_F(JobExtendTest, PipesAndDevicesAreNotExtended) {
  ASSERT_EQ(::mkfifo(dir_.File("pipe").c_str(), 0600), 0);
  Write("job.yaml", "extend: pipe\n");
  EXPECT_THAT(Errors("job.yaml"), HasSubstr("pipe is not a regular file"));
  Write("job.yaml", "extend: /dev/zero\n");
  EXPECT_THAT(Errors("job.yaml"), HasSubstr("/dev/zero is not a regular file"));
}

TEST_F(JobExtendTest, WhatCannotBeExtendedIsNamed) {
  Write("x.yaml", "name: x\nextend: nowhere.yaml\n");
  EXPECT_THAT(Errors("x.yaml"), HasSubstr(absl::StrCat(dir_.File("x.yaml"), ":2: field 'extend': ")));
  EXPECT_THAT(Errors("x.yaml"), HasSubstr("nowhere.yaml"));
  Write("x.yaml", "extend: x.yaml\n");
  EXPECT_THAT(Errors("x.yaml"), HasSubstr("more than 16 files extend each other; does one extend itself?"));
  Write("x.yaml", "extend: [a, b]\n");
  EXPECT_THAT(Errors("x.yaml"), HasSubstr("field 'extend' must be the path of a job file"));
  Write("broken.yaml", "name: [\n");
  Write("x.yaml", "extend: broken.yaml\n");
  EXPECT_THAT(Errors("x.yaml"), HasSubstr(absl::StrCat(dir_.File("broken.yaml"), ":")));
  Write("empty.yaml", "");
  Write("x.yaml", "extend: empty.yaml\n");
  EXPECT_THAT(Errors("x.yaml"), HasSubstr(absl::StrCat(dir_.File("empty.yaml"), ": the job file is empty")));
  Write("good.yaml", kBase);
  EXPECT_THAT(Errors("good.yaml", {"extend=base.yaml"}),
              HasSubstr("field 'extend' can only be given in a job file"));
}

}  // namespace
}  // namespace tandem::worker
