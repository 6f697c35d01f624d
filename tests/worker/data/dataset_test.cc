// SPDX-License-Identifier: Apache-2.0
#include "worker/data/dataset.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/random.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/split.h"

namespace tandem::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using testing::StatusIs;
using Tail = ReadOptions::Tail;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

DatasetOptions Undivided(const std::string& path) {
  return {.schema = NumberedSchema(), .train_files = {path}, .valid_fraction = 0, .test_fraction = 0};
}

TEST(Dataset, ReadsBatchesInFileOrder) {
  const testing::TempDir dir;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data,
                              Dataset::Open(Undivided(WriteFile(dir, "a.csv", NumberedCsv(5)))));
  EXPECT_EQ(data->num_dense(), 1);
  EXPECT_EQ(data->num_sparse(), 1);
  const Seen seen = ReadAll(data.get(), {.batch_size = 2});
  TANDEM_EXPECT_OK(seen.status);
  EXPECT_THAT(seen.batches, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));

  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, data->Read({.batch_size = 5}));
  Batch batch;
  ASSERT_TRUE(*reader->Next(&batch));
  EXPECT_THAT(batch.labels, ElementsAre(0, 1, 0, 1, 0));
  EXPECT_EQ(batch.sparse[0].ids[3], HashBytes("v3", HashBytes("c")));
  EXPECT_THAT(batch.sparse[0].offsets, IsEmpty());
  EXPECT_FALSE(*reader->Next(&batch));
  EXPECT_EQ(batch.size, 0);
  EXPECT_FALSE(*reader->Next(&batch)) << "the end stays the end";
}

TEST(Dataset, ReadersOutliveTheDataset) {
  const testing::TempDir dir;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto data, Dataset::Open(Undivided(WriteFile(dir, "a.csv", NumberedCsv(5)))));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, data->Read({}));
  data.reset();
  EXPECT_THAT(Drain(reader.get()).All(), SizeIs(5));
}

TEST(Dataset, CutsSplitsOnlyFromFilesThatHaveThemNot) {
  const testing::TempDir dir;
  const std::string train = WriteFile(dir, "train.csv", NumberedCsv(1000));
  const std::string valid = WriteFile(dir, "valid.csv", NumberedCsv(50, 2000));
  DatasetOptions options = {.schema = NumberedSchema(), .train_files = {train}, .valid_files = {valid}};
  options.valid_fraction = 0.5;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(options));
  const std::vector<int> in_valid = ReadAll(data.get(), {.split = Split::kValid}).All();
  EXPECT_THAT(in_valid, SizeIs(50));
  EXPECT_EQ(in_valid.front(), 2000);
  const std::vector<int> in_train = ReadAll(data.get(), {.split = Split::kTrain}).All();
  const std::vector<int> in_test = ReadAll(data.get(), {.split = Split::kTest}).All();
  EXPECT_EQ(in_train.size() + in_test.size(), 1000);
  EXPECT_NEAR(in_test.size(), 100, 40);
  EXPECT_EQ(*data->Count(Split::kTrain), in_train.size());
  EXPECT_EQ(*data->Count(Split::kValid), 50);
  EXPECT_EQ(*data->Count(Split::kTest), in_test.size());
}

TEST(Dataset, AnExampleStaysInItsSplitWhateverTheFileLooksLike) {
  const testing::TempDir dir;
  std::vector<std::string> lines = absl::StrSplit(NumberedCsv(300), '\n', absl::SkipEmpty());
  const std::string header = lines[0];
  lines.erase(lines.begin());
  std::reverse(lines.begin(), lines.end());
  std::string reversed = header + "\r\n";
  for (const std::string& line : lines) reversed += line + "\r\n";
  const std::string names[] = {WriteFile(dir, "a.csv", NumberedCsv(300)), WriteFile(dir, "b.csv", reversed)};
  std::set<int> test[2];
  for (int i = 0; i < 2; ++i) {
    DatasetOptions options = {.schema = NumberedSchema(), .train_files = {names[i]}};
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(options));
    const std::vector<int> all = ReadAll(data.get(), {.split = Split::kTest}).All();
    test[i].insert(all.begin(), all.end());
  }
  EXPECT_EQ(test[0], test[1]);
  EXPECT_THAT(test[0], Not(IsEmpty()));
}

TEST(Dataset, StandardizesOverTheTrainingSplitOnly) {
  const testing::TempDir dir;
  std::string text = "label,n,c\n1,,x\n1,bad,x\n";
  for (int i = 0; i < 400; ++i) absl::StrAppend(&text, i % 2, ",", i * i % 97, ",v", i, "\n");
  DatasetOptions options = {.schema = NumberedSchema(), .train_files = {WriteFile(dir, "a.csv", text)}};
  options.valid_fraction = 0.3;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto raw, Dataset::Open(options));
  options.schema.dense[0].transform = DenseTransform::kStandardize;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto scaled, Dataset::Open(options));
  const auto values = [](Dataset* data, Split split) {
    std::vector<double> all;
    auto reader = *data->Read({.split = split});
    Batch batch;
    while (*reader->Next(&batch)) all.insert(all.end(), batch.dense.begin(), batch.dense.end());
    return all;
  };
  // The empty field is 0 in both datasets. It is in the first line of the file, which is in the training
  // split.
  const SplitRule rule = {.seed = 1, .valid_fraction = 0.3, .test_fraction = 0.1};
  std::vector<double> before = values(raw.get(), Split::kTrain);
  std::vector<double> after = values(scaled.get(), Split::kTrain);
  if (rule.Of("1,,x", 0) == Split::kTrain) {
    EXPECT_EQ(after.front(), 0) << "an empty field is 0 after the transform";
    before.erase(before.begin());
    after.erase(after.begin());
  }
  const auto bad = static_cast<ptrdiff_t>(rule.Of("1,bad,x", 1) == Split::kTrain);  // replaced at the end
  before.resize(before.size() - bad);
  after.resize(after.size() - bad);
  const double n = static_cast<double>(before.size());
  const double mean = std::accumulate(before.begin(), before.end(), 0.0) / n;
  double variance = 0;
  for (double x : before) variance += (x - mean) * (x - mean) / n;
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_NEAR(after[i], (before[i] - mean) / std::sqrt(variance), 1e-4);
  const std::vector<double> valid_before = values(raw.get(), Split::kValid);
  const std::vector<double> valid_after = values(scaled.get(), Split::kValid);
  EXPECT_NEAR(valid_after[0], (valid_before[0] - mean) / std::sqrt(variance), 1e-4);
}

TEST(Dataset, ReadsCriteoLines) {
  const testing::TempDir dir;
  std::string good = "1";
  for (int i = 1; i <= 13; ++i) absl::StrAppend(&good, "\t", i == 2 ? "-1" : i == 3 ? "" : absl::StrCat(i));
  for (int i = 1; i <= 26; ++i) absl::StrAppend(&good, "\t", i == 5 ? "" : "68fd1e64");
  const std::string text =
      good + "\n" + good + "\t\n0\t1\n" + good.substr(0, good.rfind('\t')) + "\n" + good + "\n";
  DatasetOptions options = Undivided(WriteFile(dir, "day_0", text));
  options.schema = {.format = DataFormat::kCriteo};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(options));
  EXPECT_EQ(data->num_dense(), 13);
  EXPECT_EQ(data->num_sparse(), 26);
  EXPECT_EQ(data->schema().sparse[25].column, "C26");
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, data->Read({.tail = Tail::kExact}));
  Batch batch;
  ASSERT_TRUE(*reader->Next(&batch));
  EXPECT_EQ(batch.size, 2);
  EXPECT_EQ(reader->malformed_lines(), 3) << "41, 2 and 39 columns";
  EXPECT_FLOAT_EQ(batch.dense[0], std::log1p(1.0f));
  EXPECT_FLOAT_EQ(batch.dense[1], -std::log1p(1.0f));
  EXPECT_EQ(batch.dense[2], 0);
  EXPECT_EQ(batch.dense[13 + 12], std::log1p(13.0f));
  std::set<uint64_t> ids;
  for (const SparseColumn& column : batch.sparse) ids.insert(column.ids[0]);
  EXPECT_EQ(ids.size(), 26);
  EXPECT_EQ(batch.sparse[4].ids[0], HashBytes("", HashBytes("C5")));

  options.schema.sparse = {{.column = "C2"}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto part, Dataset::Open(options));
  EXPECT_EQ(part->num_dense(), 0) << "a schema that names features has these only";
  EXPECT_EQ(part->num_sparse(), 1);
}

TEST(Dataset, FindsTheFeaturesOfLibfmFiles) {
  struct Case {
    const char* text;
    int features;
    bool positional;
  };
  const Case cases[] = {
      {"1 1:1 5:1\n0 2:1 6:1\n", 2, true},
      {"# a comment\n1 1:1 5:1 # x:y\n0 2:1 6:1\n", 2, true},
      {"1 1:1 5:1\nmalformed\n0 2:1 6:1\n", 2, true},
      {"1 1:1 5:1\n0 2:1\n", 1, false},
      {"1\n0\n", 1, false},
      {"1 1:1\n0 2:1 # 3:1\n", 1, true},
  };
  const testing::TempDir dir;
  for (const Case& c : cases) {
    for (DataFormat format : {DataFormat::kLibsvm, DataFormat::kLibfm}) {
      DatasetOptions options = Undivided(WriteFile(dir, "a", c.text));
      options.schema = {.format = format};
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(options));
      EXPECT_EQ(data->num_sparse(), c.features) << c.text;
      EXPECT_EQ(data->schema().sparse[0].separator == '\0', c.positional) << c.text;
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, data->Read({.tail = Tail::kExact}));
      Batch batch;
      ASSERT_TRUE(*reader->Next(&batch)) << c.text;
      EXPECT_EQ(batch.size, 2) << c.text;
    }
  }
}

TEST(Dataset, ExplainsWhatIsWrongWithTheOptions) {
  const testing::TempDir dir;
  const std::string path = WriteFile(dir, "a.csv", NumberedCsv(3));
  DatasetOptions options = Undivided(path);
  options.schema.sparse.push_back({.column = "cc"});
  EXPECT_THAT(Dataset::Open(options),
              StatusIs(kInvalid, HasSubstr("sparse column 'cc' is not in the data; it has the "
                                           "columns label, n, c")));
  options = Undivided(path);
  options.schema.label = "click";
  EXPECT_THAT(Dataset::Open(options), StatusIs(kInvalid, HasSubstr("label column 'click'")));
  options = Undivided(path);
  options.schema.dense.clear();
  options.schema.sparse.clear();
  EXPECT_THAT(Dataset::Open(options), StatusIs(kInvalid, HasSubstr("no features are chosen")));
  options = Undivided(path);
  options.valid_fraction = 0.6;
  options.test_fraction = 0.4;
  EXPECT_THAT(Dataset::Open(options), StatusIs(kInvalid, HasSubstr("something to train on")));
  options = Undivided(path);
  options.train_files.clear();
  EXPECT_THAT(Dataset::Open(options), StatusIs(kInvalid, HasSubstr("no training files")));
  options = Undivided(path);
  options.schema.sparse[0].separator = ',';
  EXPECT_THAT(Dataset::Open(options), StatusIs(kInvalid, HasSubstr("column 'c'")));
  options = Undivided(WriteFile(dir, "twice.csv", "label,n,c,n\n"));
  EXPECT_THAT(Dataset::Open(options), StatusIs(kInvalid, HasSubstr("'n' twice")));
  options = Undivided(path);
  options.test_files = {WriteFile(dir, "other.csv", "label,n\n0,1\n")};
  EXPECT_THAT(Dataset::Open(options),
              StatusIs(kInvalid, AllOf(HasSubstr("other.csv': sparse column 'c'"), HasSubstr("label, n"))));
  options = Undivided(path);
  options.test_files = {dir.File("missing.csv")};
  EXPECT_THAT(Dataset::Open(options), StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing.csv")));
  options = Undivided(path);
  options.schema.format = DataFormat::kLibfm;
  EXPECT_THAT(Dataset::Open(options), StatusIs(kInvalid, HasSubstr("have no named columns")));

  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(Undivided(path)));
  EXPECT_THAT(data->Read({.batch_size = 0}), StatusIs(kInvalid));
  EXPECT_THAT(data->Read({.shuffle = true, .shuffle_buffer = 0}), StatusIs(kInvalid));
  EXPECT_THAT(data->Read({.rank = 2, .world_size = 2}), StatusIs(kInvalid, HasSubstr("rank 2")));
  EXPECT_THAT(data->Read({.rank = -1}), StatusIs(kInvalid));
}

TEST(Dataset, EachFileMayHaveItsColumnsInAnOrderOfItsOwn) {
  const testing::TempDir dir;
  const std::string a = WriteFile(dir, "a.csv", "label,n,c\n0,1,x\n1,2,y\n");
  const std::string b = WriteFile(dir, "b.csv", "c,extra,label,n\ny,?,1,3\nx,?,0,4\n");
  const std::string same = WriteFile(dir, "same.csv", "label,n,c\n0,1,x\n1,2,y\n1,3,y\n0,4,x\n");
  for (const auto transform : {DenseTransform::kNone, DenseTransform::kStandardize}) {
    const auto read = [&](const std::vector<std::string>& files, Split split) {
      DatasetOptions options = Undivided(a);
      options.schema.dense[0].transform = transform;
      (split == Split::kTrain ? options.train_files : options.test_files) = files;
      const auto data = Dataset::Open(options);
      TANDEM_EXPECT_OK(data);
      Batch batch;
      if (data.ok()) TANDEM_EXPECT_OK((*(*data)->Read({.split = split}))->Next(&batch));
      return batch;
    };
    for (const Split split : {Split::kTrain, Split::kTest}) {
      const Batch mixed = read({a, b}, split), plain = read({same}, split);
      EXPECT_EQ(mixed.labels, plain.labels);
      EXPECT_EQ(mixed.dense, plain.dense);
      EXPECT_EQ(mixed.sparse[0].ids, plain.sparse[0].ids);
      EXPECT_EQ(mixed.size, 4);
    }
  }
  DatasetOptions options = Undivided(a);
  options.train_files.push_back(WriteFile(dir, "less.csv", "label,c\n1,x\n"));
  EXPECT_THAT(Dataset::Open(options),
              StatusIs(kInvalid, AllOf(HasSubstr("less.csv': dense column 'n'"), HasSubstr("label, c"))));
  options.train_files.back() = WriteFile(dir, "unlabelled.csv", "n,c\n1,x\n");
  options.schema.label_is_optional = true;
  EXPECT_THAT(Dataset::Open(options), StatusIs(kInvalid, HasSubstr("unlabelled.csv' has no label column")));
}

TEST(Dataset, KeepsTheTextOfColumnsForTheCaller) {
  const testing::TempDir dir;
  DatasetOptions options = Undivided(WriteFile(dir, "a.csv", "label,n,c,user\n0,1,x,\"a,\"\"b\"\n1,2,y,\n"));
  options.train_files.push_back(WriteFile(dir, "b.csv", "user,c,n,label\nu,z,3,0\n"));
  options.schema.kept = {"user", "c"};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(options));
  Batch batch;
  TANDEM_EXPECT_OK((*data->Read({}))->Next(&batch));
  EXPECT_THAT(batch.kept, ElementsAre("a,\"b", "x", "", "y", "u", "z"));
  options.schema.kept = {"item"};
  EXPECT_THAT(Dataset::Open(options), StatusIs(kInvalid, HasSubstr("kept column 'item'")));
}

TEST(Dataset, WithoutHeaderColumnsAreNumbered) {
  const testing::TempDir dir;
  DatasetOptions options = Undivided(WriteFile(dir, "a.csv", "7,x,1\n8,y,0\n"));
  options.schema = {.delimiter = ',', .header = false, .label = "2"};
  options.schema.dense = {{.column = "0"}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(options));
  EXPECT_THAT(ReadAll(data.get(), {}).All(), ElementsAre(7, 8));
}

TEST(Dataset, AHeaderAloneHasNoExamples) {
  const testing::TempDir dir;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data,
                              Dataset::Open(Undivided(WriteFile(dir, "a.csv", NumberedCsv(0)))));
  EXPECT_EQ(*data->Count(Split::kTrain), 0);
  const Seen seen = ReadAll(data.get(), {});
  TANDEM_EXPECT_OK(seen.status);
  EXPECT_THAT(seen.batches, IsEmpty());
}

// A CSV file with malformed lines at the given rows.
std::string WithMalformed(int rows, const std::set<int>& malformed) {
  std::string text = "label,n,c\n";
  for (int i = 0; i < rows; ++i) {
    absl::StrAppend(&text, malformed.count(i) > 0 ? "x," : absl::StrCat(i % 2, ","), i, ",v", i, "\n");
  }
  return text;
}

TEST(Dataset, MalformedLinesDoNotPutWorkersOutOfStep) {
  const testing::TempDir dir;
  // All malformed lines belong to rank 1 of 3 (without shuffling). There are enough of them for whole
  // batches.
  std::set<int> malformed;
  for (int i = 1; i < 60; i += 3) malformed.insert(i);
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const auto data, Dataset::Open(Undivided(WriteFile(dir, "a.csv", WithMalformed(100, malformed)))));
  for (const bool shuffle : {false, true}) {
    for (Tail tail : {Tail::kPad, Tail::kDrop}) {
      for (int world = 1; world <= 5; ++world) {
        const size_t examples = tail == Tail::kPad ? (100 + world - 1) / world : 100 / world;
        std::set<int> all;
        for (int rank = 0; rank < world; ++rank) {
          const Seen seen =
              ReadAll(data.get(),
                      {.batch_size = 4, .shuffle = shuffle, .rank = rank, .world_size = world, .tail = tail});
          TANDEM_EXPECT_OK(seen.status);
          EXPECT_EQ(seen.batches.size(), (examples + 3) / 4) << "rank " << rank << " of " << world;
          const std::vector<int> mine = seen.All();
          EXPECT_EQ(mine.size(), examples);
          for (int n : mine) EXPECT_EQ(malformed.count(n), 0);
          const std::set<int> distinct(mine.begin(), mine.end());
          EXPECT_EQ(distinct.size() + seen.malformed, examples)
              << "good lines come once, others are made up for";
          all.insert(mine.begin(), mine.end());
        }
        if (tail == Tail::kPad) {
          EXPECT_EQ(all.size(), 100 - malformed.size()) << "no good line is lost";
        }
      }
    }
  }
}

TEST(Dataset, ExactReadingLeavesMalformedLinesOut) {
  const testing::TempDir dir;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data,
                              Dataset::Open(Undivided(WriteFile(dir, "a.csv", WithMalformed(6, {1, 2})))));
  const Seen seen = ReadAll(data.get(), {.tail = Tail::kExact});
  EXPECT_THAT(seen.All(), ElementsAre(0, 3, 4, 5));
  EXPECT_EQ(seen.malformed, 2);
}

TEST(Dataset, TooManyMalformedLinesAreFatalAndNamed) {
  const testing::TempDir dir;
  DatasetOptions options = Undivided(WriteFile(dir, "a.csv", WithMalformed(30, {4, 9, 14, 20, 25})));
  for (uint64_t limit : {0, 1, 4, 5}) {
    options.max_malformed = limit;
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(options));
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, data->Read({.batch_size = 2}));
    const Seen seen = Drain(reader.get());
    if (limit == 5) {
      TANDEM_EXPECT_OK(seen.status);
      continue;
    }
    EXPECT_THAT(seen.status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a.csv:6: the label \"x\"")));
    EXPECT_THAT(seen.status.message(), HasSubstr(absl::StrCat("more than ", limit, " malformed lines")));
    Batch batch;
    EXPECT_EQ(reader->Next(&batch).status(), seen.status) << "the error stays";
    EXPECT_EQ(batch.size, 0);
  }
}

TEST(Dataset, TheFirstTenMalformedLinesAreNamed) {
  const testing::TempDir dir;
  std::set<int> malformed;
  for (int i = 0; i < 12; ++i) malformed.insert(2 * i);
  DatasetOptions options = Undivided(WriteFile(dir, "a.csv", WithMalformed(30, malformed)));
  options.max_malformed = 11;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(options));
  const Seen seen = ReadAll(data.get(), {});
  // Row i is line i + 2.
  for (int i = 0; i < 12; ++i) {
    const std::string place = absl::StrCat("a.csv:", 2 * i + 2, ": the label");
    EXPECT_EQ(absl::StrContains(seen.status.message(), place), i < 10) << seen.status;
  }
  EXPECT_THAT(seen.status.message(), HasSubstr("; ..."));
}

TEST(Dataset, AWorkerWithoutAnyGoodLineSaysSo) {
  const testing::TempDir dir;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data,
                              Dataset::Open(Undivided(WriteFile(dir, "a.csv", WithMalformed(4, {1, 3})))));
  TANDEM_EXPECT_OK(ReadAll(data.get(), {.rank = 0, .world_size = 2}).status);
  EXPECT_THAT(ReadAll(data.get(), {.rank = 1, .world_size = 2}).status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("none of this worker's 2 lines")));
}

TEST(Dataset, AFileThatShrinksIsAnError) {
  const testing::TempDir dir;
  const std::string path = WriteFile(dir, "a.csv", NumberedCsv(5000));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(Undivided(path)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reader, data->Read({.batch_size = 10}));
  Batch batch;
  ASSERT_TRUE(*reader->Next(&batch));
  ASSERT_EQ(truncate(path.c_str(), 100), 0);
  EXPECT_THAT(reader->Next(&batch), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("was cut from")));
  EXPECT_THAT(data->Count(Split::kTrain), StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace tandem::worker
