// SPDX-License-Identifier: Apache-2.0
// Table files of somebody who means harm: their CRCs are right, and they may say anything.

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/checksummed_file.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

// Reading gives the rows or an error, and takes no more memory than a few times the file's size.
TEST(HostileFiles, ATableFileThatSaysImpossibleThingsIsReadOrRefused) {
  const TempDir dir;
  const auto path_of = [&](uint64_t step) { return dir.File(CheckpointName(step)); };
  v1::TableConfig config = Table(Adagrad(0.1f));
  *config.mutable_admission() = AdmitAfter(2, 4096);
  TrainedTable run(config, dir.path());
  for (const uint64_t step : {1, 2}) {
    run.Train(5, 500, 40);
    TANDEM_ASSERT_OK(run.Save(step));
  }
  for (const uint64_t step : {1, 2}) {  // a whole file, and one that builds on it
    const std::string path = path_of(step) + "/user.0-of-1.table";
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string good, ReadFile(path));
    v1::TableFileHeader header;
    v1::TableFileFooter footer;
    {
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, TableFileReader::Open(path));
      header = reader->header();
      footer = reader->footer();
    }
    const auto write = [&](const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; };
    int refused = 0, all = 0;
    const auto read = [&](const std::string& what) {
      SCOPED_TRACE(what);
      const TempDir to;
      bool ok = DigestCheckpoint(path_of(2)).ok();
      ok = ExportCheckpoint(path_of(2), to.path(), {.format = ExportFormat::kCsv}).ok() && ok;
      refused += ok ? 0 : 1;
      ++all;
    };
    write(Rebuilt(good, header.SerializeAsString(), footer.SerializeAsString()));
    read("unchanged");
    ASSERT_EQ(refused, 0);
    tandem::testing::ForEachMutation(
        header, [&](const google::protobuf::Message& bad, const std::string& what) {
          write(Rebuilt(good, bad.SerializeAsString(), footer.SerializeAsString()));
          read("header: " + what);
        });
    tandem::testing::ForEachMutation(
        footer, [&](const google::protobuf::Message& bad, const std::string& what) {
          write(Rebuilt(good, header.SerializeAsString(), bad.SerializeAsString()));
          read("footer: " + what);
        });
    EXPECT_GT(refused, all / 3);
    write(good);
  }
}

}  // namespace
}  // namespace tandem::ps
