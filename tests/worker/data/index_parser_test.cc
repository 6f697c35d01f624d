// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/line_parser.h"

namespace tandem::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

uint64_t Id(uint64_t index) { return Mix64(HashBytes("index"), index); }

Schema Positional(int features) {
  Schema schema;
  schema.format = DataFormat::kLibfm;
  for (int i = 0; i < features; ++i)
    schema.sparse.push_back({.column = absl::StrCat(i), .shared_as = "index"});
  return schema;
}

Schema Bag() {
  Schema schema;
  schema.format = DataFormat::kLibsvm;
  schema.sparse = {{.column = "features", .separator = ' ', .shared_as = "index"}};
  return schema;
}

TEST(IndexParser, TellsGoodLinesFromMalformedOnes) {
  struct Case {
    const char* line;
    int features;  // -1: malformed
  };
  const Case cases[] = {
      {"1 3:1 5:1", 2},
      {"0 3:1 5:1", 2},
      {"-1 3:1 5:1", 2},
      {"+1 3:0.5 5:-2e-3", 2},
      {"1\t3:1\t5:1", 2},
      {"  1  3:1   5:1  ", 2},
      {"1 3:1 5:1 # 7:1", 2},
      {"1 3:1 5:1#x", 2},
      {"1", 0},
      {"1 3:1", 1},
      {"0 18446744073709551615:1", 1},
      {"2 3:1", -1},
      {"x 3:1", -1},
      {"1 3", -1},
      {"1 3:", -1},
      {"1 :1", -1},
      {"1 3:x", -1},
      {"1 -3:1", -1},
      {"1 a:1", -1},
      {"1 3:1:1", -1},
      {"1 3:nan", -1},
      {"1 3:inf", -1},
      {"1 18446744073709551616:1", -1},
      {"# only", -1},
      {"1 qid:7 3:1 4:1", 2},
      {"1 qid:7", 0},
      {"1 3:1 qid:7", -1},
      {"1 -3:1", -1},
  };
  const Schema bag = Bag();
  const auto parser = MakeIndexParser(bag);
  for (const Case& c : cases) {
    EXPECT_EQ(CountIndexFeatures(bag, c.line), c.features) << c.line;
    Batch batch;
    PrepareBatch(bag, 1, &batch);
    std::string reason;
    const bool parsed = parser->Parse(c.line, 0, &batch, &reason);
    EXPECT_EQ(parsed, c.features >= 0) << c.line << ": " << reason;
    EXPECT_NE(parsed, !reason.empty()) << c.line;
    TrimBatch(parsed ? 1 : 0, &batch);
    if (parsed) {
      EXPECT_EQ(batch.sparse[0].ids.size(), c.features) << c.line;
    }
  }
}

TEST(IndexParser, PutsFeaturesIntoColumnsByPosition) {
  const Schema schema = Positional(2);
  const auto parser = MakeIndexParser(schema);
  Batch batch;
  PrepareBatch(schema, 4, &batch);
  std::string reason;
  ASSERT_TRUE(parser->Parse("1 3:1 8:1", 0, &batch, &reason));
  ASSERT_FALSE(parser->Parse("1 3:1", 1, &batch, &reason));
  EXPECT_THAT(reason, HasSubstr("1 features found, 2 expected"));
  ASSERT_FALSE(parser->Parse("1 3:1 4:1 5:1", 1, &batch, &reason));
  EXPECT_THAT(reason, HasSubstr("3 features found, 2 expected"));
  ASSERT_TRUE(parser->Parse("0 4:1 3:1", 1, &batch, &reason));
  TrimBatch(2, &batch);
  EXPECT_THAT(batch.labels, ElementsAre(1, 0));
  EXPECT_THAT(batch.sparse[0].ids, ElementsAre(Id(3), Id(4)));
  EXPECT_THAT(batch.sparse[1].ids, ElementsAre(Id(8), Id(3))) << "an index means the same at every position";
  EXPECT_THAT(batch.sparse[0].weights, IsEmpty());
  EXPECT_THAT(batch.sparse[0].offsets, IsEmpty());
}

TEST(IndexParser, KeepsValuesOtherThanOneAsWeights) {
  for (const bool positional : {true, false}) {
    const Schema schema = positional ? Positional(2) : Bag();
    const auto parser = MakeIndexParser(schema);
    Batch batch;
    PrepareBatch(schema, 4, &batch);
    std::string reason;
    ASSERT_TRUE(parser->Parse("1 1:1 2:1", 0, &batch, &reason));
    ASSERT_FALSE(parser->Parse("1 5:9 6:9 7", 1, &batch, &reason));
    ASSERT_TRUE(parser->Parse("1 1:1 2:0.5", 1, &batch, &reason));
    ASSERT_TRUE(parser->Parse("1 3:1 4:1", 2, &batch, &reason));
    TrimBatch(3, &batch);
    if (positional) {
      EXPECT_THAT(batch.sparse[1].ids, ElementsAre(Id(2), Id(2), Id(4)));
      EXPECT_THAT(batch.sparse[1].weights, ElementsAre(1, 0.5f, 1));
    } else {
      EXPECT_THAT(batch.sparse[0].ids, ElementsAre(Id(1), Id(2), Id(1), Id(2), Id(3), Id(4)));
      EXPECT_THAT(batch.sparse[0].weights, ElementsAre(1, 1, 1, 0.5f, 1, 1));
      EXPECT_THAT(batch.sparse[0].offsets, ElementsAre(0, 2, 4, 6));
    }
  }
}

TEST(IndexParser, TheQueryOfALibsvmLineIsKeptIfSomebodyWantsIt) {
  Schema schema = Positional(1);
  schema.format = DataFormat::kLibsvm;
  schema.kept = {"qid"};
  const auto parser = MakeIndexParser(schema);
  Batch batch;
  PrepareBatch(schema, 2, &batch);
  std::string reason;
  ASSERT_TRUE(parser->Parse("1 qid:17 3:1 # comment", 0, &batch, &reason)) << reason;
  ASSERT_TRUE(parser->Parse("0 4:1", 1, &batch, &reason)) << reason;
  EXPECT_THAT(batch.kept, ElementsAre("17", ""));
  EXPECT_THAT(batch.sparse[0].ids, ElementsAre(Id(3), Id(4)));
}

TEST(IndexParser, NegativeIndexesAreBitsOnlyIfTheSchemaSaysSo) {
  Schema schema = Positional(1);
  Batch batch;
  PrepareBatch(schema, 1, &batch);
  std::string reason;
  EXPECT_FALSE(MakeIndexParser(schema)->Parse("1 -2:1", 0, &batch, &reason));
  EXPECT_THAT(reason, HasSubstr("data.negative_index: bits"));
  schema.negative_index_is_bits = true;
  const auto parser = MakeIndexParser(schema);
  ASSERT_TRUE(parser->Parse("1 -2:1", 0, &batch, &reason)) << reason;
  EXPECT_THAT(batch.sparse[0].ids, ElementsAre(Id(~uint64_t{0} - 1)));
  ASSERT_TRUE(parser->Parse("1 -9223372036854775808:1", 0, &batch, &reason)) << reason;
  EXPECT_THAT(batch.sparse[0].ids, ElementsAre(Id(uint64_t{1} << 63)));
  EXPECT_FALSE(parser->Parse("1 -9223372036854775809:1", 0, &batch, &reason));
  EXPECT_FALSE(parser->Parse("1 --2:1", 0, &batch, &reason));
}

TEST(IndexParser, ForgetsAMalformedLastLine) {
  const Schema schema = Bag();
  const auto parser = MakeIndexParser(schema);
  Batch batch;
  PrepareBatch(schema, 2, &batch);
  std::string reason;
  ASSERT_TRUE(parser->Parse("1 1:2", 0, &batch, &reason));
  ASSERT_FALSE(parser->Parse("1 5:9 6:9 7", 1, &batch, &reason));
  TrimBatch(1, &batch);
  EXPECT_THAT(batch.sparse[0].ids, ElementsAre(Id(1)));
  EXPECT_THAT(batch.sparse[0].weights, ElementsAre(2));
}

}  // namespace
}  // namespace tandem::worker
