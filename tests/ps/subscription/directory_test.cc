// SPDX-License-Identifier: Apache-2.0
// A directory that a subscription writes has every row, whenever the writer dies, and readers follow it.

#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/chain.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/shard_map.h"
#include "ps/subscription/directory_follower.h"
#include "ps/subscription/directory_writer.h"
#include "ps/table.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;

constexpr uint32_t kNumbers = 2;
constexpr uint32_t kBuckets = 4;

using TableRows = std::map<uint64_t, std::vector<float>>;

uint32_t BucketHere(uint64_t id) { return BucketOf(id, kBuckets); }

// Changes a table at random, and tells what it has changed as a subscription does.
class Source {
 public:
  ChangeBatch All() {
    ChangeBatch batch{.complete = true, .num_buckets = kBuckets};
    batch.tables.push_back(EmbeddingTable("user", kNumbers, Adam(0.1f), Zeros()));
    for (uint32_t b = 0; b < kBuckets; ++b) {
      RowChanges& changes = batch.changes.emplace_back(
          RowChanges{.table = "user", .bucket = b, .whole = true, .dim = kNumbers});
      for (const auto& [id, row] : rows_) {
        if (BucketHere(id) == b) Put(id, row, &changes);
      }
    }
    return batch;
  }
  ChangeBatch Change() {
    CounterRandom random(3, ++calls_);
    ChangeBatch batch{.complete = true, .num_buckets = kBuckets};
    const auto bucket = static_cast<uint32_t>(random.Below(kBuckets));
    RowChanges& changes =
        batch.changes.emplace_back(RowChanges{.table = "user", .bucket = bucket, .dim = kNumbers});
    for (uint64_t id = 0; id < 100; ++id) {
      if (BucketHere(id) != bucket) continue;
      const uint64_t what = random.Below(6);
      if (what == 0 && rows_.erase(id) > 0) changes.removed.push_back(id);
      if (what != 1) continue;
      rows_[id] = {static_cast<float>(random.Normal()), static_cast<float>(random.Normal())};
      Put(id, rows_[id], &changes);
    }
    return batch;
  }
  const TableRows& rows() const { return rows_; }

 private:
  static void Put(uint64_t id, const std::vector<float>& row, RowChanges* changes) {
    changes->ids.push_back(id);
    changes->rows.insert(changes->rows.end(), row.begin(), row.end());
  }
  TableRows rows_;
  uint64_t calls_ = 0;
};

// Follows a directory into a map.
struct Reader {
  explicit Reader(const std::string& root) : follower(root) {}
  absl::Status CatchUp() {
    while (true) {
      TANDEM_ASSIGN_OR_RETURN(
          const bool more, follower.Next([&](const v1::TableConfig&, const RowChanges& changes) {
            if (changes.whole) {
              ++whole;
              std::erase_if(rows, [&](const auto& row) { return BucketHere(row.first) == changes.bucket; });
            }
            for (const uint64_t id : changes.removed) rows.erase(id);
            for (size_t i = 0; i < changes.ids.size(); ++i) {
              rows[changes.ids[i]].assign(changes.rows.begin() + i * kNumbers,
                                          changes.rows.begin() + (i + 1) * kNumbers);
            }
          }));
      if (!more) return absl::OkStatus();
    }
  }
  DirectoryFollower follower;
  TableRows rows;
  int whole = 0;
};

TEST(Directory, ReadersFollowTheWriterWithoutReadingEverythingAgain) {
  const TempDir dir;
  Source source;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto writer, DirectoryWriter::Open(dir.path(), {.deltas = 5}));
  Reader reader(dir.path());
  TANDEM_ASSERT_OK(writer->Add(source.All()));
  TANDEM_ASSERT_OK(writer->Commit("0").status());
  for (int i = 1; i <= 40; ++i) {
    TANDEM_ASSERT_OK(writer->Add(source.Change()));
    TANDEM_ASSERT_OK(writer->Commit(absl::StrCat(i)).status());
    if (i % 4 != 0) continue;
    TANDEM_ASSERT_OK(reader.CatchUp());
  }
  EXPECT_EQ(reader.rows, source.rows());
  EXPECT_EQ(reader.whole, kBuckets);
  Reader late(dir.path());
  TANDEM_ASSERT_OK(late.CatchUp());
  EXPECT_EQ(late.rows, source.rows());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto entries, ListCheckpoints(dir.path()));
  EXPECT_LE(entries.size(), 11);
  for (const CheckpointEntry& entry : entries) {
    TANDEM_EXPECT_OK(VerifyCheckpoint(entry.path));
    TANDEM_EXPECT_OK(VerifyLinks(entry.path));
  }
}

TEST(Directory, AWriterGoesOnWhereADeadOneHadCommitted) {
  const TempDir dir;
  Source source;
  TableRows committed;
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto writer, DirectoryWriter::Open(dir.path(), {}));
    EXPECT_EQ(writer->position(), "");
    EXPECT_THAT(writer->Add(source.Change()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not fit")));
    TANDEM_ASSERT_OK(writer->Add(source.All()));
    TANDEM_ASSERT_OK(writer->Commit("somewhere").status());
    committed = source.rows();
    TANDEM_ASSERT_OK(writer->Add(source.Change()));
    TANDEM_ASSERT_OK(BeginCheckpoint(dir.path(), 2).status());  // and dies
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(auto writer, DirectoryWriter::Open(dir.path(), {}));
  EXPECT_EQ(writer->position(), "somewhere");
  Reader reader(dir.path());
  TANDEM_ASSERT_OK(reader.CatchUp());
  EXPECT_EQ(reader.rows, committed);
  for (int i = 0; i < 5; ++i) TANDEM_ASSERT_OK(writer->Add(source.All()));
  TANDEM_ASSERT_OK(writer->Commit("further").status());
  TANDEM_ASSERT_OK(reader.CatchUp());
  EXPECT_EQ(reader.rows, source.rows());
}

TEST(Directory, AReaderThatIsFarBehindReadsEverythingAgain) {
  const TempDir dir;
  Source source;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto writer, DirectoryWriter::Open(dir.path(), {.deltas = 2}));
  TANDEM_ASSERT_OK(writer->Add(source.All()));
  TANDEM_ASSERT_OK(writer->Commit("0").status());
  Reader reader(dir.path());
  TANDEM_ASSERT_OK(reader.CatchUp());
  for (int i = 1; i <= 20; ++i) {
    TANDEM_ASSERT_OK(writer->Add(source.Change()));
    TANDEM_ASSERT_OK(writer->Commit(absl::StrCat(i)).status());
  }
  TANDEM_ASSERT_OK(reader.CatchUp());
  EXPECT_EQ(reader.rows, source.rows());
  EXPECT_EQ(reader.whole, 2 * kBuckets);
}

TEST(Directory, ADirectoryOfATrainingRunIsRefused) {
  const TempDir dir;
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), 7));
  TANDEM_ASSERT_OK(WriteDenseState(unfinished, {}));
  TANDEM_ASSERT_OK(CommitCheckpoint(unfinished, {}).status());
  EXPECT_THAT(DirectoryWriter::Open(dir.path(), {}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not written by a subscription")));
}

TEST(Directory, AReaderWaitsForADirectoryThatDoesNotExistYet) {
  const TempDir dir;
  Reader reader(absl::StrCat(dir.path(), "/later"));
  TANDEM_EXPECT_OK(reader.CatchUp());
  EXPECT_EQ(reader.follower.step(), 0);
}

}  // namespace
}  // namespace tandem::ps
