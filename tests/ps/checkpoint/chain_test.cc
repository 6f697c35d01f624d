// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/chain.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksummed_file.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/digest.h"
#include "ps/checkpoint/export.h"
#include "ps/shard_map.h"
#include "ps/table.h"
#include "tests/ps/checkpoint/killed_process.h"
#include "tests/ps/checkpoint/trained_table.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

namespace fs = std::filesystem;
using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A row and its history, as a checkpoint has them.
struct SavedRow {
  std::vector<float> floats;
  uint32_t version, count;
  bool operator==(const SavedRow&) const = default;
};
// The content of a table: its rows by id, and the admission counters of its buckets.
struct Content {
  std::map<uint64_t, SavedRow> rows;
  std::vector<std::string> filters = std::vector<std::string>(kBuckets);
  bool operator==(const Content&) const = default;
};

Content ContentOf(TableStorage& storage) {
  Content content;
  for (uint32_t b = 0; b < kBuckets; ++b) {
    TANDEM_EXPECT_OK(storage.VisitBucket(b, [&](uint64_t id, const float* row, const RowHistory& history) {
      content.rows[id] = {{row, row + storage.row_floats()}, history.version, history.count};
    }));
    content.filters[b] = storage.SaveFilter(b);
  }
  return content;
}

absl::StatusOr<Content> ContentOf(const std::string& checkpoint) {
  TANDEM_ASSIGN_OR_RETURN(const auto reader, TableFileReader::Open(checkpoint + "/user.0-of-1.table"));
  TANDEM_ASSIGN_OR_RETURN(TableChain chain, TableChain::Open(reader.get()));
  Content content;
  for (const uint32_t b : chain.buckets()) {
    uint64_t previous = 0;
    const auto visit = [&](uint64_t id, const float* row, const RowHistory& history) {
      EXPECT_TRUE(previous == 0 || id > previous);
      previous = id;
      content.rows[id] = {{row, row + reader->header().row_floats()}, history.version, history.count};
    };
    TANDEM_ASSIGN_OR_RETURN(const BucketChanges rest, chain.ReadBucket(b, visit));
    EXPECT_TRUE(rest.whole);
    content.filters[b] = rest.filter;
  }
  return content;
}

struct Case {
  std::string name;
  v1::TableConfig config;
  RowsComeFrom rows_come_from = RowsComeFrom::kAdmission;
};

std::vector<Case> Cases() {
  std::vector<Case> cases = {{"plain", Table(Adagrad(0.1f))},
                             {"plain_from_pushes", Table(Adam(0.1f)), RowsComeFrom::kPushes}};
  v1::TableConfig quantised = Table(Adam(0.1f));
  quantised.set_row_type(v1::TableConfig::BF16);
  cases.push_back({"bf16", quantised});
  v1::TableConfig expiring = Table(Sgd(0.1f));
  *expiring.mutable_eviction() = EvictAfter(40);
  cases.push_back({"ttl", expiring});
  v1::TableConfig bounded = Table(Adagrad(0.1f));
  *bounded.mutable_eviction() = EvictLru();
  bounded.set_byte_budget(64 << 10);
  cases.push_back({"lru", bounded});
  v1::TableConfig counted = bounded;
  *counted.mutable_eviction() = EvictLfu();
  *counted.mutable_admission() = AdmitAfter(2, 20000);
  cases.push_back({"lfu_count", counted});
  v1::TableConfig spilling = bounded;
  spilling.set_spill(true);
  cases.push_back({"spill", spilling});
  return cases;
}

class Chain : public ::testing::Test {
 protected:
  // Saves a chain of `length` checkpoints: step 1, 2, ...
  void MakeChain(TrainedTable* run, uint64_t length) {
    for (uint64_t step = 1; step <= length; ++step) {
      run->Train(5, 500, 40);
      TANDEM_ASSERT_OK(run->Save(step));
    }
  }
  std::string PathOf(uint64_t step) const { return dir_.File(CheckpointName(step)); }
  std::vector<uint64_t> Steps() const {
    std::vector<uint64_t> steps;
    const absl::StatusOr<std::vector<CheckpointEntry>> found = ListCheckpoints(dir_.path());
    TANDEM_EXPECT_OK(found);
    for (const CheckpointEntry& entry : *found) steps.push_back(entry.step);
    return steps;
  }

  const TempDir dir_;
};

TEST_F(Chain, EveryCheckpointOfAChainHasTheRowsThatTheTableHad) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const TempDir dir;
    TrainedTable run(c.config, dir.path(), c.rows_come_from);
    std::map<std::string, Content> expected;
    for (uint64_t step = 1; step <= 12; ++step) {
      // Many updates, few, none; many ids, few.
      run.Train(step % 4 == 0   ? 0
                : step % 4 == 1 ? 30
                                : 3,
                step % 3 == 0 ? 60 : 3000, step % 2 == 0 ? 10 : 120);
      TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, run.Save(step, /*complete=*/step == 8));
      expected[path] = ContentOf(run.storage());
    }
    for (const auto& [path, content] : expected) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const Content read, ContentOf(path));
      ASSERT_EQ(read.rows.size(), content.rows.size()) << path;
      EXPECT_TRUE(read == content) << path;
      TANDEM_EXPECT_OK(VerifyCheckpoint(path));
      TANDEM_EXPECT_OK(VerifyLinks(path));
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto chain, ChainOf(dir.File(CheckpointName(7))));
    EXPECT_EQ(chain.size(), 7u);
  }
}

TEST_F(Chain, ADeltaOfOnePercentTakesLessThanATwentiethOfTheSpace) {
  for (const bool counted : {false, true}) {
    const TempDir dir;
    v1::TableConfig config = Table(Adagrad(0.1f));
    if (counted) *config.mutable_admission() = AdmitAfter(2, 1 << 16);
    TrainedTable run(config, dir.path(), RowsComeFrom::kPushes);
    constexpr uint64_t kIds = 40000;
    std::vector<uint64_t> ids(kIds);
    std::iota(ids.begin(), ids.end(), 0);
    const std::vector<float> gradients(ids.size() * kDim, 0.5f);
    for (int i = 0; i < 2; ++i) TANDEM_ASSERT_OK(run.storage().Apply(ids, gradients.data(), {}));
    // The rows of the last update before a cut count as changed.
    TANDEM_ASSERT_OK(run.storage().Apply({}, nullptr, {}));
    TANDEM_ASSERT_OK(run.Save(1));
    const uint64_t complete = run.bytes();
    std::vector<uint64_t> touched(kIds / 100);
    for (size_t i = 0; i < touched.size(); ++i) touched[i] = i * 97 % kIds;
    if (counted) touched.back() = kIds + 1;  // is refused, and counted
    TANDEM_ASSERT_OK(run.storage().Apply(touched, gradients.data(), {}));
    TANDEM_ASSERT_OK(run.Save(2));
    EXPECT_LT(run.bytes() * 20, complete) << "delta " << run.bytes();
    RecordProperty(counted ? "delta_counted" : "delta", absl::StrCat(run.bytes(), " of ", complete));
    TANDEM_ASSERT_OK_AND_ASSIGN(const Content read, ContentOf(dir.File(CheckpointName(2))));
    EXPECT_TRUE(read == ContentOf(run.storage()));
  }
}

TEST_F(Chain, DigestAndExportSeeTheWholeTable) {
  TrainedTable run(Table(Adagrad(0.1f)), dir_.path());
  MakeChain(&run, 3);
  TANDEM_ASSERT_OK_AND_ASSIGN(const CheckpointDigest of_chain, DigestCheckpoint(PathOf(3)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string complete, run.Save(4, /*complete=*/true));
  TANDEM_ASSERT_OK_AND_ASSIGN(const CheckpointDigest of_one, DigestCheckpoint(complete));
  EXPECT_EQ(of_chain.tables[0].digest, of_one.tables[0].digest);
  EXPECT_EQ(of_chain.tables[0].rows, of_one.tables[0].rows);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Exported from_chain, ExportCheckpoint(PathOf(3), dir_.File("a"), {}));
  TANDEM_ASSERT_OK(ExportCheckpoint(complete, dir_.File("b"), {}).status());
  EXPECT_EQ(from_chain.tables[0].rows, of_one.tables[0].rows);
  for (const std::string& file : from_chain.tables[0].files) {
    EXPECT_EQ(*ReadFile(dir_.File("a/" + file)), *ReadFile(dir_.File("b/" + file)));
  }
}

TEST_F(Chain, ABrokenLinkIsRefusedByName) {
  TrainedTable run(Table(Adagrad(0.1f)), dir_.path());
  MakeChain(&run, 4);
  // Step 2 is missing.
  fs::rename(PathOf(2), dir_.File("moved"));
  const auto refused =
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(PathOf(3)), HasSubstr(CheckpointName(2))));
  EXPECT_THAT(ContentOf(PathOf(4)), refused);
  EXPECT_THAT(ChainOf(PathOf(4)), refused);
  EXPECT_THAT(VerifyLinks(PathOf(4)), refused);
  EXPECT_THAT(DigestCheckpoint(PathOf(4)).status(), refused);
  EXPECT_THAT(CompactCheckpoint(PathOf(4)), refused);
  TANDEM_EXPECT_OK(ContentOf(PathOf(1)));
  // Another checkpoint has its name.
  TrainedTable other(Table(Adagrad(0.1f)), dir_.path());
  other.Train(5, 500, 40);
  TANDEM_ASSERT_OK(other.Save(20));
  fs::rename(PathOf(20), PathOf(2));
  EXPECT_THAT(ContentOf(PathOf(4)),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(PathOf(3)), HasSubstr("was replaced"))));
  EXPECT_THAT(VerifyLinks(PathOf(4)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("was replaced")));
  fs::remove_all(PathOf(2));
  fs::rename(dir_.File("moved"), PathOf(2));
  TANDEM_EXPECT_OK(ContentOf(PathOf(4)));
  // A row of the base is damaged.
  const std::string file = PathOf(1) + "/user.0-of-1.table";
  TANDEM_ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFile(file));
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_THAT(ContentOf(PathOf(4)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(file)));
  EXPECT_THAT(VerifyCheckpoint(PathOf(1)), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(Chain, AFullDiskAtAnyByteLeavesTheChainAsItWas) {
  // A file on a disk that has space for `room` more bytes.
  class SmallDisk : public WritableFile {
   public:
    SmallDisk(std::unique_ptr<WritableFile> file, size_t* room) : file_(std::move(file)), room_(*room) {}
    absl::Status Append(absl::string_view bytes) override {
      const size_t written = std::min(bytes.size(), room_);
      TANDEM_RETURN_IF_ERROR(file_->Append(bytes.substr(0, written)));
      room_ -= written;
      return written == bytes.size() ? absl::OkStatus() : absl::ResourceExhaustedError("the disk is full");
    }
    absl::Status Sync() override { return file_->Sync(); }

   private:
    const std::unique_ptr<WritableFile> file_;
    size_t& room_;
  };
  v1::TableConfig config = Table(Adagrad(0.1f));
  *config.mutable_eviction() = EvictAfter(10);
  TrainedTable run(config, dir_.path());
  MakeChain(&run, 2);
  const Content before = ContentOf(run.storage());
  run.Train(8, 500, 40);
  bool full = true;
  for (size_t room = 0; full; room += 1 + room / 4) {
    const OpenFile open = [&](const std::string& path) -> absl::StatusOr<std::unique_ptr<WritableFile>> {
      TANDEM_ASSIGN_OR_RETURN(auto file, OpenPosixFile(path));
      return std::make_unique<SmallDisk>(std::move(file), &room);
    };
    const size_t at = room;
    const absl::StatusOr<std::string> saved = run.Save(3, /*complete=*/false, open);
    full = !saved.ok();
    if (full) {
      EXPECT_THAT(saved, StatusIs(absl::StatusCode::kResourceExhausted));
      EXPECT_THAT(Steps(), ElementsAre(1, 2)) << at;
      TANDEM_ASSERT_OK_AND_ASSIGN(const Content read, ContentOf(PathOf(2)));
      ASSERT_TRUE(read == before) << at;
    }
    room = at;
  }
  // The save that succeeded builds on the last one before the failures.
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::CheckpointManifest manifest, ReadManifest(PathOf(3)));
  EXPECT_EQ(manifest.base(), CheckpointName(2));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Content read, ContentOf(PathOf(3)));
  EXPECT_TRUE(read == ContentOf(run.storage()));
}

TEST_F(Chain, PruningKeepsTheBasesOfWhatStays) {
  TrainedTable run(Table(Adagrad(0.1f)), dir_.path());
  MakeChain(&run, 4);
  TANDEM_ASSERT_OK(run.Save(5, /*complete=*/true));
  run.Train(1, 500, 10);
  TANDEM_ASSERT_OK(run.Save(6));
  TANDEM_ASSERT_OK(PruneCheckpoints(dir_.path(), 3, ""));
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3, 4, 5, 6));  // 4 needs 1, 2 and 3
  TANDEM_ASSERT_OK(PruneCheckpoints(dir_.path(), 1, PathOf(2)));
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 5, 6));
  TANDEM_ASSERT_OK(PruneCheckpoints(dir_.path(), 1, "", "another run"));
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 5, 6));
  TANDEM_ASSERT_OK(PruneCheckpoints(dir_.path(), 1, ""));
  EXPECT_THAT(Steps(), ElementsAre(5, 6));
  TANDEM_EXPECT_OK(ContentOf(PathOf(6)));
}

TEST_F(Chain, AManifestNamesTheBaseAndKeepsItWhenItIsUpdated) {
  TrainedTable run(Table(Adagrad(0.1f)), dir_.path());
  MakeChain(&run, 2);
  EXPECT_EQ(ReadManifest(PathOf(1))->format_version(), 1u);
  EXPECT_EQ(ReadManifest(PathOf(1))->base(), "");
  v1::CheckpointManifest update;
  update.set_epoch(5);
  TANDEM_ASSERT_OK(UpdateManifest(PathOf(2), update));
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::CheckpointManifest manifest, ReadManifest(PathOf(2)));
  EXPECT_EQ(manifest.epoch(), 5u);
  EXPECT_EQ(manifest.format_version(), 2u);
  EXPECT_EQ(manifest.base(), CheckpointName(1));
}

TEST_F(Chain, ACheckpointThatWouldReplaceItsOwnBaseIsNotCommitted) {
  TrainedTable run(Table(Adagrad(0.1f)), dir_.path());
  MakeChain(&run, 1);
  EXPECT_THAT(run.Save(1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("replaces")));
  TANDEM_EXPECT_OK(ContentOf(PathOf(1)));
}

TEST_F(Chain, CompactingMakesACheckpointCompleteInPlace) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const TempDir dir;
    const auto path = [&](uint64_t step) { return dir.File(CheckpointName(step)); };
    TrainedTable run(c.config, dir.path(), c.rows_come_from);
    for (uint64_t step = 1; step <= 5; ++step) {
      run.Train(10, 1000, 60);
      TANDEM_ASSERT_OK(run.Save(step));
    }
    const Content newest = ContentOf(run.storage());
    TANDEM_ASSERT_OK_AND_ASSIGN(const Content third, ContentOf(path(3)));
    fs::create_directory(dir.File("compacting-" + CheckpointName(3)));  // an earlier call was interrupted
    TANDEM_ASSERT_OK_AND_ASSIGN(const bool first, CompactCheckpoint(path(3)));
    EXPECT_TRUE(first);
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::CheckpointManifest manifest, ReadManifest(path(3)));
    EXPECT_EQ(manifest.base(), "");
    EXPECT_EQ(manifest.format_version(), 1u);
    EXPECT_EQ(manifest.step(), 3u);
    TANDEM_EXPECT_OK(VerifyCheckpoint(path(3)));
    EXPECT_FALSE(fs::exists(dir.File("compacting-" + CheckpointName(3))));
    // The earlier checkpoints are not needed any more; the later ones still build on it.
    TANDEM_ASSERT_OK(PruneCheckpoints(dir.path(), 1, ""));
    EXPECT_FALSE(fs::exists(path(2)));
    TANDEM_ASSERT_OK_AND_ASSIGN(const Content compacted, ContentOf(path(3)));
    EXPECT_TRUE(compacted == third);
    TANDEM_ASSERT_OK_AND_ASSIGN(const Content behind, ContentOf(path(5)));
    EXPECT_TRUE(behind == newest);
    TANDEM_ASSERT_OK_AND_ASSIGN(const bool again, CompactCheckpoint(path(3)));
    EXPECT_FALSE(again);
  }
}

TEST_F(Chain, CompactingWritesNothingOutsideTheDirectory) {
  TrainedTable run(Table(Adagrad(0.1f)), dir_.path());
  MakeChain(&run, 2);
  const std::string victim = dir_.File("victim");
  std::ofstream(victim) << "precious";
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::CheckpointManifest good, ReadManifest(PathOf(2)));
  const auto compact_with = [&](const std::string& name) {
    v1::CheckpointManifest bad = good;
    bad.add_files()->set_name(name);
    std::string text;
    EXPECT_TRUE(google::protobuf::TextFormat::PrintToString(bad, &text));
    std::ofstream(PathOf(2) + "/MANIFEST") << text << absl::StrFormat("# crc32: %08x\n", Crc32(text));
    EXPECT_THAT(CompactCheckpoint(PathOf(2)), StatusIs(absl::StatusCode::kDataLoss)) << name;
    EXPECT_EQ(*ReadFile(victim), "precious") << name;
    EXPECT_FALSE(fs::exists(dir_.File("compacting-" + CheckpointName(2)))) << name;
    EXPECT_TRUE(fs::exists(PathOf(2) + "/MANIFEST"));
  };
  compact_with("../victim");
  compact_with(victim);
  // Links to files and directories outside, and names under which files are written before they are whole.
  fs::create_symlink(victim, PathOf(2) + "/link");
  compact_with("link");
  fs::create_directory_symlink(dir_.path(), PathOf(2) + "/tmp");
  compact_with("tmp");
  fs::create_symlink(victim, PathOf(2) + "/user.0-of-1.table.tmp");
  compact_with("user.0-of-1.table.tmp");
  // The name of a table file that is a link.
  fs::create_symlink(PathOf(2) + "/user.0-of-1.table", PathOf(2) + "/other.0-of-1.table");
  compact_with("other.0-of-1.table");
}

TEST_F(Chain, CompactingACheckpointThatChangesMeanwhileIsGivenUp) {
  TrainedTable run(Table(Adagrad(0.1f)), dir_.path());
  MakeChain(&run, 2);
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::CheckpointManifest before, ReadManifest(PathOf(2)));
  v1::CheckpointManifest update = before;
  update.set_epoch(9);
  TANDEM_ASSERT_OK(UpdateManifest(PathOf(2), update));
  const std::string replacement = dir_.File("replacement");
  fs::create_directory(replacement);
  EXPECT_THAT(ReplaceByComplete(PathOf(2), replacement, before, {}),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("changed meanwhile")));
  EXPECT_EQ(ReadManifest(PathOf(2))->epoch(), 9u);
  TANDEM_ASSERT_OK(RemoveCheckpoint(PathOf(2)));
  EXPECT_THAT(ReplaceByComplete(PathOf(2), replacement, before, {}), StatusIs(absl::StatusCode::kAborted));
  EXPECT_FALSE(fs::exists(PathOf(2)));
}

TEST_F(Chain, TheNeighbourOfACheckpointIsFoundByAnyOfItsPaths) {
  EXPECT_EQ(RootOfCheckpoint("runs/a/step-000000000002"), "runs/a");
  EXPECT_EQ(RootOfCheckpoint("runs/a/step-000000000002/"), "runs/a");
  EXPECT_EQ(RootOfCheckpoint("step-000000000002"), ".");
  EXPECT_EQ(RootOfCheckpoint("."), "./..");
  TrainedTable run(Table(Adagrad(0.1f)), dir_.path());
  MakeChain(&run, 2);
  // As a server opens it, by a path that names the directory itself.
  fs::create_directory_symlink(PathOf(2), dir_.File("link"));
  fs::create_directory(dir_.File("elsewhere"));
  fs::rename(dir_.File("link"), dir_.File("elsewhere/link"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Content read, ContentOf(dir_.File("elsewhere/link")));
  EXPECT_TRUE(read == ContentOf(run.storage()));
}

TEST_F(Chain, AProcessThatIsKilledAtAnyPointOfADeltaLeavesTheChainReadable) {
  TrainedTable run(Table(Adagrad(0.1f)), dir_.path());
  MakeChain(&run, 3);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Content before, ContentOf(PathOf(3)));
  run.Train(2, 500, 40);
  const Content after = ContentOf(run.storage());
  int points = 0, committed = 0;
  for (;; ++points) {
    const std::optional<bool> killed =
        testing::KilledAtSystemCall(points + 1, [&] { run.Save(4).IgnoreError(); });
    if (!killed.has_value()) GTEST_SKIP() << "processes may not be traced here";
    // As another process finds it, before anything is repaired, and after.
    for (const bool repaired : {false, true}) {
      if (repaired) {
        TANDEM_ASSERT_OK(RepairCheckpoints(dir_.path()));
      }
      const std::vector<uint64_t> steps = Steps();
      ASSERT_GE(steps.size(), 3u) << points;
      TANDEM_ASSERT_OK_AND_ASSIGN(const Content read, ContentOf(PathOf(3)));
      ASSERT_TRUE(read == before) << points;
      if (steps.size() == 3) continue;
      committed += repaired ? 1 : 0;
      TANDEM_ASSERT_OK_AND_ASSIGN(const Content whole, ContentOf(PathOf(4)));
      ASSERT_TRUE(whole == after) << points;
    }
    if (!*killed) break;
    std::filesystem::remove_all(PathOf(4));
  }
  EXPECT_GT(points, 20);
  EXPECT_GE(committed, 1);
  RecordProperty("points", points);
  TANDEM_EXPECT_OK(VerifyLinks(PathOf(4)));
}

TEST_F(Chain, ACompactionThatIsKilledAtAnyPointLeavesTheCheckpointReadable) {
  TrainedTable run(Table(Adagrad(0.1f)), dir_.path());
  MakeChain(&run, 3);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Content expected, ContentOf(PathOf(3)));
  int points = 0;
  for (;; ++points) {
    const TempDir copy;
    fs::copy(dir_.path(), copy.path(), fs::copy_options::recursive);
    const std::string path = copy.File(CheckpointName(3));
    const std::optional<bool> killed =
        testing::KilledAtSystemCall(points + 1, [&] { CompactCheckpoint(path).status().IgnoreError(); });
    if (!killed.has_value()) GTEST_SKIP() << "processes may not be traced here";
    for (const bool repaired : {false, true}) {
      if (repaired) {
        TANDEM_ASSERT_OK(RepairCheckpoints(copy.path()));
      }
      if (!repaired && !fs::exists(path)) continue;  // the moment between two renames
      TANDEM_ASSERT_OK_AND_ASSIGN(const Content read, ContentOf(path));
      ASSERT_TRUE(read == expected) << points;
    }
    TANDEM_ASSERT_OK(CompactCheckpoint(path).status());
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto chain, ChainOf(path));
    EXPECT_EQ(chain.size(), 1u);
    if (!*killed) break;
  }
  EXPECT_GT(points, 20);
}

}  // namespace
}  // namespace tandem::ps
