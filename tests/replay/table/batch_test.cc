// SPDX-License-Identifier: Apache-2.0
#include "replay/table/batch.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
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

// A chunk of `steps` steps with a long and a short column, whose bytes count up.
std::shared_ptr<const Chunk> LongAndShort(const std::shared_ptr<const ItemLayout>& layout, uint32_t steps) {
  auto bytes = std::make_unique<char[]>(steps * layout->steps->step_bytes());
  for (size_t i = 0; i < steps * layout->steps->step_bytes(); ++i)
    bytes[i] = static_cast<char>(i * 7 + i / 251);
  return std::make_shared<const Chunk>(1, layout->steps, steps, std::move(bytes));
}

TEST(ShareValues, AreTheBytesOfTheGatheredBatch) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto signature,
                              Signature::Make({{.name = "long", .dtype = DType::kU8, .shape = {5003}},
                                               {.name = "short", .dtype = DType::kU8, .shape = {3}}}));
  // The order of columns decides which ones are copied together.
  for (const std::vector<size_t>& sources : {std::vector<size_t>{0, 1, 0, 1, 1}, {1, 1, 0, 0}, {0}, {1}}) {
    std::vector<std::string> names;
    for (size_t i = 0; i < sources.size(); ++i) names.push_back(std::string(1, static_cast<char>('a' + i)));
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto layout, ItemLayout::Make(signature, names, sources));
    const auto first = LongAndShort(layout, 5), second = LongAndShort(layout, 9);
    Sample sample;
    for (uint32_t item = 0; item < 4; ++item) {
      auto trajectory = std::make_shared<Trajectory>();
      trajectory->layout = layout;
      trajectory->chunks = {first, second};
      for (size_t c = 0; c < sources.size(); ++c) {
        trajectory->slices.push_back({.chunk = 0, .offset = item, .length = 1});
        trajectory->slices.push_back({.chunk = 1, .offset = 2, .length = 1 + item % 2});
        trajectory->slices_end.push_back(static_cast<uint32_t>(trajectory->slices.size()));
      }
      TANDEM_ASSERT_OK(trajectory->Check());
      sample.items.push_back({.key = item + 1, .trajectory = std::move(trajectory)});
    }
    size_t bytes = 0;
    const Batch described = DescribeBatch(sample, &bytes);
    std::shared_ptr<char> memory;
    const Batch gathered = GatherBatch(sample, [&](size_t size) {
      EXPECT_EQ(size, bytes);
      memory = std::shared_ptr<char>(new char[size], std::default_delete<char[]>());
      return memory;
    });
    BufferPool buffers;
    const Bytes shared = ShareValues(sample, described, &buffers);
    EXPECT_EQ(shared.Flatten(), std::string(memory.get(), bytes));
    for (const Slice& slice : shared.slices()) {
      const bool in_chunk = slice.owner() == std::shared_ptr<const void>(first) ||
                            slice.owner() == std::shared_ptr<const void>(second);
      EXPECT_EQ(in_chunk, slice.size() >= 5003);
    }
  }
}

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
