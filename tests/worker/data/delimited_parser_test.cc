// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "base/random.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/line_parser.h"

namespace tandem::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Parses single lines with a schema, each into row 0 of a new batch.
class Parser {
 public:
  Parser(const Schema& schema, const std::vector<std::string>& columns, std::vector<DenseScale> scales = {})
      : schema_(schema) {
    scales.resize(schema.dense.size());
    parser_ = MakeDelimitedParser(schema, columns, scales);
  }

  // Returns why the line is malformed; empty if it is well-formed.
  std::string Parse(absl::string_view line) {
    PrepareBatch(schema_, 1, &batch);
    std::string reason;
    const bool parsed = parser_->Parse(line, 0, &batch, &reason);
    EXPECT_NE(parsed, !reason.empty()) << reason;
    TrimBatch(parsed ? 1 : 0, &batch);
    return reason;
  }

  Batch batch;

 private:
  const Schema schema_;
  std::unique_ptr<LineParser> parser_;
};

Schema OneSparse() {
  Schema schema;
  schema.label = "y";
  schema.sparse = {{.column = "c"}};
  return schema;
}

TEST(DelimitedParser, UnderstandsQuotedFields) {
  struct Case {
    const char* line;
    const char* value;  // of column c; null: malformed
  };
  const Case cases[] = {
      {"1,abc,x", "abc"},        {"1,,x", ""},
      {"1,\"abc\",x", "abc"},    {"1,\"a,c\",x", "a,c"},
      {"1,\"\",x", ""},          {"1,\"a\"\"c\",x", "a\"c"},
      {"1,\"\"\"\",x", "\""},    {"\"1\",\"a\",\"x\"", "a"},
      {"1,a\"c,x", "a\"c"},                             // a quote inside an unquoted field is a character
      {"1,\"a\",", "a"},         {"1,\"a\"", nullptr},  // too few
      {"1,a,x,y", nullptr},                             // too many
      {"1,\"a,x", nullptr},                             // not closed
      {"1,\"a\"c,x", nullptr},                          // text after the quote
      {"1,\"a\"\"c,x", nullptr},
  };
  Parser parser(OneSparse(), {"y", "c", "z"});
  for (const Case& c : cases) {
    const std::string reason = parser.Parse(c.line);
    EXPECT_EQ(reason.empty(), c.value != nullptr) << c.line << ": " << reason;
    if (c.value == nullptr || !reason.empty()) continue;
    EXPECT_THAT(parser.batch.sparse[0].ids, ElementsAre(HashBytes(c.value, HashBytes("c")))) << c.line;
  }
}

TEST(DelimitedParser, TsvKeepsQuotes) {
  Schema schema = OneSparse();
  schema.format = DataFormat::kTsv;
  Parser parser(schema, {"y", "c"});
  EXPECT_EQ(parser.Parse("1\t\"a"), "");
  EXPECT_THAT(parser.batch.sparse[0].ids, ElementsAre(HashBytes("\"a", HashBytes("c"))));
}

TEST(DelimitedParser, ReadsLabels) {
  struct Case {
    const char* text;
    int plain;      // -1: malformed
    int from_four;  // with the threshold 4
  };
  const Case cases[] = {{"0", 0, 0},   {"1", 1, 0},    {"-1", 0, 0},    {"+1", 1, 0},    {"1.0", 1, 0},
                        {" 1 ", 1, 0}, {"4", -1, 1},   {"3.9", -1, 0},  {"4.5", -1, 1},  {"", -1, -1},
                        {"x", -1, -1}, {"1x", -1, -1}, {"inf", -1, -1}, {"NaN", -1, -1}, {"--1", -1, -1},
                        {"-", -1, -1}, {"1e1", -1, 1}};
  Schema schema = OneSparse();
  Parser plain(schema, {"y", "c"});
  schema.has_threshold = true;
  schema.threshold = 4;
  Parser threshold(schema, {"y", "c"});
  for (const Case& c : cases) {
    const std::string line = absl::StrCat(c.text, ",a");
    const int first = plain.Parse(line).empty() ? static_cast<int>(plain.batch.labels[0]) : -1;
    EXPECT_EQ(first, c.plain) << c.text;
    const int second = threshold.Parse(line).empty() ? static_cast<int>(threshold.batch.labels[0]) : -1;
    EXPECT_EQ(second, c.from_four) << c.text;
  }
}

TEST(DelimitedParser, TransformsDenseColumns) {
  Schema schema;
  schema.label = "y";
  schema.dense = {{.column = "a"}, {.column = "b", .transform = DenseTransform::kLog1p}, {.column = "c"}};
  const DenseScale log = {.transform = DenseTransform::kLog1p};
  const DenseScale standard = {.transform = DenseTransform::kStandardize, .mean = 10, .scale = 0.5f};
  Parser parser(schema, {"y", "a", "b", "c"}, {{}, log, standard});
  struct Case {
    const char* text;
    bool good;
    double value;
    bool missing = false;
  };
  const Case cases[] = {{"3", true, 3},
                        {"-2", true, -2},
                        {"+5", true, 5},
                        {"1e-3", true, 1e-3},
                        {"0.25", true, 0.25},
                        {" 7", true, 7},
                        {"123456", true, 123456},
                        {"12345678901234567890", true, 12345678901234567890.0},
                        {"", true, 0, true},
                        {"NA", true, 0, true},
                        {"\\N", true, 0, true},
                        {"?", true, 0, true},
                        {"nan", false, 0},
                        {"NaN", false, 0},
                        {"abc", false, 0},
                        {"1.2.3", false, 0},
                        {"inf", false, 0},
                        {"1e300", false, 0},
                        {"0x10", false, 0},
                        {"-", false, 0},
                        {"+-1", false, 0},
                        {"3.4028235e+38", true, 3.4028234663852886e38},
                        {"3.4028236e+38", false, 0}};
  for (const Case& c : cases) {
    const std::string reason = parser.Parse(absl::StrCat("0,", c.text, ",", c.text, ",", c.text));
    EXPECT_EQ(reason.empty(), c.good) << c.text << ": " << reason;
    if (!c.good) {
      EXPECT_THAT(reason, HasSubstr("column 'a' holds"));
      continue;
    }
    ASSERT_EQ(parser.batch.dense.size(), 3);
    if (c.missing) {
      EXPECT_THAT(parser.batch.dense, ElementsAre(0, 0, 0)) << c.text;
      continue;
    }
    const float x = static_cast<float>(c.value);
    EXPECT_FLOAT_EQ(parser.batch.dense[0], x) << c.text;
    EXPECT_FLOAT_EQ(parser.batch.dense[1], std::copysign(std::log1p(std::abs(x)), x)) << c.text;
    EXPECT_FLOAT_EQ(parser.batch.dense[2], (x - 10) * 0.5f) << c.text;
  }
}

TEST(DelimitedParser, NaNIsMissingOnlyIfTheSchemaSaysSo) {
  Schema schema;
  schema.label = "y";
  schema.dense = {{.column = "a"}};
  Parser strict(schema, {"y", "a"}, {{}});
  EXPECT_THAT(strict.Parse("0,nan"), AllOf(HasSubstr("column 'a' holds \"nan\""), HasSubstr("data.nan")));
  schema.nan_is_missing = true;
  Parser lenient(schema, {"y", "a"}, {{}});
  for (const char* text : {"nan", "NaN", " nan "}) {
    EXPECT_EQ(lenient.Parse(absl::StrCat("0,", text)), "") << text;
    EXPECT_THAT(lenient.batch.dense, ElementsAre(0)) << text;
  }
  for (const char* text : {"inf", "-inf", "Infinity", "nan(1)"}) {
    EXPECT_NE(lenient.Parse(absl::StrCat("0,", text)), "") << text;
  }
}

TEST(DelimitedParser, QuotesUnprintableBytesAsEscapes) {
  Schema schema;
  schema.label = "y";
  schema.dense = {{.column = "a"}};
  Parser parser(schema, {"y", "a"}, {{}});
  EXPECT_THAT(parser.Parse("0,\x1b[2J\xff"), HasSubstr("holds \"\\x1b[2J\\xff\", not a number"));
  EXPECT_THAT(parser.Parse("\x07,1"), HasSubstr("the label \"\\x07\" is not a number"));
}

TEST(DelimitedParser, AnOptionalLabelMayBeMissing) {
  Schema schema;
  schema.label = "y";
  schema.dense = {{.column = "a"}};
  schema.label_is_optional = true;
  Parser with(schema, {"y", "a"}, {{}});
  EXPECT_EQ(with.Parse(",1"), "");
  EXPECT_TRUE(std::isnan(with.batch.labels[0]));
  EXPECT_NE(with.Parse("x,1"), "") << "a label that is there must be one";
  Parser without(schema, {"a"}, {{}});
  EXPECT_EQ(without.Parse("1"), "");
  EXPECT_TRUE(std::isnan(without.batch.labels[0]));
}

TEST(DelimitedParser, EqualTextsOfDifferentFeaturesAreDifferentIds) {
  Schema schema = OneSparse();
  schema.sparse = {{.column = "a"}, {.column = "b"}, {.column = "c", .shared_as = "a"}};
  Parser parser(schema, {"y", "a", "b", "c"});
  ASSERT_EQ(parser.Parse("0,v,v,v"), "");
  const auto& sparse = parser.batch.sparse;
  EXPECT_NE(sparse[0].ids[0], sparse[1].ids[0]);
  EXPECT_EQ(sparse[0].ids[0], sparse[2].ids[0]) << "shared_as shares";
  ASSERT_EQ(parser.Parse("0,,,"), "");
  EXPECT_NE(sparse[0].ids[0], sparse[1].ids[0]) << "missing values too";
}

TEST(DelimitedParser, HashBucketsBoundTheNumberOfIds) {
  Schema schema = OneSparse();
  schema.sparse = {{.column = "c", .hash_buckets = 10}, {.column = "d", .hash_buckets = 10}};
  Parser parser(schema, {"y", "c", "d"});
  std::vector<uint64_t> ids[2];
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(parser.Parse(absl::StrCat("0,", i, ",", i)), "");
    for (int f = 0; f < 2; ++f) ids[f].push_back(parser.batch.sparse[f].ids[0]);
  }
  for (auto& list : ids) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    EXPECT_EQ(list.size(), 10);
  }
  std::vector<uint64_t> both;
  std::set_intersection(ids[0].begin(), ids[0].end(), ids[1].begin(), ids[1].end(), std::back_inserter(both));
  EXPECT_THAT(both, IsEmpty()) << "buckets of different features are different ids";
}

TEST(DelimitedParser, SplitsMultiValuedFields) {
  Schema schema = OneSparse();
  schema.sparse = {{.column = "c", .separator = '|'}};
  const auto parser = MakeDelimitedParser(schema, {"y", "c"}, {});
  const uint64_t seed = HashBytes("c");
  const auto id = [&](absl::string_view value) { return HashBytes(value, seed); };
  Batch batch;
  PrepareBatch(schema, 5, &batch);
  std::string reason;
  ASSERT_TRUE(parser->Parse("0,a|b", 0, &batch, &reason));
  ASSERT_TRUE(parser->Parse("0,", 1, &batch, &reason));
  ASSERT_FALSE(parser->Parse("0,x|y,z", 2, &batch, &reason));
  ASSERT_TRUE(parser->Parse("0,|c||d|", 2, &batch, &reason));
  ASSERT_TRUE(parser->Parse("0,e|f", 3, &batch, &reason));
  ASSERT_TRUE(parser->Parse("0,g", 3, &batch, &reason)) << "a row may be written again";
  TrimBatch(4, &batch);
  EXPECT_EQ(batch.size, 4);
  EXPECT_THAT(batch.sparse[0].ids, ElementsAre(id("a"), id("b"), id("c"), id("d"), id("g")));
  EXPECT_THAT(batch.sparse[0].offsets, ElementsAre(0, 2, 2, 4, 5));
}

TEST(SplitDelimited, AgreesWithAJoinerOnRandomFields) {
  CounterRandom random(5, 1);
  const std::string alphabet = "ab,\"c ";
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> expected(1 + random.Below(5));
    std::string line;
    for (size_t f = 0; f < expected.size(); ++f) {
      for (uint64_t n = random.Below(5); n > 0; --n) expected[f] += alphabet[random.Below(alphabet.size())];
      if (f > 0) line += ',';
      const bool quote = expected[f].find_first_of(",\"") != std::string::npos || random.Below(3) == 0;
      if (!quote) {
        line += expected[f];
        continue;
      }
      line += '"';
      for (char c : expected[f]) line.append(c == '"' ? 2 : 1, c);
      line += '"';
    }
    std::vector<std::string> fields;
    std::string reason;
    ASSERT_TRUE(SplitDelimited(line, ',', true, &fields, &reason)) << line << ": " << reason;
    EXPECT_EQ(fields, expected) << line;
  }
}

}  // namespace
}  // namespace tandem::worker
