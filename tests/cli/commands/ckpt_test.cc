// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/format.h"
#include "ps/table.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::Lines;
using ::testing::Not;
using testing::RunTandem;

// Writes a checkpoint that has only the workers' part. Returns its path.
std::string MakeCheckpoint(const std::string& root, uint64_t step, double auc) {
  absl::StatusOr<std::string> unfinished = ps::BeginCheckpoint(root, step);
  TANDEM_EXPECT_OK(unfinished);
  ps::v1::DenseState dense;
  dense.set_optimizer("adam");
  dense.set_optimizer_state(std::string(5000, 'x'));
  TANDEM_EXPECT_OK(ps::WriteDenseState(*unfinished, dense));
  ps::v1::CheckpointManifest manifest;
  manifest.set_job_name("insteval");
  manifest.set_model("wide_deep");
  manifest.set_step(step);
  manifest.set_epoch(step / 100);
  manifest.set_unix_millis(1700000000000);
  (*manifest.mutable_metrics())["valid_auc"] = auc;
  (*manifest.mutable_metrics())["schedule.best"] = 1;
  absl::StatusOr<std::string> path = ps::CommitCheckpoint(*unfinished, manifest);
  TANDEM_EXPECT_OK(path);
  return path.value_or("");
}

TEST(CkptTest, ListsCheckpointsOldestFirst) {
  testing::TempDir dir;
  MakeCheckpoint(dir.path(), 200, 0.75);
  MakeCheckpoint(dir.path(), 100, 0.5);
  const Finished finished = RunTandem({"ckpt", "ls", dir.path()}, {{"TZ", "UTC"}});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::vector<std::string> lines = Lines(finished.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("step"), HasSubstr("epoch"), HasSubstr("metrics")));
  EXPECT_THAT(lines[1],
              AllOf(::testing::StartsWith("100 "), HasSubstr("valid_auc=0.5 "), HasSubstr("wide_deep"),
                    Not(HasSubstr("schedule")), HasSubstr("2023-11-14 22:13:20"), HasSubstr("KiB")));
  EXPECT_THAT(lines[2], AllOf(::testing::StartsWith("200 "), HasSubstr("auc=0.75")));
}

TEST(CkptTest, OneCheckpointIsListedByItself) {
  testing::TempDir dir;
  const std::string path = MakeCheckpoint(dir.path(), 200, 0.75);
  MakeCheckpoint(dir.path(), 300, 0.8);
  const Finished finished = RunTandem({"ckpt", "ls", path});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(Lines(finished.out).size(), 2u);
}

TEST(CkptTest, VerifyFindsDamage) {
  testing::TempDir dir;
  const std::string good = MakeCheckpoint(dir.path(), 100, 0.5), bad = MakeCheckpoint(dir.path(), 200, 0.5);
  Finished finished = RunTandem({"ckpt", "verify", dir.path()});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.out, good + ": good\n" + bad + ": good\n");

  std::filesystem::resize_file(bad + "/DENSE", 4000);
  finished = RunTandem({"ckpt", "verify", dir.path()});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_EQ(finished.out, good + ": good\n" + bad + ": DAMAGED\n");
  EXPECT_THAT(finished.err, HasSubstr("DENSE"));

  std::ofstream(good + "/MANIFEST") << "nonsense";
  finished = RunTandem({"ckpt", "verify", good});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("MANIFEST"));
}

// Saves checkpoints of steps 1 to `length`, each of which builds on the one before. Returns their paths.
std::vector<std::string> MakeChain(const std::string& root, uint64_t length) {
  v1::TableFileHeader header;
  *header.mutable_config() = ps::EmbeddingTable("user", 4, ps::Adagrad(0.1f), ps::Uniform(-1, 1));
  header.set_num_servers(1);
  header.set_num_buckets(4);
  header.add_worker_clock(0);
  const auto storage = ps::TableStorage::Create(
      header.config(), 4, [](uint32_t) { return true; }, nullptr, ps::RowsComeFrom::kPushes);
  header.set_row_floats(storage->row_floats());
  std::vector<std::string> paths;
  for (uint64_t step = 1; step <= length; ++step) {
    // The first checkpoint has 1000 rows, each further one changes 10.
    std::vector<uint64_t> ids(step == 1 ? 1000 : 10);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = i * step;
    const std::vector<float> gradients(ids.size() * 4, 1.0f);
    TANDEM_EXPECT_OK(storage->Apply(ids, gradients.data(), {}));
    TANDEM_EXPECT_OK(storage->Apply({}, nullptr, {}));
    const absl::StatusOr<std::string> unfinished = ps::BeginCheckpoint(root, step);
    TANDEM_EXPECT_OK(unfinished);
    header.set_version(storage->clock());
    header.set_save_id(step);
    if (step > 1) {
      header.mutable_base()->set_checkpoint(ps::CheckpointName(step - 1));
      header.mutable_base()->set_save_id(step - 1);
    }
    const std::atomic<bool> cancel{false};
    const absl::StatusOr<ps::TableFileSummary> summary =
        ps::WriteTableFile(*unfinished + "/user.0-of-1.table", header, {0, 1, 2, 3}, *storage, cancel);
    TANDEM_EXPECT_OK(summary);
    TANDEM_EXPECT_OK(ps::WriteDenseState(*unfinished, {}));
    v1::SavedFile written;
    written.set_name("user.0-of-1.table");
    written.set_bytes(summary->bytes);
    written.set_crc32(summary->crc32);
    written.set_footer_crc32(summary->footer_crc32);
    written.set_base(header.base().checkpoint());
    v1::CheckpointManifest manifest;
    manifest.set_step(step);
    absl::StatusOr<std::string> path = ps::CommitCheckpoint(*unfinished, manifest, {&written, 1});
    TANDEM_EXPECT_OK(path);
    paths.push_back(path.value_or(""));
    storage->MarkCut();
  }
  return paths;
}

TEST(CkptTest, AChainIsListedShownVerifiedAndCompacted) {
  testing::TempDir dir;
  const std::vector<std::string> paths = MakeChain(dir.path(), 3);
  Finished finished = RunTandem({"ckpt", "ls", dir.path()});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  std::vector<std::string> lines = Lines(finished.out);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(lines[0], HasSubstr("builds on"));
  EXPECT_THAT(lines[1], HasSubstr(" -  "));
  EXPECT_THAT(lines[3], HasSubstr(" 2  "));
  finished = RunTandem({"ckpt", "show", dir.path()});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, AllOf(HasSubstr(paths[2]), HasSubstr("3 checkpoints are needed"),
                                  HasSubstr("steps 3, 2, 1"), HasSubstr("user.0-of-1.table")));
  EXPECT_THAT(Lines(finished.out).back(), HasSubstr(" 10 "));
  finished = RunTandem({"ckpt", "show", paths[1], "--json"});
  EXPECT_THAT(finished.out, AllOf(HasSubstr("\"base\": \"step-000000000001\""), HasSubstr("\"rows\": 10")));

  const std::string file = paths[0] + "/user.0-of-1.table";
  const uint64_t size = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, size - 1);
  finished = RunTandem({"ckpt", "verify", dir.path()});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_EQ(finished.out,
            absl::StrCat(paths[0], ": DAMAGED\n", paths[1], ": DAMAGED\n", paths[2], ": DAMAGED\n"));
  EXPECT_EQ(RunTandem({"ckpt", "compact", paths[2]}).exit_code, 1);
  std::filesystem::rename(paths[0], dir.File("away"));
  finished = RunTandem({"ckpt", "verify", paths[2]});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, AllOf(HasSubstr(paths[1]), HasSubstr("step-000000000001")));
  std::filesystem::rename(dir.File("away"), paths[0]);
}

TEST(CkptTest, CompactingLeavesTheDigestsAsTheyWere) {
  testing::TempDir dir;
  const std::vector<std::string> paths = MakeChain(dir.path(), 4);
  const std::string digests = RunTandem({"ckpt", "digest", dir.path()}).out;
  Finished finished = RunTandem({"ckpt", "compact", paths[2]});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, AllOf(HasSubstr(paths[2]), HasSubstr("needs no other checkpoint")));
  EXPECT_EQ(RunTandem({"ckpt", "digest", dir.path()}).out, digests);
  EXPECT_EQ(RunTandem({"ckpt", "verify", dir.path()}).exit_code, 0);
  EXPECT_THAT(RunTandem({"ckpt", "show", paths[3]}).out, HasSubstr("2 checkpoints are needed"));
  EXPECT_THAT(RunTandem({"ckpt", "compact", paths[2]}).out, HasSubstr("complete already"));
}

TEST(CkptTest, DirectoriesWithoutCheckpointsAreNamed) {
  testing::TempDir dir;
  for (const char* command : {"ls", "verify"}) {
    Finished finished = RunTandem({"ckpt", command, dir.path()});
    EXPECT_EQ(finished.exit_code, 1);
    EXPECT_THAT(finished.err, AllOf(HasSubstr("holds no checkpoint"), HasSubstr(dir.path())));
    finished = RunTandem({"ckpt", command, dir.File("nowhere")});
    EXPECT_EQ(finished.exit_code, 1);
    EXPECT_THAT(finished.err, HasSubstr("there is no directory"));
  }
}

}  // namespace
}  // namespace tandem::cli
