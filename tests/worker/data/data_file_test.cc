// SPDX-License-Identifier: Apache-2.0
#include "worker/data/data_file.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "base/random.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/line_source.h"

namespace tandem::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::StatusIs;

constexpr absl::StatusCode kInvalidFile = absl::StatusCode::kInvalidArgument;

// Returns `text` as one member of a gzip file.
std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(packed.size() - stream.avail_out);
  deflateEnd(&stream);
  return packed;
}

std::vector<int> NumbersIn(const std::vector<std::string>& paths) {
  const DatasetOptions options = {
      .schema = NumberedSchema(), .train_files = paths, .valid_fraction = 0, .test_fraction = 0};
  const auto data = Dataset::Open(options);
  EXPECT_TRUE(data.ok()) << data.status();
  return data.ok() ? ReadAll(data->get(), {}).All() : std::vector<int>();
}

TEST(DataFile, ReadsGzipLikePlainText) {
  const testing::TempDir dir;
  const std::string text = NumberedCsv(50000);  // larger than the buffers of the reader
  const std::vector<int> expected = NumbersIn({WriteFile(dir, "a.csv", text)});
  EXPECT_EQ(NumbersIn({WriteFile(dir, "a.csv.gz", Gzip(text))}), expected);
  // `cat a.gz b.gz` makes such a file: it has several members, here cut within a line. Zeros pad it.
  const std::string members = Gzip(text.substr(0, 12345)) + Gzip("") + Gzip(text.substr(12345));
  EXPECT_EQ(NumbersIn({WriteFile(dir, "members.gz", members + std::string(512, '\0'))}), expected);
}

TEST(DataFile, NamesAFolderThatIsMissingOrEmpty) {
  const testing::TempDir dir;
  const std::string folder = dir.File("data");
  // There may be a pattern for the names of files as well.
  for (const std::string& file : {folder + "/day1/a.csv", folder + "/day1/*.csv"}) {
    const auto message = [&] {
      const DatasetOptions options = {.schema = NumberedSchema(), .train_files = {file}};
      return std::string(Dataset::Open(options).status().message());
    };
    EXPECT_THAT(message(), AllOf(HasSubstr(file), HasSubstr("there is no folder '" + folder + "'")));
    std::filesystem::create_directories(folder + "/day1");
    EXPECT_THAT(message(), AllOf(HasSubstr(file), HasSubstr("the folder '" + folder + "/day1' is empty")));
    WriteFile(dir, "data/day1/other.txt", "1\n");
    EXPECT_THAT(message(), AllOf(HasSubstr(file), Not(HasSubstr("folder"))));
    std::filesystem::remove_all(folder);
  }
}

TEST(DataFile, NamesCompressedFilesThatAreDamaged) {
  const testing::TempDir dir;
  const std::string packed = Gzip(NumberedCsv(1000));
  EXPECT_THAT(OpenDataFile(WriteFile(dir, "short.gz", packed.substr(0, packed.size() / 2))),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("short.gz"), HasSubstr(absl::StrCat("ends too early at byte ",
                                                                           packed.size() / 2, ", after ")))));
  std::string flipped = packed;
  flipped[packed.size() - 6] ^= 1;  // the checksum
  EXPECT_THAT(OpenDataFile(WriteFile(dir, "flipped.gz", flipped)),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("flipped.gz"), HasSubstr("damaged"))));
  // The second member is damaged.
  const std::string whole = Gzip(NumberedCsv(10));
  EXPECT_THAT(OpenDataFile(WriteFile(dir, "second.gz", whole + packed.substr(0, 100))),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr(absl::StrCat("too early at byte ", whole.size() + 100))));
  EXPECT_THAT(OpenDataFile(WriteFile(dir, "twice.gz", Gzip(std::string("PAR1\0\0", 6)))),
              StatusIs(kInvalidFile, HasSubstr("a Parquet file")));
}

TEST(DataFile, NamesFilesThatAreNoText) {
  const testing::TempDir dir;
  std::string utf16;
  for (const char c : NumberedCsv(100)) utf16 += {c, '\0'};
  std::string random;
  for (int i = 0; i < 4096; ++i) random += static_cast<char>(Mix64(i));
  const std::pair<std::string, const char*> cases[] = {
      {"\xff\xfe" + utf16, "UTF-16"},
      {utf16, "UTF-16"},
      {std::string("\xff\xfe\0\0a\0\0\0", 8), "UTF-32"},
      {"\x28\xb5\x2f\xfd...", "zstd"},
      {"BZh91AY", "bzip2"},
      {"PK\x03\x04", "a zip archive"},
      {"PAR1....", "a Parquet file"},
      {random, "binary data"},
      {std::string(100, '\0'), "binary data"},
  };
  for (const auto& [bytes, name] : cases) {
    const std::string path = WriteFile(dir, "file", bytes);
    EXPECT_THAT(OpenDataFile(path), StatusIs(kInvalidFile, AllOf(HasSubstr(path), HasSubstr(name)))) << name;
  }
}

TEST(DataFile, LetsUnusualTextPass) {
  for (const std::string& text :
       {std::string("a\0b\nc", 5), std::string("gr\xfc\xdf,1\n"), std::string("\xd4\xf3\xe7,\xd4\xf3\n"),
        std::string("1\x01v\x02w\n"), std::string("\xef\xbb\xbfy,c\n"), std::string(5000, '\x01')}) {
    TANDEM_EXPECT_OK(CheckText("file", text));
  }
}

TEST(DataFile, DoesNotWaitForWhatIsNoFile) {
  const testing::TempDir dir;
  const std::string fifo = dir.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(OpenDataFile(fifo),
              StatusIs(kInvalidFile, AllOf(HasSubstr(fifo), HasSubstr("not a regular file but a FIFO"))));
  EXPECT_THAT(OpenDataFile(dir.path()),
              StatusIs(kInvalidFile, AllOf(HasSubstr("a directory"), HasSubstr("/*.csv"))));
  EXPECT_THAT(OpenDataFile("/dev/null"), StatusIs(kInvalidFile, HasSubstr("a device")));
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {.sun_family = AF_UNIX};
  const std::string name = dir.File("socket");
  ASSERT_LT(name.size(), sizeof(address.sun_path));
  std::strcpy(address.sun_path, name.c_str());
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(OpenDataFile(name), StatusIs(kInvalidFile, HasSubstr("a socket")));
  close(fd);
}

std::vector<std::string> Found(const std::vector<std::string>& paths) {
  const auto files = FindFiles(paths);
  EXPECT_TRUE(files.ok()) << files.status();
  std::vector<std::string> found;
  if (files.ok()) {
    for (const FoundFile& file : *files) found.push_back(file.path);
  }
  return found;
}

TEST(DataFile, PatternsStandForTheFilesThatMatchThem) {
  const testing::TempDir dir;
  const std::string b = WriteFile(dir, "day_2.csv", NumberedCsv(2, 2));
  const std::string a = WriteFile(dir, "day_1.csv", NumberedCsv(2, 0));
  const std::string odd = WriteFile(dir, "day_[1].csv", NumberedCsv(1, 9));
  EXPECT_THAT(Found({dir.File("day_?.csv"), b}), ElementsAre(a, b, b));
  EXPECT_THAT(Found({odd}), ElementsAre(odd)) << "a file of this name exists";
  EXPECT_THAT(FindFiles({dir.File("day_*.tsv")}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("day_*.tsv': no file")));
  EXPECT_THAT(NumbersIn({dir.File("day_?.csv")}), ElementsAre(0, 1, 2, 3));
}

// What Spark leaves in the directory of a table.
TEST(DataFile, WildcardsMatchNoHiddenNamesAndEmptyPartsAreLeftOut) {
  const testing::TempDir dir;
  const std::string a = WriteFile(dir, "part-00000", NumberedCsv(2, 0));
  const std::string empty = WriteFile(dir, "part-00001", "");
  const std::string packed = WriteFile(dir, "part-00002.gz", Gzip(""));
  const std::string header = WriteFile(dir, "part-00003", NumberedCsv(0));
  const std::string b = WriteFile(dir, "part-00004", NumberedCsv(2, 2));
  const std::string success = WriteFile(dir, "_SUCCESS", "");
  WriteFile(dir, ".part-00000.crc", std::string(100, '\0'));
  ASSERT_EQ(mkdir(dir.File("_temporary").c_str(), 0700), 0);
  ASSERT_EQ(mkdir(dir.File("_temporary/0").c_str(), 0700), 0);
  WriteFile(dir, "_temporary/0/part-00009", NumberedCsv(1, 9));
  EXPECT_THAT(NumbersIn({dir.File("*")}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Found({dir.File("*")}), ElementsAre(a, empty, packed, header, b));
  EXPECT_THAT(Found({dir.File("_*S")}), ElementsAre(success)) << "the pattern itself begins with it";
  EXPECT_THAT(FindFiles({dir.File("*SUCCESS")}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("begin with '_' or '.' are left out")));
  EXPECT_THAT(FindFiles({dir.File("*/0/part*")}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(LineSource::Open({dir.File("part-0000[12]*")}, {}),
              StatusIs(kInvalidFile, HasSubstr("part-0000[12]*': all of them are empty")));
  EXPECT_THAT(LineSource::Open({a, empty}, {}), StatusIs(kInvalidFile, HasSubstr("is empty (0 bytes)")));
  EXPECT_THAT(LineSource::Open({packed}, {}), StatusIs(kInvalidFile, HasSubstr("is empty (0 bytes)")));
}

// The highest resident memory of this process, in bytes.
uint64_t PeakMemory() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

TEST(DataFile, UnpackingTakesLittleMemoryWhateverTheSize) {
  const testing::TempDir dir;
  std::string members;
  const std::string megabytes = Gzip(std::string(size_t{8} << 20, 'a'));
  for (int i = 0; i < 40; ++i) members += megabytes;
  const std::string path = WriteFile(dir, "large.gz", members);
  const uint64_t before = PeakMemory();
  TANDEM_ASSERT_OK_AND_ASSIGN(const OpenedFile file, OpenDataFile(path));
  close(file.fd);
  EXPECT_EQ(file.bytes, uint64_t{40} * (8 << 20));
  EXPECT_LT(PeakMemory(), before + (size_t{16} << 20));
}

}  // namespace
}  // namespace tandem::worker
