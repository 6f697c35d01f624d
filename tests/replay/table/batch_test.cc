// SPDX-License-Identifier: Apache-2.0
#include "replay/table/batch.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/replay/items.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

using ::testing::ElementsAre;

Sample SampleOf(const std::vector<NewItem>& items) {
  Sample sample;
  for (const NewItem& item : items) sample.items.push_back({.key = 1, .trajectory = item.trajectory});
  return sample;
}

TEST(GatherBatch, StacksItemsOfEqualLength) {
  const auto layout = testing::IdLayout();
  const auto chunk = testing::IdChunk(layout, 10, 5);
  const Batch batch =
      GatherBatch(SampleOf({testing::ItemOf(layout, chunk, 0, 2), testing::ItemOf(layout, chunk, 3, 2)}));
  const BatchColumn* const id = batch.Find("id");
  ASSERT_NE(id, nullptr);
  EXPECT_EQ(id->steps, 2u);
  EXPECT_THAT(id->lengths, ElementsAre());
  EXPECT_THAT(id->values<int64_t>(), ElementsAre(10, 11, 13, 14));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(id->data.get()) % 64, 0u);
  EXPECT_EQ(batch.Find("other"), nullptr);
}

TEST(GatherBatch, KeepsTheLengthsOfItemsThatDiffer) {
  const auto layout = testing::IdLayout();
  const auto chunk = testing::IdChunk(layout, 10, 5);
  Batch batch =
      GatherBatch(SampleOf({testing::ItemOf(layout, chunk, 0, 2), testing::ItemOf(layout, chunk, 2, 2),
                            testing::ItemOf(layout, chunk, 4, 1), testing::ItemOf(layout, chunk, 1, 3)}));
  BatchColumn& id = batch.columns[0];
  EXPECT_EQ(id.steps, 0u);
  EXPECT_THAT(id.lengths, ElementsAre(2, 2, 1, 3));
  EXPECT_THAT(id.values<int64_t>(), ElementsAre(10, 11, 12, 13, 14, 11, 12, 13));
  PadColumn(&id);
  EXPECT_EQ(id.steps, 3u);
  EXPECT_THAT(id.values<int64_t>(), ElementsAre(10, 11, 0, 12, 13, 0, 14, 0, 0, 11, 12, 13));
}

TEST(GatherBatch, UsesTheMemoryThatItIsGiven) {
  const auto layout = testing::IdLayout();
  std::shared_ptr<char> memory;
  const Batch batch = GatherBatch(SampleOf({testing::IdItem(7)}), [&](size_t bytes) {
    memory = std::shared_ptr<char>(new char[bytes], std::default_delete<char[]>());
    return memory;
  });
  EXPECT_EQ(batch.columns[0].data.get(), memory.get());
}

TEST(GatherBatch, AnEmptySampleIsAnEmptyBatch) { EXPECT_EQ(GatherBatch(Sample()).size(), 0u); }

TEST(ImportanceWeights, EqualTheFormula) {
  EXPECT_THAT(ImportanceWeights({0.1, 0.4}, 5, 1, WeightScale::kNone), ElementsAre(2.0, 0.5));
  EXPECT_THAT(ImportanceWeights({0.1, 0.4}, 5, 1), ElementsAre(1.0, 0.25));
  EXPECT_THAT(ImportanceWeights({0.1, 0.4}, 5, 0), ElementsAre(1.0, 1.0));
  EXPECT_THAT(ImportanceWeights({0.25}, 1, 0.5, WeightScale::kNone), ElementsAre(2.0));
}

// Prioritized draws, weighted with beta 1, estimate the mean over the table's items without bias.
TEST(ImportanceWeights, MakePrioritizedSamplesUnbiased) {
  auto table = Table::Create(TableOptions::Prioritized("replay", 200, 1, 0.7));
  TANDEM_ASSERT_OK(table);
  double mean = 0;
  for (int i = 0; i < 200; ++i) {
    TANDEM_ASSERT_OK((*table)->Insert({testing::IdItem(i, 1.0 + i % 13)}));
    mean += std::sqrt(i) / 200;
  }
  double estimate = 0, squares = 0;
  constexpr int kDraws = 200'000;
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, (*table)->SampleItems({.batch = kDraws}));
  for (const SampledItem& item : sample.items) {
    const double weight = ImportanceWeights({item.probability}, sample.table_items, 1, WeightScale::kNone)[0];
    const double value = weight * std::sqrt(testing::IdOf(*item.trajectory));
    estimate += value / kDraws;
    squares += value * value / kDraws;
  }
  const double deviation = std::sqrt((squares - estimate * estimate) / kDraws);
  EXPECT_NEAR(estimate, mean, 5 * deviation);
  EXPECT_LT(deviation, 0.1);
}

TEST(ImportanceWeights, AreFiniteForItemsThatTheirSampleUsesUp) {
  TableOptions options = TableOptions::Prioritized("replay", 10, 1);
  options.max_times_sampled = 1;
  auto table = Table::Create(options);
  TANDEM_ASSERT_OK(table);
  for (int i = 0; i < 4; ++i) TANDEM_ASSERT_OK((*table)->Insert({testing::IdItem(i, 1.0 + i)}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, (*table)->SampleItems({.batch = 4}));
  const Batch batch = GatherBatch(sample);
  EXPECT_EQ(batch.table_items, 4u);
  for (const double weight : ImportanceWeights(batch.probabilities, batch.table_items, 0.4)) {
    EXPECT_TRUE(weight > 0 && weight <= 1) << weight;
  }
}

TEST(PadColumn, PaddingTwiceChangesNothing) {
  auto table = Table::Create(TableOptions::Queue("queue", 10));
  TANDEM_ASSERT_OK(table);
  const auto layout = testing::IdLayout();
  const auto chunk = testing::IdChunk(layout, 5, 3);
  TANDEM_ASSERT_OK(
      (*table)->Insert({testing::ItemOf(layout, chunk, 0, 1), testing::ItemOf(layout, chunk, 0, 3)}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, (*table)->SampleItems({.batch = 2}));
  Batch batch = GatherBatch(sample);
  for (int i = 0; i < 2; ++i) {
    PadColumn(&batch.columns[0]);
    EXPECT_THAT(batch.columns[0].values<int64_t>(), ElementsAre(5, 0, 0, 5, 6, 7));
  }
}

}  // namespace
}  // namespace tandem::replay
