// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::Lines;
using testing::ReadFile;
using testing::RunTandem;

// A model that `tandem train` has trained, and its directory.
class ScoreTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new testing::TempDir;
    std::ofstream data(dir_->File("clicks.csv"));
    data << "click,user,item,price\n";
    CounterRandom random(5, 5);
    for (int i = 0; i < 2000; ++i) {
      const uint64_t user = random.Below(30), item = random.Below(30);
      const double logit = (static_cast<double>(user % 5) - 2) + (static_cast<double>(item % 5) - 2);
      data << (random.UniformDouble() < 1 / (1 + std::exp(-logit)) ? 1 : 0) << ",u" << user << ",i" << item
           << "," << random.Below(100) << "\n";
    }
    data.close();
    std::ofstream(dir_->File("job.yaml"))
        << "name: clicks\ndata: {train: clicks.csv, label: click, sparse: [user, item], "
           "dense: [{column: price, transform: standardize}]}\n"
           "model: {kind: deepfm, dim: 4, hidden: [8], batch_norm: local}\ntrain: {batch_size: 128, epochs: "
           "2}\n"
           "checkpoint: {dir: ckpt}\n";
    const Finished trained =
        RunTandem({"train", "job.yaml", "--report", "report.json", "--predictions", "predictions.tsv"}, {},
                  dir_->path());
    ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
    report_ = new Json(Json::parse(ReadFile(dir_->File("report.json"))));
  }
  static void TearDownTestSuite() {
    delete dir_;
    delete report_;
  }

  static Finished Run(const std::vector<std::string>& args) { return RunTandem(args, {}, dir_->path()); }

  static testing::TempDir* dir_;
  static Json* report_;
};
testing::TempDir* ScoreTest::dir_ = nullptr;
Json* ScoreTest::report_ = nullptr;

TEST_F(ScoreTest, EvalRepeatsTheTestScoreOfTheTrainer) {
  const Finished finished = Run({"eval", "ckpt", "--json"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const Json json = Json::parse(finished.out);
  EXPECT_EQ(json["auc"], (*report_)["test"]["auc"]);
  EXPECT_EQ(json["logloss"], (*report_)["test"]["logloss"]);
  EXPECT_EQ(json["examples"], (*report_)["test"]["examples"]);
  EXPECT_EQ(json["split"], "test");
  const Finished text = Run({"eval", "ckpt", "--data", "clicks.csv", "--split", "valid"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("AUC"), HasSubstr("the valid split of clicks.csv")));
}

TEST_F(ScoreTest, EvalOfOneLabelHasNoAuc) {
  std::ofstream(dir_->File("ones.csv")) << "click,user,item,price\n1,u1,i1,3\n1,u2,i2,5\n";
  const Finished text = Run({"eval", "ckpt", "--data", "ones.csv"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("n/a: all labels are 1"));
  const Finished json = Run({"eval", "ckpt", "--data", "ones.csv", "--json"});
  EXPECT_TRUE(Json::parse(json.out)["auc"].is_null());
}

TEST_F(ScoreTest, PredictWritesARowForEachExample) {
  const Finished finished = Run({"predict", "ckpt", "--data", "clicks.csv", "-o", "scores.csv"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const std::vector<std::string> scores = Lines(ReadFile(dir_->File("scores.csv")));
  const std::vector<std::string> data = Lines(ReadFile(dir_->File("clicks.csv")));
  ASSERT_EQ(scores.size(), data.size());
  EXPECT_EQ(scores[0], "label,probability");
  for (size_t i = 1; i < scores.size(); ++i) EXPECT_EQ(scores[i][0], data[i][0]);

  // The test split in the order of the trainer's --predictions.
  const Finished test = Run({"predict", "ckpt", "--split", "test", "-o", "-"});
  ASSERT_EQ(test.exit_code, 0) << test.err;
  std::vector<std::string> expected = Lines(ReadFile(dir_->File("predictions.tsv")));
  for (std::string& line : expected) line[1] = ',';
  expected.insert(expected.begin(), "label,probability");
  EXPECT_EQ(Lines(test.out), expected);
}

TEST_F(ScoreTest, PredictKeepsColumnsToJoinTheScoresOn) {
  // The columns have another order than in training, and one that the model does not know.
  std::ofstream(dir_->File("join.csv"))
      << "price,note,item,user,click\n3,\"a, \"\"b\"\"\",i1,u1,1\n,plain,i2,u2,0\n";
  const Finished finished =
      Run({"predict", "ckpt", "--data", "join.csv", "--keep", "user,note", "-o", "joined.csv"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const Finished plain = Run({"predict", "ckpt", "--data", "join.csv", "-o", "-"});
  const std::vector<std::string> joined = Lines(ReadFile(dir_->File("joined.csv"))),
                                 scores = Lines(plain.out);
  ASSERT_EQ(joined.size(), 3u);
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_EQ(joined[0], "user,note," + scores[0]);
  EXPECT_EQ(joined[1], "u1,\"a, \"\"b\"\"\"," + scores[1]);
  EXPECT_EQ(joined[2], "u2,plain," + scores[2]);
  const Finished unknown =
      Run({"predict", "ckpt", "--data", "join.csv", "--keep", "session", "-o", "joined.csv"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("join.csv"), HasSubstr("kept column 'session'")));
}

TEST_F(ScoreTest, PredictLeavesNoLineOut) {
  std::ofstream(dir_->File("bad.csv")) << "click,user,item,price\n1,u1,i1,3\n1,u2,i2,nan\n";
  const Finished finished = Run({"predict", "ckpt", "--data", "bad.csv", "-o", "bad_scores.csv"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("bad.csv:3"), HasSubstr("nan")));
  EXPECT_FALSE(std::filesystem::exists(dir_->File("bad_scores.csv")));
  const Finished lenient =
      Run({"predict", "ckpt", "--data", "bad.csv", "--set", "data.nan=missing", "-o", "bad_scores.csv"});
  EXPECT_EQ(lenient.exit_code, 0) << lenient.err;
  EXPECT_EQ(Lines(ReadFile(dir_->File("bad_scores.csv"))).size(), 3u);
}

// The array of a .npy file: its header, and its values as bytes.
struct Npy {
  std::string header, values;
};
Npy ParseNpy(const std::string& bytes) {
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t size = static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9]);
  EXPECT_EQ((10 + size) % 64, 0u);
  return {bytes.substr(10, size), bytes.substr(10 + size)};
}

TEST_F(ScoreTest, ExportWritesTheRowsThatTheModelHas) {
  const Finished npy = Run({"ckpt", "export", "ckpt", "-o", "npy"});
  ASSERT_EQ(npy.exit_code, 0) << npy.err;
  const Json description = Json::parse(ReadFile(dir_->File("npy/export.json")));
  ASSERT_EQ(description["tables"].size(), 2u);
  EXPECT_EQ(description["tables"][0]["name"], "embedding");
  const size_t rows = description["tables"][0]["rows"];
  EXPECT_EQ(rows, 60u);
  EXPECT_EQ(description["inputs"][0]["column"], "price");
  const Npy ids = ParseNpy(ReadFile(dir_->File("npy/embedding.ids.npy")));
  const Npy values = ParseNpy(ReadFile(dir_->File("npy/embedding.rows.npy")));
  EXPECT_THAT(ids.header, HasSubstr("{'descr': '<u8', 'fortran_order': False, 'shape': (60,), }"));
  EXPECT_THAT(values.header, HasSubstr("'<f4', 'fortran_order': False, 'shape': (60, 4), }"));
  ASSERT_EQ(ids.values.size(), rows * 8);
  ASSERT_EQ(values.values.size(), rows * 16);
  const uint64_t wanted = HashBytes("u7", HashBytes("user"));
  bool found = false;
  for (size_t i = 0; i < rows; ++i) {
    uint64_t id;
    std::memcpy(&id, ids.values.data() + i * 8, 8);
    found = found || id == wanted;
  }
  EXPECT_TRUE(found);

  const Finished csv = Run({"ckpt", "export", "ckpt", "-o", "csv", "--format", "csv", "--optimizer-state"});
  ASSERT_EQ(csv.exit_code, 0) << csv.err;
  const std::vector<std::string> lines = Lines(ReadFile(dir_->File("csv/embedding.csv")));
  ASSERT_EQ(lines.size(), rows + 1);
  EXPECT_EQ(lines[0], "id,v0,v1,v2,v3,s0,s1,s2,s3");
  for (size_t i = 0; i < rows; ++i) {
    const std::vector<std::string> fields = absl::StrSplit(lines[i + 1], ',');
    ASSERT_EQ(fields.size(), 9u);
    uint64_t id;
    std::memcpy(&id, ids.values.data() + i * 8, 8);
    EXPECT_EQ(fields[0], absl::StrCat(id)) << "both formats have the same order";
    for (size_t d = 0; d < 4; ++d) {
      float expected, actual = 0;
      std::memcpy(&expected, values.values.data() + (i * 4 + d) * 4, 4);
      EXPECT_TRUE(absl::SimpleAtof(fields[1 + d], &actual));
      EXPECT_EQ(actual, expected);
    }
  }
}

TEST_F(ScoreTest, PythonReadsTheExportedArchive) {
  const Finished finished = Run({"ckpt", "export", "ckpt", "-o", "archive", "--optimizer-state"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  // Python's zipfile checks the archive's structure and checksums.
  const std::string script =
      absl::StrCat("import zipfile, sys; z = zipfile.ZipFile('", dir_->File("archive/dense.npz"),
                   "'); sys.exit(1 if z.testzip() else 0) if {'optimizer_steps.npy', 'deep.0.mean.npy'} <= "
                   "set(z.namelist()) else "
                   "sys.exit(2)");
  EXPECT_EQ(std::system(absl::StrCat("python3 -c \"", script, "\"").c_str()), 0);
}

TEST_F(ScoreTest, TheDocumentsPythonCodeComputesTheIds) {
  const std::string page = ReadFile(TANDEM_SCORING_PAGE);
  const std::string begin = "```python\n";
  const size_t code = page.find(begin) + begin.size();
  const std::string path = dir_->File("ids.py");
  std::ofstream(path) << page.substr(code, page.find("```", code) - code)
                      << "assert feature_id('user', 'u7') == " << HashBytes("u7", HashBytes("user"))
                      << "\nassert feature_id('c', 'a longer text') == "
                      << HashBytes("a longer text", HashBytes("c"))
                      << "\nassert index_id(12345) == " << Mix64(HashBytes("index"), 12345) << "\n";
  EXPECT_EQ(std::system(absl::StrCat("python3 ", path).c_str()), 0);
}

TEST_F(ScoreTest, CheckpointCommandsPrintJson) {
  const Json list = Json::parse(Run({"ckpt", "ls", "ckpt", "--json"}).out);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[1]["epoch"], 2);
  EXPECT_EQ(list[1]["metrics"]["valid_auc"], (*report_)["epochs"][1]["valid"]["auc"]);
  const Json digests = Json::parse(Run({"ckpt", "digest", "ckpt", "--json"}).out);
  ASSERT_EQ(digests.size(), 2u);
  EXPECT_EQ(digests[0]["tables"].size(), 2u);
  EXPECT_EQ(digests[0]["dense"].get<std::string>().size(), 16u);
  const Json verified = Json::parse(Run({"ckpt", "verify", "ckpt", "--json"}).out);
  ASSERT_EQ(verified.size(), 2u);
  EXPECT_EQ(verified[0]["good"], true);
}

}  // namespace
}  // namespace tandem::cli
