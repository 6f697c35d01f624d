// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/spill/spill_store.h"

#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/storage/spill/rocksdb.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Key = std::pair<uint32_t, uint64_t>;
using Model = std::map<Key, std::string>;

absl::Status Put(ColdTier& tier, uint32_t bucket, const std::map<uint64_t, std::string>& rows) {
  std::vector<uint64_t> ids;
  std::string bytes;
  for (const auto& [id, row] : rows) {
    ids.push_back(id);
    bytes += row;
  }
  return tier.Put(bucket, ids, rows.begin()->second.size(), bytes.data());
}

// Returns the rows of `keys`, "" for a key without a row.
std::vector<std::string> Get(ColdTier& tier, const std::vector<Key>& keys, size_t row_bytes) {
  std::vector<ColdTier::Key> asked;
  for (const Key& key : keys) asked.push_back({key.first, key.second});
  std::string rows(keys.size() * row_bytes, '\0');
  std::vector<uint8_t> found(keys.size());
  TANDEM_EXPECT_OK(tier.Get(asked, row_bytes, rows.data(), found.data()));
  std::vector<std::string> got;
  for (size_t i = 0; i < keys.size(); ++i) {
    got.push_back(found[i] == 0 ? "" : rows.substr(i * row_bytes, row_bytes));
  }
  return got;
}

Model All(ColdTier& tier, uint32_t num_buckets, size_t row_bytes) {
  Model all;
  for (uint32_t b = 0; b < num_buckets; ++b) {
    uint64_t visited = 0, previous = 0;
    TANDEM_EXPECT_OK(tier.VisitBucket(b, /*first_id=*/0, row_bytes, [&](uint64_t id, const char* row) {
      EXPECT_TRUE(visited++ == 0 || id > previous);
      previous = id;
      all[{b, id}].assign(row, row_bytes);
      return true;
    }));
  }
  return all;
}

class SpillStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { TANDEM_SKIP_WITHOUT_ROCKSDB(); }
  TempDir dir_;
};

TEST_F(SpillStoreTest, BehavesLikeAMapOverALongRandomSequence) {
  constexpr size_t kRow = 36;
  constexpr uint32_t kBuckets = 4;
  SpillStore store({.directory = dir_.File("spill"), .cache_bytes = size_t{1} << 20});
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto other, store.NewTier("other"));
  TANDEM_ASSERT_OK(Put(*other, 0, {{7, std::string(kRow, 'o')}}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tier, store.NewTier("t"));
  Model model;
  CounterRandom random(/*seed=*/1, 0);
  const auto random_id = [&] {
    // The ids include the largest, and ids that differ in their highest bytes only.
    const uint64_t id = random.Below(3000);
    return random.Below(3) == 0 ? ~id : random.Below(2) == 0 ? id << 50 : id;
  };
  for (int operation = 0; operation < 400; ++operation) {
    const auto bucket = static_cast<uint32_t>(random.Below(kBuckets));
    if (operation == 200) {
      tier->Clear();
      model.clear();
    } else if (random.Below(2) == 0) {
      std::map<uint64_t, std::string> rows;
      for (uint64_t i = 0; i <= random.Below(200); ++i) {
        std::string row(kRow, '\0');
        for (char& byte : row) byte = static_cast<char>(random.Below(256));
        rows[random_id()] = row;
      }
      TANDEM_ASSERT_OK(Put(*tier, bucket, rows));
      for (const auto& [id, row] : rows) model[{bucket, id}] = row;
    } else {
      std::vector<Key> keys;
      std::vector<std::string> want;
      for (uint64_t i = 0; i < random.Below(600); ++i) {
        keys.push_back({static_cast<uint32_t>(random.Below(kBuckets)), random_id()});
        const auto row = model.find(keys.back());
        want.push_back(row == model.end() ? "" : row->second);
      }
      ASSERT_EQ(Get(*tier, keys, kRow), want) << operation;
    }
  }
  EXPECT_GT(model.size(), 1000);
  EXPECT_EQ(All(*tier, kBuckets, kRow), model);
  EXPECT_GT(tier->bytes(), model.size() * kRow / 2);
  EXPECT_EQ(Get(*other, {{0, 7}}, kRow), std::vector<std::string>{std::string(kRow, 'o')});
}

TEST_F(SpillStoreTest, NothingIsThereBeforeTheFirstTierAndNothingAfterwards) {
  const std::string path = dir_.File("spill");
  {
    SpillStore store({.directory = path});
    EXPECT_FALSE(std::filesystem::exists(path));
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto tier, store.NewTier("t"));
    TANDEM_ASSERT_OK(Put(*tier, 0, {{1, "row"}}));
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(SpillStoreTest, TwoStoresDoNotShareADirectory) {
  SpillStore first({.directory = dir_.File("spill")}), second({.directory = dir_.File("spill")});
  TANDEM_ASSERT_OK(first.Claim());
  EXPECT_THAT(second.Claim(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(dir_.File("spill"))));
  EXPECT_THAT(second.NewTier("t"), StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(SpillStoreTest, DamagedFilesAreAnErrorThatNamesTableAndDirectory) {
  SpillStore store({.directory = dir_.File("spill"), .cache_bytes = size_t{1} << 20});
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tier, store.NewTier("t"));
  CounterRandom random(/*seed=*/2, 0);
  // Far more than the write buffers and the cache hold.
  for (uint64_t first = 0; first < 100000; first += 1000) {
    std::map<uint64_t, std::string> rows;
    for (uint64_t id = first; id < first + 1000; ++id) {
      std::string row(100, '\0');
      for (char& byte : row) byte = static_cast<char>(random.Below(256));
      rows[id] = row;
    }
    TANDEM_ASSERT_OK(Put(*tier, 0, rows));
  }
  uint64_t damaged = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir_.File("spill/rows"))) {
    if (file.path().extension() != ".sst") continue;
    std::filesystem::resize_file(file.path(), file.file_size() / 2);
    ++damaged;
  }
  ASSERT_GT(damaged, 0);
  absl::Status status;
  std::vector<uint8_t> found(1000);
  std::string rows(found.size() * 100, '\0');
  for (uint64_t first = 0; first < 100000 && status.ok(); first += 1000) {
    std::vector<ColdTier::Key> keys;
    for (uint64_t id = first; id < first + 1000; ++id) keys.push_back({0, id});
    status = tier->Get(keys, 100, rows.data(), found.data());
  }
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("table 't'"), HasSubstr(dir_.File("spill"))));
}

// A file system of 16 MiB.
class SmallDisk {
 public:
  SmallDisk() {
    if (::mount("tandem-test", dir_.path().c_str(), "tmpfs", 0, "size=16m") != 0) error_ = errno;
  }
  ~SmallDisk() {
    if (error_ == 0) ::umount2(dir_.path().c_str(), MNT_DETACH);
  }
  int error() const { return error_; }
  std::string File(absl::string_view name) const { return dir_.File(name); }

 private:
  TempDir dir_;
  int error_ = 0;
};

TEST_F(SpillStoreTest, AFullDiskRefusesRowsKeepsThoseItHasAndRecovers) {
  SmallDisk disk;
  if (disk.error() != 0)
    GTEST_SKIP() << "a small disk cannot be mounted here: " << std::strerror(disk.error());
  SpillStore store({.directory = disk.File("spill"), .cache_bytes = size_t{4} << 20});
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tier, store.NewTier("t"));
  constexpr size_t kRow = 1000, kBatch = 100;
  CounterRandom random(/*seed=*/3, 0);
  const auto row_of = [](uint64_t id) {
    CounterRandom bytes(/*seed=*/4, id);
    std::string row(kRow, '\0');
    for (char& byte : row) byte = static_cast<char>(bytes.Below(256));
    return row;
  };
  const auto put = [&](uint64_t first) {
    std::map<uint64_t, std::string> rows;
    for (uint64_t id = first; id < first + kBatch; ++id) rows[id] = row_of(id);
    return Put(*tier, 0, rows);
  };
  // There is space for about 12,000 rows.
  uint64_t kept = 0;
  absl::Status status;
  for (; kept < 100000 && status.ok(); kept += kBatch) status = put(kept);
  kept -= kBatch;
  ASSERT_THAT(status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("table 't'"), HasSubstr(disk.File("spill")), HasSubstr("space"))));
  // Accepted rows can be read, including those that were not written to the disk yet.
  for (uint64_t id = 0; id < kept; id += 37) {
    ASSERT_EQ(Get(*tier, {{0, id}}, kRow), std::vector<std::string>{row_of(id)}) << id << " of " << kept;
  }
  // Space is freed.
  ASSERT_EQ(::mount("tandem-test", disk.File("").c_str(), "tmpfs", MS_REMOUNT, "size=64m"), 0)
      << std::strerror(errno);
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  do {
    status = put(kept);
  } while (!status.ok() && absl::Now() < deadline);
  TANDEM_ASSERT_OK(status);
  for (uint64_t id = 0; id < kept + kBatch; id += 37) {
    ASSERT_EQ(Get(*tier, {{0, id}}, kRow), std::vector<std::string>{row_of(id)}) << id;
  }
}

TEST(SpillStoreBuildTest, WithoutRocksDbATableIsRefusedWithWhatToInstall) {
  if (TANDEM_HAS_ROCKSDB) GTEST_SKIP() << "built with RocksDB";
  TempDir dir;
  SpillStore store({.directory = dir.File("spill")});
  EXPECT_THAT(store.NewTier("t"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("librocksdb-dev")));
}

}  // namespace
}  // namespace tandem::ps
