// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/format.h"

#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/shard_map.h"
#include "ps/table.h"
#include "tests/ps/checkpoint/map_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kBuckets = 4;
constexpr uint32_t kDim = 2;

// A file on a disk that has space for `room` more bytes.
class SmallDisk : public WritableFile {
 public:
  SmallDisk(std::unique_ptr<WritableFile> file, size_t room) : file_(std::move(file)), room_(room) {}
  absl::Status Append(absl::string_view bytes) override {
    if (bytes.size() > room_) return absl::ResourceExhaustedError("the disk is full");
    room_ -= bytes.size();
    return file_->Append(bytes);
  }
  absl::Status Sync() override { return file_->Sync(); }

 private:
  const std::unique_ptr<WritableFile> file_;
  size_t room_;
};

class Format : public ::testing::Test {
 protected:
  Format() : path_(dir_.File("user.0-of-1.table")) {
    for (uint64_t i = 0; i < 12; ++i) storage_.rows_[i * 1000003] = {1.0f * i, 2.0f * i, -1.0f * i};
    *header_.mutable_config() = EmbeddingTable("user", kDim, RowwiseAdagrad(0.1f), Zeros());
    header_.set_num_servers(1);
    header_.set_num_buckets(kBuckets);
    header_.set_row_floats(MapStorage::kRowFloats);
    header_.set_version(17);
    header_.add_worker_clock(17);
  }
  absl::StatusOr<uint64_t> Write(const OpenFile& open = OpenPosixFile) {
    const std::vector<uint32_t> buckets = {0, 1, 2, 3};
    TANDEM_ASSIGN_OR_RETURN(summary_, WriteTableFile(path_, header_, buckets, storage_, cancel_, open));
    return summary_.bytes;
  }
  absl::Status Read(MapStorage* to) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<TableFileReader> reader, TableFileReader::Open(path_));
    for (const v1::BucketIndex& bucket : reader->footer().buckets()) {
      TANDEM_RETURN_IF_ERROR(reader->ReadBucket(
          bucket,
          [&](uint64_t id, const float* row, const RowHistory& history) {
            TANDEM_EXPECT_OK(to->Restore(id, row, history));
          },
          nullptr));
    }
    return absl::OkStatus();
  }
  void Overwrite(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }

  const TempDir dir_;
  const std::string path_;
  MapStorage storage_{kBuckets};
  v1::TableFileHeader header_;
  std::atomic<bool> cancel_{false};
  TableFileSummary summary_;  // of the last Write that succeeded
};

TEST_F(Format, ReadsBackWhatWasWritten) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t bytes, Write());
  EXPECT_EQ(bytes, std::filesystem::file_size(path_));
  MapStorage read(kBuckets);
  TANDEM_ASSERT_OK(Read(&read));
  EXPECT_EQ(read.rows_, storage_.rows_);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, TableFileReader::Open(path_));
  EXPECT_EQ(reader->header().SerializeAsString(), header_.SerializeAsString());
}

TEST_F(Format, TheSummaryOfWritingIsThatOfReadingTheWholeFile) {
  TANDEM_ASSERT_OK(Write());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto file, ReadableFile::Open(path_));
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint32_t crc32, FileCrc32(*file));
  EXPECT_EQ(summary_.crc32, crc32);
  EXPECT_EQ(summary_.bytes, file->size());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, TableFileReader::Open(path_));
  EXPECT_EQ(summary_.footer_crc32, reader->footer_crc32());
  EXPECT_EQ(summary_.bytes, reader->bytes());
  const uint32_t before = summary_.footer_crc32;
  storage_.rows_.begin()->second[0] += 1;
  TANDEM_ASSERT_OK(Write());
  EXPECT_NE(summary_.footer_crc32, before);
}

TEST_F(Format, BeginsAndEndsAsItsDescriptionSays) {
  TANDEM_ASSERT_OK(Write());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFile(path_));
  EXPECT_EQ(bytes.substr(0, 8), "TANDEMT2");
  EXPECT_EQ(bytes.substr(bytes.size() - 8), "TANDEMT2");
  const std::string header = header_.SerializeAsString();
  EXPECT_EQ(static_cast<unsigned char>(bytes[8]), header.size());
  EXPECT_EQ(bytes.substr(12, header.size()), header);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, TableFileReader::Open(path_));
  EXPECT_EQ(reader->footer().buckets(0).offset(), 12 + header.size() + 4);
}

// Returns a file in the first version of the format.
std::string OldFile(const v1::TableFileHeader& header, const std::map<uint64_t, std::vector<float>>& rows) {
  const auto u32 = [](size_t value) {
    const uint32_t narrow = static_cast<uint32_t>(value);
    return std::string(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
  };
  const std::string header_bytes = header.SerializeAsString();
  std::string file = absl::StrCat("TANDEMT1", u32(header_bytes.size()), header_bytes);
  file += u32(Crc32(file));
  v1::TableFileFooter footer;
  for (uint32_t b = 0; b < kBuckets; ++b) {
    std::string bucket;
    for (const auto& [id, row] : rows) {
      if (BucketOf(id, kBuckets) != b) continue;
      bucket.append(reinterpret_cast<const char*>(&id), sizeof(id));
      bucket.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
    }
    v1::BucketIndex* index = footer.add_buckets();
    index->set_bucket(b);
    index->set_offset(file.size());
    index->set_rows(bucket.size() / (8 + 4 * MapStorage::kRowFloats));
    index->set_bytes(bucket.size());
    index->set_crc32(Crc32(bucket));
    file += bucket;
  }
  const std::string footer_bytes = footer.SerializeAsString();
  const std::string end = absl::StrCat(footer_bytes, u32(footer_bytes.size()));
  return absl::StrCat(file, end, u32(Crc32(end)), "TANDEMT1");
}

TEST_F(Format, TheFirstVersionIsStillRead) {
  Overwrite(OldFile(header_, storage_.rows_));
  MapStorage read(kBuckets);
  TANDEM_ASSERT_OK(Read(&read));
  EXPECT_EQ(read.rows_, storage_.rows_);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, TableFileReader::Open(path_));
  TANDEM_ASSERT_OK(reader->ReadBucket(
      reader->footer().buckets(0),
      [](uint64_t, const float*, const RowHistory& history) {
        EXPECT_EQ(history.version, 17);
        EXPECT_EQ(history.count, 1);
      },
      nullptr));
}

TEST_F(Format, AnEmptyTableIsAFileToo) {
  storage_.Clear();
  TANDEM_ASSERT_OK(Write());
  MapStorage read(kBuckets);
  TANDEM_ASSERT_OK(Read(&read));
  EXPECT_EQ(read.rows(), 0);
}

TEST_F(Format, ManyRowsAreReadPieceByPiece) {
  for (uint64_t i = 0; i < 300000; ++i) storage_.rows_[i * 3] = {1.0f * i, 0, 0};
  TANDEM_ASSERT_OK(Write());
  MapStorage read(kBuckets);
  TANDEM_ASSERT_OK(Read(&read));
  EXPECT_EQ(read.rows_, storage_.rows_);
}

TEST_F(Format, EveryTruncationIsAnError) {
  TANDEM_ASSERT_OK(Write());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFile(path_));
  for (size_t length = 0; length < bytes.size(); ++length) {
    Overwrite(bytes.substr(0, length));
    MapStorage read(kBuckets);
    ASSERT_THAT(Read(&read), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_))) << length;
  }
  Overwrite(bytes + "x");
  MapStorage read(kBuckets);
  EXPECT_THAT(Read(&read), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(Format, AFlippedBitInAnyByteIsAnError) {
  TANDEM_ASSERT_OK(Write());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFile(path_));
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    Overwrite(damaged);
    MapStorage read(kBuckets);
    ASSERT_FALSE(Read(&read).ok()) << "byte " << at;
  }
}

TEST_F(Format, ANewerFormatIsNotCalledDamaged) {
  TANDEM_ASSERT_OK(Write());
  TANDEM_ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFile(path_));
  bytes[7] = '4';
  Overwrite(bytes);
  EXPECT_THAT(TableFileReader::Open(path_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("version '4'"), HasSubstr("'1' to '3'"))));
  EXPECT_THAT(TableFileReader::Open(dir_.File("none")), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(Format, AFullDiskLeavesNothingBehindAndTheOldFileAsItWas) {
  TANDEM_ASSERT_OK(Write());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string before, ReadFile(path_));
  storage_.rows_[5] = {1, 2, 3};
  for (size_t room = 0; room < before.size(); room += 7) {
    const OpenFile open = [room](const std::string& path) -> absl::StatusOr<std::unique_ptr<WritableFile>> {
      TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, OpenPosixFile(path));
      return std::make_unique<SmallDisk>(std::move(file), room);
    };
    ASSERT_THAT(Write(open), StatusIs(absl::StatusCode::kResourceExhausted)) << room;
    ASSERT_EQ(*ReadFile(path_), before);
    ASSERT_FALSE(std::filesystem::exists(path_ + ".tmp"));
  }
}

TEST_F(Format, AFullDiskIsToldWithPathAndBytes) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<WritableFile> full, OpenPosixFile("/dev/full"));
  EXPECT_THAT(full->Append("hello"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("/dev/full"), HasSubstr("0 bytes"), HasSubstr("next 5"))));
}

TEST_F(Format, ACancelledSaveLeavesNothingBehind) {
  cancel_ = true;
  EXPECT_THAT(Write(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace tandem::ps
