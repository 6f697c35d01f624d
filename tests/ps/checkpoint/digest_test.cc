// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/digest.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/format.h"
#include "ps/table.h"
#include "tests/ps/checkpoint/map_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::testing::HasSubstr;
using Rows = MapStorage::Rows;

constexpr uint32_t kDigestBuckets = 8;

class DigestTest : public ::testing::Test {
 protected:
  DigestTest() {
    for (uint64_t i = 0; i < 40; ++i) rows_[i * 1000003] = {1.0f * i, 2.0f * i, -1.0f * i};
  }
  // Writes a checkpoint of `rows` as that many servers would, and returns its path.
  std::string Save(const Rows& rows, uint32_t servers, float dense_value = 1) {
    absl::StatusOr<std::string> unfinished = BeginCheckpoint(dir_.File(absl::StrCat("root", ++roots_)), 7);
    TANDEM_EXPECT_OK(unfinished);
    MapStorage storage(kDigestBuckets, rows);
    const std::atomic<bool> cancel = false;
    for (uint32_t s = 0; s < servers; ++s) {
      v1::TableFileHeader header;
      *header.mutable_config() = EmbeddingTable("user", 2, RowwiseAdagrad(0.1f), Zeros());
      header.set_server_index(s);
      header.set_num_servers(servers);
      header.set_num_buckets(kDigestBuckets);
      header.set_row_floats(MapStorage::kRowFloats);
      header.add_worker_clock(7);
      std::vector<uint32_t> buckets;
      for (uint32_t b = s; b < kDigestBuckets; b += servers) buckets.push_back(b);
      const std::string path = absl::StrCat(*unfinished, "/", TableFileName("user", s, servers));
      TANDEM_EXPECT_OK(WriteTableFile(path, header, buckets, storage, cancel));
    }
    v1::DenseState dense;
    dense.add_parameters()->set_values(
        std::string(reinterpret_cast<const char*>(&dense_value), sizeof(float)));
    TANDEM_EXPECT_OK(WriteDenseState(*unfinished, dense));
    absl::StatusOr<std::string> path = CommitCheckpoint(*unfinished, {});
    TANDEM_EXPECT_OK(path);
    return path.value_or("");
  }
  // (table digest, dense digest)
  std::pair<uint64_t, uint64_t> Digest(const std::string& path) {
    const absl::StatusOr<CheckpointDigest> digest = DigestCheckpoint(path);
    TANDEM_EXPECT_OK(digest);
    EXPECT_EQ(digest->tables.size(), 1u);
    EXPECT_EQ(digest->tables[0].table, "user");
    EXPECT_EQ(digest->tables[0].rows, rows_.size());
    return {digest->tables[0].digest, digest->dense};
  }

  testing::TempDir dir_;
  int roots_ = 0;
  Rows rows_;
};

TEST_F(DigestTest, DoesNotDependOnTheNumberOfServers) {
  const auto one = Digest(Save(rows_, 1));
  for (uint32_t servers : {2u, 3u, 8u}) EXPECT_EQ(Digest(Save(rows_, servers)), one) << servers;
}

TEST_F(DigestTest, ChangesWithEveryBitOfARowAndWithItsPlace) {
  const auto was = Digest(Save(rows_, 2));
  Rows changed = rows_;
  changed[1000003][2] = -0.99999994f;  // optimizer state, the next float
  EXPECT_NE(Digest(Save(changed, 2)).first, was.first);
  Rows swapped = rows_;
  std::swap(swapped[1000003], swapped[2000006]);
  EXPECT_NE(Digest(Save(swapped, 2)).first, was.first);
  const auto dense = Digest(Save(rows_, 2, /*dense_value=*/2));
  EXPECT_EQ(dense.first, was.first);
  EXPECT_NE(dense.second, was.second);
}

TEST_F(DigestTest, FilesOfPyTorchAreCoveredExceptThoseThatDescribeTheRun) {
  const auto save = [&](const std::string& tensors, const std::string& description) {
    const std::string root = dir_.File(absl::StrCat("root", ++roots_));
    const absl::StatusOr<std::string> unfinished = BeginCheckpoint(root, 7);
    TANDEM_EXPECT_OK(unfinished);
    TANDEM_EXPECT_OK(WriteDenseState(*unfinished, {}));
    for (const auto& [name, content] : {std::pair<std::string, std::string>{"__1_0.distcp", "b"},
                                        {"__0_0.distcp", tensors},
                                        {".metadata", description},
                                        {"TORCH.json", description}}) {
      std::ofstream(absl::StrCat(*unfinished, "/", name)) << content;
    }
    const absl::StatusOr<std::string> path = CommitCheckpoint(*unfinished, {});
    TANDEM_EXPECT_OK(path);
    return DigestCheckpoint(*path).value().torch;
  };
  const std::vector<TorchFileDigest> was = save("tensors", "one run");
  ASSERT_EQ(was.size(), 2u);
  EXPECT_EQ(was[0].name, "__0_0.distcp");
  EXPECT_EQ(was[0].bytes, 7u);
  EXPECT_EQ(was[1].name, "__1_0.distcp");
  EXPECT_EQ(save("tensors", "another run")[0].digest, was[0].digest);
  const std::vector<TorchFileDigest> changed = save("tensort", "one run");
  EXPECT_NE(changed[0].digest, was[0].digest);
  EXPECT_EQ(changed[1].digest, was[1].digest);
}

TEST_F(DigestTest, DamageAndMissingFilesAreNamed) {
  const std::string cut = Save(rows_, 2);
  std::filesystem::resize_file(cut + "/user.1-of-2.table", 300);
  EXPECT_THAT(std::string(DigestCheckpoint(cut).status().message()), HasSubstr("user.1-of-2.table"));
  const std::string gone = Save(rows_, 2);
  std::filesystem::remove(gone + "/DENSE");
  EXPECT_THAT(std::string(DigestCheckpoint(gone).status().message()), HasSubstr("DENSE"));
  EXPECT_FALSE(DigestCheckpoint(dir_.File("nowhere")).ok());
}

}  // namespace
}  // namespace tandem::ps
