// SPDX-License-Identifier: Apache-2.0
#include "worker/data/line_source.h"

#include <unistd.h>

#include "tests/worker/data/test_files.h"

namespace tandem::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StatusIs;

std::vector<std::string> Lines(const LineSource& source) {
  std::vector<std::string> lines;
  LineSource::Cursor cursor(source);
  uint64_t position = 0;
  absl::string_view line;
  while (cursor.Next(&position, &line)) {
    EXPECT_EQ(source.LineAt(position), line);
    lines.emplace_back(line);
  }
  EXPECT_FALSE(cursor.Next(&position, &line));
  return lines;
}

TEST(LineSource, FindsLinesHoweverTheyEnd) {
  struct Case {
    std::string text;
    std::vector<std::string> lines;
  };
  const std::vector<Case> cases = {
      {"a\nb\n", {"a", "b"}},
      {"a\nb", {"a", "b"}},
      {"a\r\nb\r\n", {"a", "b"}},
      {"a\r\nb\r", {"a", "b"}},
      {"\n\na\n\r\n\nb\n\n", {"a", "b"}},
      {"\xef\xbb\xbf"
       "a\nb\n",
       {"a", "b"}},
      {"\xef\xbb\xbf", {}},
      {"\n", {}},
      {" \n", {" "}},
      {std::string("a\0b\nc", 5), {std::string("a\0b", 3), "c"}},
  };
  const testing::TempDir dir;
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string path = WriteFile(dir, absl::StrCat(i), cases[i].text);
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto source, LineSource::Open({path}, {}));
    EXPECT_EQ(Lines(*source), cases[i].lines) << "case " << i;
  }
}

TEST(LineSource, ReadsManyFilesAsOneSequence) {
  const testing::TempDir dir;
  const std::string a = WriteFile(dir, "a", "1\n2");
  const std::string b = WriteFile(dir, "b", "\n");
  const std::string c = WriteFile(dir, "c", "3\n4\n");
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto source, LineSource::Open({a, b, c}, {}));
  EXPECT_THAT(Lines(*source), ElementsAre("1", "2", "3", "4"));
  EXPECT_EQ(source->bytes(), 8);
}

TEST(LineSource, PassesOverHeadersAndComments) {
  const testing::TempDir dir;
  const std::string a = WriteFile(dir, "a", "\xef\xbb\xbfh1,h2\r\n1\n#x\n2\n");
  const std::string b = WriteFile(dir, "b", "h1,h2\n3");
  const std::string alone = WriteFile(dir, "alone", "h1,h2");
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto source,
                              LineSource::Open({a, b, alone}, {.header = true, .comments = true}));
  ASSERT_EQ(source->headers().size(), 1);
  EXPECT_EQ(source->headers()[0].line, "h1,h2");
  EXPECT_THAT(Lines(*source), ElementsAre("1", "2", "3"));
}

TEST(LineSource, TellsWhichHeaderTheFileOfALineHas) {
  const testing::TempDir dir;
  const std::string a = WriteFile(dir, "a", "x,y\n1\n"), b = WriteFile(dir, "b", "y,x\n2\n3\n");
  const std::string c = WriteFile(dir, "c", "x,y\n4\n");
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto source, LineSource::Open({a, b, c}, {.header = true}));
  ASSERT_EQ(source->headers().size(), 2);
  EXPECT_EQ(source->headers()[1].line, "y,x");
  EXPECT_EQ(source->headers()[1].path, b);
  LineSource::Cursor cursor(*source);
  std::vector<size_t> headers;
  uint64_t position = 0;
  absl::string_view line;
  while (cursor.Next(&position, &line)) {
    size_t header = 9;
    EXPECT_EQ(source->LineAt(position, &header), line);
    EXPECT_EQ(header, cursor.header());
    headers.push_back(header);
  }
  EXPECT_THAT(headers, ElementsAre(0, 1, 1, 0));
}

TEST(LineSource, NamesFileAndLineOfAPosition) {
  const testing::TempDir dir;
  const std::string a = WriteFile(dir, "a", "h\n1\n\n2\n");
  const std::string b = WriteFile(dir, "b", "h\n3");
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto source, LineSource::Open({a, b}, {.header = true}));
  LineSource::Cursor cursor(*source);
  std::vector<std::string> places;
  uint64_t position = 0;
  absl::string_view line;
  while (cursor.Next(&position, &line)) places.push_back(source->Describe(position));
  EXPECT_THAT(places, ElementsAre(a + ":2", a + ":4", b + ":2"));
}

TEST(LineSource, SaysWhichFileCannotBeUsed) {
  const testing::TempDir dir;
  const std::string good = WriteFile(dir, "good", "h\n1\n");
  const std::string empty = WriteFile(dir, "empty", "");
  const std::string blank = WriteFile(dir, "blank", "\n1\n");
  const LineSource::Options header = {.header = true};
  EXPECT_THAT(LineSource::Open({}, {}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(LineSource::Open({good, dir.File("missing")}, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(dir.File("missing"))));
  EXPECT_THAT(LineSource::Open({good, empty}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty' is empty (0 bytes)")));
  EXPECT_THAT(LineSource::Open({dir.path()}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a regular file")));
  EXPECT_THAT(
      LineSource::Open({good, blank}, header),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("blank': the first line, which should name")));
}

TEST(LineSource, NoticesAFileThatWasCutShort) {
  const testing::TempDir dir;
  const std::string path = WriteFile(dir, "a", "1\n2\n3\n");
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto source, LineSource::Open({path}, {}));
  TANDEM_EXPECT_OK(source->CheckUnchanged());
  ASSERT_EQ(truncate(path.c_str(), 2), 0);
  EXPECT_THAT(source->CheckUnchanged(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("from 6 to 2 bytes")));
}

}  // namespace
}  // namespace tandem::worker
