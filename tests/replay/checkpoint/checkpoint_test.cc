// SPDX-License-Identifier: Apache-2.0
#include "replay/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/checksummed_file.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/replay/items.h"
#include "tests/replay/server/replay_peer.h"
#include "tests/testing/mutate_message.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

std::shared_ptr<const Chunk> Share(std::unique_ptr<const Chunk> chunk) { return chunk; }

std::vector<SavedTable> SaveOf(const std::vector<std::shared_ptr<Table>>& tables) {
  std::vector<SavedTable> saved;
  for (const auto& table : tables) saved.emplace_back().snapshot = table->Snapshot();
  return saved;
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto first = Table::Create(TableOptions::Prioritized("first", 100, 1));
    auto second = Table::Create(TableOptions::Queue("second", 100));
    TANDEM_ASSERT_OK(first);
    TANDEM_ASSERT_OK(second);
    tables_ = {*first, *second};
    const auto layout = testing::IdLayout();
    for (int64_t c = 0; c < 10; ++c) {
      const auto chunk = testing::IdChunk(layout, 10 * c, 5);
      for (uint32_t i = 0; i < 4; ++i) {
        const NewItem item = testing::ItemOf(layout, chunk, i, 2, static_cast<double>(c + i));
        TANDEM_ASSERT_OK(tables_[0]->Insert({item}));
        TANDEM_ASSERT_OK(tables_[1]->Insert({item}));
      }
    }
    TANDEM_ASSERT_OK(tables_[0]->SampleItems({.batch = 7}));
    TANDEM_ASSERT_OK(tables_[1]->SampleItems({.batch = 7}));
  }
  std::string root() const { return directory_.path() + "/checkpoints"; }

  tandem::testing::TempDir directory_;
  std::vector<std::shared_ptr<Table>> tables_;
};

// Files of others have right CRCs and may say anything.
TEST_F(CheckpointTest, AFileThatSaysImpossibleThingsIsRestoredOrRefused) {
  auto paced = Table::Create(TableOptions::PacedQueue("paced", 4, 2));
  TANDEM_ASSERT_OK(paced);
  tables_.push_back(*paced);
  TANDEM_ASSERT_OK_AND_ASSIGN(const WrittenCheckpoint written, WriteCheckpoint(root(), SaveOf(tables_)));
  const auto rewrite_manifest = [&](v1::ReplayCheckpointManifest manifest) {
    for (v1::ReplayCheckpointFile& file : *manifest.mutable_files()) {
      const absl::StatusOr<std::string> bytes = ReadFile(written.directory + "/" + file.name());
      if (!bytes.ok()) continue;
      file.set_bytes(bytes->size());
      file.set_crc32(Crc32(*bytes));
    }
    std::string text;
    ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(manifest, &text));
    std::ofstream(written.directory + "/MANIFEST")
        << text << "# crc32 " << absl::StrCat(absl::Hex(Crc32(text)), "\n");
  };
  v1::ReplayCheckpointManifest manifest;
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string manifest_text, ReadFile(written.directory + "/MANIFEST"));
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      manifest_text.substr(0, manifest_text.rfind("# crc32")), &manifest));
  int refused = 0, all = 0;
  const auto read = [&] {
    ++all;
    absl::StatusOr<std::vector<SavedTable>> saved = ReadCheckpoint(written.directory, Share);
    bool ok = saved.ok();
    for (size_t t = 0; ok && t < saved->size(); ++t) {
      const auto restored = Table::Restore(std::move((*saved)[t].snapshot));
      ok = restored.ok();
      if (!ok) break;
      // What was restored can be used.
      (void)(*restored)->Info();
      (void)(*restored)->SampleItems({.batch = 1}, "test", MonotonicNow());
      (void)(*restored)->Insert({testing::IdItem(1000)}, "test", MonotonicNow());
    }
    refused += ok ? 0 : 1;
  };
  rewrite_manifest(manifest);
  read();
  ASSERT_EQ(refused, 0);
  for (size_t t = 0; t < tables_.size(); ++t) {
    const std::string path = absl::StrCat(written.directory, "/TABLE-", t);
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string good, ReadFile(path));
    v1::ReplayTableCheckpoint message;
    ASSERT_TRUE(message.ParseFromString(good));
    tandem::testing::ForEachMutation(message,
                                     [&](const google::protobuf::Message& bad, const std::string& what) {
                                       SCOPED_TRACE(what);
                                       std::ofstream(path, std::ios::binary) << bad.SerializeAsString();
                                       rewrite_manifest(manifest);
                                       read();
                                     });
    std::ofstream(path, std::ios::binary) << good;
  }
  // The head of the first chunk: its bytes, its steps and its CRC.
  const std::string chunks = written.directory + "/CHUNKS";
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string good, ReadFile(chunks));
  for (size_t at = 0; at < 16; ++at) {
    for (const int byte : {0, 1, 127, 255}) {
      std::string bad = good;
      bad[at] = static_cast<char>(byte);
      std::ofstream(chunks, std::ios::binary) << bad;
      rewrite_manifest(manifest);
      read();
    }
  }
  EXPECT_GT(refused, all / 4);
  for (const std::string& name : {std::string("../x"), std::string("/etc/passwd"), std::string("..")}) {
    v1::ReplayCheckpointManifest bad = manifest;
    bad.mutable_files(0)->set_name(name);
    rewrite_manifest(bad);
    EXPECT_THAT(ReadCheckpoint(written.directory, Share).status(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no name of a file")));
  }
}

TEST_F(CheckpointTest, NoFileIsReadThroughALinkThatLeadsOutNorFromAPipe) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const WrittenCheckpoint written, WriteCheckpoint(root(), SaveOf(tables_)));
  for (const char* name : {"MANIFEST", "CHUNKS", "TABLE-0"}) {
    const std::string path = absl::StrCat(written.directory, "/", name), moved = directory_.File("moved");
    std::filesystem::rename(path, moved);
    std::filesystem::create_symlink(moved, path);
    EXPECT_THAT(ReadCheckpoint(written.directory, Share).status(),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("symbolic link that leads out")))
        << name;
    std::filesystem::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_FALSE(ReadCheckpoint(written.directory, Share).ok()) << name;
    std::filesystem::remove(path);
    std::filesystem::rename(moved, path);
  }
  TANDEM_EXPECT_OK(ReadCheckpoint(written.directory, Share).status());
}

TEST_F(CheckpointTest, BringsTablesBackAndWritesEachChunkOnce) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const WrittenCheckpoint written, WriteCheckpoint(root(), SaveOf(tables_)));
  EXPECT_EQ(written.items, 40u + 33u);
  EXPECT_EQ(std::filesystem::file_size(written.directory + "/CHUNKS"), 10 * (16 + 5 * 8));
  EXPECT_EQ(*LatestCheckpoint(root()), written.directory);
  TANDEM_ASSERT_OK_AND_ASSIGN(std::vector<SavedTable> read, ReadCheckpoint(written.directory, Share));
  ASSERT_EQ(read.size(), 2u);
  for (size_t t = 0; t < 2; ++t) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto restored, Table::Restore(std::move(read[t].snapshot)));
    const TableInfo before = tables_[t]->Info(), after = restored->Info();
    EXPECT_EQ(after.options, before.options);
    EXPECT_EQ(after.items, before.items);
    EXPECT_EQ(after.bytes, before.bytes);
    EXPECT_EQ(after.mass, before.mass);
    EXPECT_EQ(after.diff, before.diff);
    TANDEM_ASSERT_OK_AND_ASSIGN(const Sample a, tables_[t]->SampleItems({.batch = 5}));
    TANDEM_ASSERT_OK_AND_ASSIGN(const Sample b, restored->SampleItems({.batch = 5}));
    EXPECT_EQ(testing::IdsOf(a), testing::IdsOf(b));
    TANDEM_ASSERT_OK(tables_[t]->Insert({testing::IdItem(1000)}));
    TANDEM_ASSERT_OK(restored->Insert({testing::IdItem(1000)}));
    // A key that the lost server may have given out is not given out again.
    const auto largest = [](const Table& table) {
      uint64_t key = 0;
      uint32_t next = 0;
      for (const ItemStore::Item& item : table.Peek(1000, &next)) key = std::max(key, item.key);
      return key;
    };
    EXPECT_GT(largest(*restored), largest(*tables_[t]));
  }
}

TEST_F(CheckpointTest, KeepsTheNewestAndRemovesUnfinishedOnes) {
  std::set<std::string> names;
  for (int i = 0; i < 4; ++i) {
    std::filesystem::create_directories(root() + "/unfinished-replay-000000000099");
    TANDEM_ASSERT_OK(WriteCheckpoint(root(), SaveOf(tables_), /*keep=*/2));
  }
  for (const auto& entry : std::filesystem::directory_iterator(root())) names.insert(entry.path().filename());
  EXPECT_THAT(names, ::testing::ElementsAre("replay-000000000003", "replay-000000000004"));
}

// A disk that takes `bytes` bytes.
class FullDisk : public WritableFile {
 public:
  FullDisk(std::unique_ptr<WritableFile> file, std::shared_ptr<int64_t> left)
      : file_(std::move(file)), left_(std::move(left)) {}
  absl::Status Append(absl::string_view bytes) override {
    *left_ -= static_cast<int64_t>(bytes.size());
    return *left_ < 0 ? absl::ResourceExhaustedError("the disk is full") : file_->Append(bytes);
  }
  absl::Status Sync() override { return file_->Sync(); }

 private:
  const std::unique_ptr<WritableFile> file_;
  const std::shared_ptr<int64_t> left_;
};

TEST_F(CheckpointTest, AnInterruptedOneIsNeverSeen) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const WrittenCheckpoint good, WriteCheckpoint(root(), SaveOf(tables_)));
  bool succeeded = false;
  for (int64_t bytes = 0; !succeeded; bytes += 300) {
    const auto left = std::make_shared<int64_t>(bytes);
    const auto written =
        WriteCheckpoint(root(), SaveOf(tables_), 2,
                        [&](const std::string& path) -> absl::StatusOr<std::unique_ptr<WritableFile>> {
                          auto file = OpenPosixFile(path);
                          if (!file.ok()) return file.status();
                          return std::make_unique<FullDisk>(*std::move(file), left);
                        });
    succeeded = written.ok();
    if (!succeeded) {
      EXPECT_THAT(written, StatusIs(absl::StatusCode::kResourceExhausted));
      EXPECT_EQ(*LatestCheckpoint(root()), good.directory);
    }
  }
}

TEST_F(CheckpointTest, EveryDamagedByteIsFound) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const WrittenCheckpoint written, WriteCheckpoint(root(), SaveOf(tables_)));
  for (const char* const file : {"MANIFEST", "CHUNKS", "TABLE-0", "TABLE-1"}) {
    const std::string name = file, path = written.directory + "/" + name;
    std::string bytes;
    {
      std::ifstream in(path, std::ios::binary);
      bytes.assign(std::istreambuf_iterator<char>(in), {});
    }
    const auto write = [&](const std::string& content) {
      std::ofstream(path, std::ios::binary | std::ios::trunc)
          .write(content.data(), static_cast<std::streamsize>(content.size()));
    };
    for (size_t at = 0; at + 1 < bytes.size(); at += 1 + bytes.size() / 25) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
      write(damaged);
      const auto read = ReadCheckpoint(written.directory, Share);
      EXPECT_FALSE(read.ok()) << name << " byte " << at;
      write(damaged.substr(0, at));
      EXPECT_THAT(ReadCheckpoint(written.directory, Share),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("remove its directory")))
          << name << " byte " << at;
    }
    std::filesystem::remove(path);
    EXPECT_THAT(ReadCheckpoint(written.directory, Share),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("does not exist")));
    write(bytes);
  }
  TANDEM_EXPECT_OK(ReadCheckpoint(written.directory, Share));
}

TEST_F(CheckpointTest, AServerRestoresItAndItsWritersGoOnExactlyOnce) {
  testing::ReplaceableServer server({.checkpoint_directory = root()});
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Uniform("replay", 1000, 1)));
  const auto writer = testing::IdWriter(&replay, "actor/0", 1);
  for (int64_t id = 0; id < 10; ++id) TANDEM_ASSERT_OK(testing::WriteId(*writer, "replay", id));
  v1::ReplaySaveCheckpointResponse saved;
  TANDEM_ASSERT_OK(replay.Call("SaveCheckpoint", v1::ReplaySaveCheckpointRequest(), &saved));
  EXPECT_EQ(saved.items(), 10u);
  for (int64_t id = 10; id < 17; ++id) TANDEM_ASSERT_OK(testing::WriteId(*writer, "replay", id));
  server.Restart();
  EXPECT_EQ(server.Info("replay").items(), 10u);
  for (int64_t id = 17; id < 20; ++id) TANDEM_ASSERT_OK(testing::WriteId(*writer, "replay", id));
  const v1::ReplayTableInfo info = server.Info("replay");
  EXPECT_EQ(info.items(), 13u);
  EXPECT_EQ(info.lost_items(), 7u);
  EXPECT_EQ(info.items() + info.lost_items(), 20u);
}

}  // namespace
}  // namespace tandem::replay
