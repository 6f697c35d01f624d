// SPDX-License-Identifier: Apache-2.0
// Table files of somebody who means harm: their CRCs are right, and they may say anything.

#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/checksummed_file.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/chain.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/digest.h"
#include "ps/checkpoint/export.h"
#include "ps/checkpoint/format.h"
#include "tests/ps/checkpoint/trained_table.h"
#include "tests/testing/mutate_message.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::TempDir;

// Returns a table file with another header and footer, and with right sizes and CRCs.
std::string Rebuilt(const std::string& bytes, const std::string& header, const std::string& footer) {
  const auto u32 = [](uint32_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const auto read = [&](size_t at) {
    uint32_t value;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
  };
  const std::string magic = bytes.substr(0, 8);
  const size_t rows = 12 + read(8) + 4, footer_at = bytes.size() - 16 - read(bytes.size() - 16);
  const std::string start = absl::StrCat(magic, u32(static_cast<uint32_t>(header.size())), header);
  const std::string end = absl::StrCat(footer, u32(static_cast<uint32_t>(footer.size())));
  return absl::StrCat(start, u32(Crc32(start)), bytes.substr(rows, footer_at - rows), end, u32(Crc32(end)),
                      magic);
}

// Returns `footer` for a header of another size, behind which the rows begin later or earlier.
v1::TableFileFooter Moved(v1::TableFileFooter footer, size_t before, size_t after) {
  for (v1::BucketIndex& bucket : *footer.mutable_buckets())
    bucket.set_offset(bucket.offset() + after - before);
  return footer;
}

// Mutates the files of a checkpoint and of one that builds on it, after as many updates before each.
void MutateFiles(int first_updates, int second_updates) {
  const TempDir dir;
  const auto path_of = [&](uint64_t step) { return dir.File(CheckpointName(step)); };
  v1::TableConfig config = Table(Adagrad(0.1f));
  *config.mutable_admission() = AdmitAfter(2, 4096);
  TrainedTable run(config, dir.path());
  run.Train(first_updates, 500, 40);
  TANDEM_ASSERT_OK(run.Save(1));
  run.Train(second_updates, 500, 40);
  TANDEM_ASSERT_OK(run.Save(2));
  for (const uint64_t step : {1, 2}) {
    const std::string path = path_of(step) + "/user.0-of-1.table";
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string good, ReadFile(path));
    v1::TableFileHeader header;
    v1::TableFileFooter footer;
    {
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, TableFileReader::Open(path));
      header = reader->header();
      footer = reader->footer();
    }
    int refused = 0, all = 0;
    const auto read = [&](const google::protobuf::Message& new_header,
                          const google::protobuf::Message& new_footer) {
      std::ofstream(path, std::ios::binary)
          << Rebuilt(good, new_header.SerializeAsString(), new_footer.SerializeAsString());
      const TempDir to;
      bool ok = DigestCheckpoint(path_of(2)).ok();
      ok = ExportCheckpoint(path_of(2), to.path(), {.format = ExportFormat::kCsv}).ok() && ok;
      refused += ok ? 0 : 1;
      ++all;
    };
    read(header, footer);
    ASSERT_EQ(refused, 0);
    tandem::testing::ForEachMutation(header,
                                     [&](const google::protobuf::Message& bad, const std::string& what) {
                                       SCOPED_TRACE("header: " + what);
                                       read(bad, Moved(footer, header.ByteSizeLong(), bad.ByteSizeLong()));
                                     });
    tandem::testing::ForEachMutation(footer,
                                     [&](const google::protobuf::Message& bad, const std::string& what) {
                                       SCOPED_TRACE("footer: " + what);
                                       read(header, bad);
                                     });
    EXPECT_GT(refused, all / 4);
    std::ofstream(path, std::ios::binary) << good;
  }
}

// Reading gives the rows or an error, and takes no more memory than a few times the file's size.
TEST(HostileFiles, ATableFileThatSaysImpossibleThingsIsReadOrRefused) { MutateFiles(5, 5); }

// Sizes are not limited by the rows where there are none.
TEST(HostileFiles, AFileWithoutRowsThatSaysImpossibleThingsIsReadOrRefused) { MutateFiles(0, 5); }

// Replaces each file of a checkpoint, and its base, by a link to the same bytes outside, and then by a pipe.
TEST(HostileFiles, NothingIsReadThroughALinkThatLeadsOutNorFromAPipe) {
  const TempDir dir;
  TrainedTable run(Table(Adagrad(0.1f)), dir.File("root"));
  for (const uint64_t step : {1, 2}) {
    run.Train(5, 500, 40);
    TANDEM_ASSERT_OK(run.Save(step));
  }
  const std::string base = dir.File("root/") + CheckpointName(1),
                    newest = dir.File("root/") + CheckpointName(2);
  const auto readers_of = [&](const std::string& path) {
    const TempDir to;
    return std::vector<absl::Status>{
        VerifyCheckpoint(path), VerifyLinks(newest), DigestCheckpoint(newest).status(),
        ExportCheckpoint(newest, to.path(), {}).status(), CompactCheckpoint(newest).status()};
  };
  const std::string moved = dir.File("moved");
  for (const std::string& path : {newest + "/MANIFEST", newest + "/DENSE", newest + "/user.0-of-1.table",
                                  base + "/user.0-of-1.table", base + "/MANIFEST", base}) {
    SCOPED_TRACE(path);
    std::filesystem::rename(path, moved);
    std::filesystem::create_symlink(moved, path);
    int refused = 0;
    for (const absl::Status& read : readers_of(path == base ? newest : path.substr(0, path.rfind('/')))) {
      refused += read.ok() ? 0 : 1;
      if (!read.ok() && read.code() != absl::StatusCode::kDataLoss) {
        EXPECT_THAT(read, tandem::testing::StatusIs(absl::StatusCode::kPermissionDenied,
                                                    ::testing::HasSubstr("symbolic link that leads out")));
      }
    }
    EXPECT_GE(refused, path == newest + "/DENSE" ? 4 : 2);
    std::filesystem::remove(path);
    if (path != base) {
      ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
      EXPECT_FALSE(DigestCheckpoint(newest).ok() && VerifyLinks(newest).ok());
      std::filesystem::remove(path);
    }
    std::filesystem::rename(moved, path);
  }
  TANDEM_EXPECT_OK(DigestCheckpoint(newest).status());
  TANDEM_EXPECT_OK(CompactCheckpoint(newest).status());
}

TEST(HostileFiles, SizesThatNoTableHasAreRefused) {
  const TempDir dir;
  TrainedTable run(Table(Adagrad(0.1f)), dir.path());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string checkpoint, run.Save(1));
  const std::string path = checkpoint + "/user.0-of-1.table";
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string good, ReadFile(path));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, TableFileReader::Open(path));
  const auto refused = [&](const std::function<void(v1::TableFileHeader*)>& change) {
    v1::TableFileHeader header = reader->header();
    change(&header);
    std::ofstream(path, std::ios::binary) << Rebuilt(
        good, header.SerializeAsString(),
        Moved(reader->footer(), reader->header().ByteSizeLong(), header.ByteSizeLong()).SerializeAsString());
    EXPECT_THAT(TableFileReader::Open(path).status(),
                tandem::testing::StatusIs(absl::StatusCode::kDataLoss, ::testing::HasSubstr(path)));
  };
  TANDEM_EXPECT_OK(TableFileReader::Open(path).status());
  refused([](v1::TableFileHeader* header) { header->set_row_floats(1 << 30); });
  refused([](v1::TableFileHeader* header) { header->set_num_buckets(uint32_t{1} << 31); });
}

}  // namespace
}  // namespace tandem::ps
