// SPDX-License-Identifier: Apache-2.0
#include "worker/synthetic/planted.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "tests/worker/data/test_files.h"

namespace tandem::worker {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

PlantedOptions Small() {
  PlantedOptions options;
  options.rows = 30000;
  options.num_sparse = 6;
  options.max_vocabulary = 300;
  options.num_dense = 3;
  return options;
}

TEST(Planted, SidecarHoldsTheMetricsOfTheTrueModel) {
  const testing::TempDir dir;
  for (const std::string name : {"log.tsv", "log.csv"}) {
    const PlantedOptions options = Small();
    const std::string path = dir.File(name);
    TANDEM_ASSERT_OK_AND_ASSIGN(const PlantedSummary written, WritePlanted(options, path));
    TANDEM_ASSERT_OK_AND_ASSIGN(const PlantedSummary summary, ReadPlantedSummary(path));
    TANDEM_ASSERT_OK_AND_ASSIGN(const PlantedModel model, PlantedModel::Create(options));

    // Score the lines of the file without the code that wrote it.
    std::map<Split, ScoredExamples> scored;
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    const char delimiter = name == "log.csv" ? ',' : '\t';
    std::vector<std::string> header = absl::StrSplit(line, delimiter);
    ASSERT_EQ(header.size(), 1 + 3 + 6);
    while (std::getline(file, line)) {
      const std::vector<std::string> fields = absl::StrSplit(line, delimiter);
      ASSERT_EQ(fields.size(), header.size());
      std::vector<float> dense;
      std::vector<uint32_t> ids;
      for (int d = 0; d < 3; ++d) dense.push_back(std::stof(fields[1 + d]));
      for (int f = 0; f < 6; ++f) ids.push_back(static_cast<uint32_t>(std::stoul(fields[4 + f])));
      scored[options.split.Of(line, 0)].Add({std::stof(fields[0])},
                                            {static_cast<float>(model.Logit(ids, dense))});
    }
    const std::pair<Split, ClickMetrics> expected[] = {
        {Split::kTrain, summary.train}, {Split::kValid, summary.valid}, {Split::kTest, summary.test}};
    uint64_t rows = 0;
    for (const auto& [split, metrics] : expected) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const ClickMetrics measured, scored[split].Evaluate());
      EXPECT_NEAR(measured.auc, metrics.auc, 1e-9);
      EXPECT_NEAR(measured.logloss, metrics.logloss, 1e-9);
      EXPECT_EQ(measured.examples, metrics.examples);
      EXPECT_EQ(measured.positives, metrics.positives);
      rows += measured.examples;
    }
    EXPECT_EQ(rows, options.rows);
    EXPECT_EQ(written.test.auc, summary.test.auc);

    DatasetOptions data_options = {.schema = PlantedSchema(options, path), .train_files = {path}};
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(data_options));
    EXPECT_EQ(*data->Count(Split::kTest), summary.test.examples) << "Dataset splits as the sidecar says";
    EXPECT_EQ(*data->Count(Split::kTrain), summary.train.examples);
    EXPECT_EQ(data->num_dense(), 3);
    EXPECT_EQ(data->num_sparse(), 6);
  }
}

TEST(Planted, IsAFunctionOfTheSeedAndNotOfThreads) {
  const testing::TempDir dir;
  PlantedOptions options = Small();
  options.rows = 150000;  // several chunks
  options.threads = 1;
  TANDEM_ASSERT_OK(WritePlanted(options, dir.File("a.tsv")));
  options.threads = 3;
  TANDEM_ASSERT_OK(WritePlanted(options, dir.File("b.tsv")));
  options.seed = 2;
  TANDEM_ASSERT_OK(WritePlanted(options, dir.File("c.tsv")));
  const std::string a = ReadFile(dir.File("a.tsv")).value();
  EXPECT_EQ(a, ReadFile(dir.File("b.tsv")).value());
  EXPECT_NE(a, ReadFile(dir.File("c.tsv")).value());
  EXPECT_EQ(std::count(a.begin(), a.end(), '\n'), 150001);
  EXPECT_EQ(ReadFile(PlantedSummaryPath(dir.File("a.tsv"))).value(),
            ReadFile(PlantedSummaryPath(dir.File("b.tsv"))).value());
}

TEST(Planted, IdsFollowZipfAndLabelsTheirRate) {
  PlantedOptions options = Small();
  options.zipf_exponent = 1.05;
  TANDEM_ASSERT_OK_AND_ASSIGN(const PlantedModel model, PlantedModel::Create(options));
  constexpr int kRows = 200000;
  const size_t last = model.vocabulary().size() - 1;
  ASSERT_EQ(model.vocabulary()[last], 300);
  std::vector<int> counts(300);
  double labels = 0;
  double probabilities = 0;
  PlantedModel::Row row;
  for (int i = 0; i < kRows; ++i) {
    model.Generate(i, &row);
    ASSERT_LT(row.ids[last], 300);
    ++counts[row.ids[last]];
    labels += row.label ? 1 : 0;
    probabilities += Sigmoid(row.logit);
  }
  double norm = 0;
  for (int i = 1; i <= 300; ++i) norm += std::pow(i, -1.05);
  double chi_square = 0;
  for (int i = 0; i < 300; ++i) {
    const double expected = kRows * std::pow(i + 1, -1.05) / norm;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 380) << "299 degrees of freedom: 1 in 1000 lies above";
  EXPECT_NEAR(labels / kRows, probabilities / kRows, 4 * std::sqrt(0.21 / kRows))
      << "labels are drawn as they say";
  EXPECT_NEAR(labels / kRows, options.positive_rate, 0.03);
}

TEST(Planted, LogitsHaveTheSpreadAskedFor) {
  PlantedOptions options = Small();
  for (int part = 0; part < 3; ++part) {
    options.linear_stddev = part == 0 ? 1.1 : 0;
    options.interaction_stddev = part == 1 ? 0.7 : 0;
    options.dense_stddev = part == 2 ? 0.5 : 0;
    TANDEM_ASSERT_OK_AND_ASSIGN(const PlantedModel model, PlantedModel::Create(options));
    double sum = 0;
    double squares = 0;
    constexpr int kRows = 100000;
    PlantedModel::Row row;
    for (int i = 0; i < kRows; ++i) {
      model.Generate(i, &row);
      sum += row.logit;
      squares += row.logit * row.logit;
    }
    const double mean = sum / kRows;
    EXPECT_NEAR(mean, model.bias(), 0.02) << part;
    EXPECT_NEAR(std::sqrt(squares / kRows - mean * mean),
                part == 0   ? 1.1
                : part == 1 ? 0.7
                            : 0.5,
                0.03)
        << part;
  }
}

TEST(Planted, BestAucOfTheDefaultsIsAboutFourFifths) {
  const testing::TempDir dir;
  PlantedOptions options;
  options.rows = 100000;
  for (uint64_t seed : {1, 2, 3}) {
    options.seed = seed;
    TANDEM_ASSERT_OK_AND_ASSIGN(const PlantedSummary summary, WritePlanted(options, dir.File("log.tsv")));
    EXPECT_NEAR(summary.train.auc, 0.80, 0.015) << seed;
  }
}

TEST(Planted, FurtherColumnsHaveTheirOwnSizeAndSkewAndLeaveTheOthersAsTheyAre) {
  const testing::TempDir dir;
  PlantedOptions options = Small();
  TANDEM_ASSERT_OK_AND_ASSIGN(const PlantedModel before, PlantedModel::Create(options));
  options.more_columns = {{.vocabulary = 1000, .zipf_exponent = 0}, {.vocabulary = 1000, .zipf_exponent = 2}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const PlantedModel model, PlantedModel::Create(options));
  const size_t columns = static_cast<size_t>(options.num_sparse);
  ASSERT_EQ(model.vocabulary().size(), columns + 2);
  PlantedModel::Row row, row_before;
  int first_of_uniform = 0, first_of_skewed = 0;
  for (uint64_t i = 0; i < 2000; ++i) {
    model.Generate(i, &row);
    before.Generate(i, &row_before);
    EXPECT_TRUE(std::equal(row_before.ids.begin(), row_before.ids.end(), row.ids.begin()));
    first_of_uniform += row.ids[columns] == 0;
    first_of_skewed += row.ids[columns + 1] == 0;
  }
  EXPECT_LT(first_of_uniform, 20);
  EXPECT_GT(first_of_skewed, 1000);
  EXPECT_EQ(PlantedSchema(options, dir.File("log.tsv")).sparse.size(), columns + 2);
}

TEST(Planted, RefusesOptionsThatMakeNoSense) {
  const testing::TempDir dir;
  const std::string path = dir.File("log.tsv");
  const auto refused = [&](auto change, const char* name) {
    PlantedOptions options = Small();
    change(&options);
    EXPECT_THAT(WritePlanted(options, path), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  };
  refused([](auto* o) { o->rows = 0; }, "rows");
  refused([](auto* o) { o->num_sparse = 0; }, "num_sparse");
  refused([](auto* o) { o->num_dense = -1; }, "num_dense");
  refused([](auto* o) { o->min_vocabulary = 1; }, "min_vocabulary");
  refused([](auto* o) { o->max_vocabulary = 1; }, "max_vocabulary");
  refused([](auto* o) { o->zipf_exponent = std::nan(""); }, "zipf_exponent");
  refused([](auto* o) { o->interacting = 7; }, "interacting");
  refused([](auto* o) { o->dim = 0; }, "dim");
  refused([](auto* o) { o->more_columns = {{.vocabulary = 1}}; }, "vocabulary of a further column");
  refused([](auto* o) { o->linear_stddev = -1; }, "standard deviation");
  refused([](auto* o) { o->positive_rate = 1; }, "positive_rate");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Planted, FilesAppearWholeOrNotAtAll) {
  const testing::TempDir dir;
  EXPECT_THAT(WritePlanted(Small(), dir.File("no/such/folder/log.tsv")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/such/folder/log.tsv")));
  EXPECT_THAT(ReadPlantedSummary(dir.File("missing.tsv")), StatusIs(absl::StatusCode::kNotFound));
  for (const char* text : {"", "{", "[]", "{\"rows\": \"many\"}"}) {
    WriteFile(dir, "odd.tsv.json", text);
    EXPECT_THAT(ReadPlantedSummary(dir.File("odd.tsv")), StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

}  // namespace
}  // namespace tandem::worker
