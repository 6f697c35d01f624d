// SPDX-License-Identifier: Apache-2.0
#include "worker/data/split_index.h"

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"

namespace tandem::worker {
namespace {

constexpr Split kSplits[] = {Split::kTrain, Split::kValid, Split::kTest};

std::vector<uint64_t> Positions(const std::shared_ptr<const SplitIndex>& index, Split split) {
  SplitIndex::Cursor cursor(index, split);
  std::vector<uint64_t> positions;
  uint64_t position = 0;
  while (cursor.Next(&position)) positions.push_back(position);
  const uint64_t last = position;
  EXPECT_FALSE(cursor.Next(&position)) << "the end stays the end";
  EXPECT_EQ(position, last);
  return positions;
}

TEST(SplitIndexTest, ReturnsThePositionsOfEachSplitInOrder) {
  CounterRandom random(1, 0);
  auto index = std::make_shared<SplitIndex>();
  std::map<Split, std::vector<uint64_t>> model;
  uint64_t position = 0;
  for (int i = 0; i < 10000; ++i) {
    const Split split = kSplits[random.Below(3)];
    index->Add(split, position);
    model[split].push_back(position);
    position += 1 + random.Below(uint64_t{1} << random.Below(50));  // lines of all lengths, also beyond 4 GiB
  }
  for (const Split split : kSplits) EXPECT_EQ(Positions(index, split), model[split]);
}

TEST(SplitIndexTest, TakesThePositionsAtTheEdgesOfItsEncoding) {
  auto index = std::make_shared<SplitIndex>();
  const std::vector<uint64_t> positions = {0, 127, 255, 255 + 16383, 255 + 16383 + 16384, ~uint64_t{0}};
  for (const uint64_t position : positions) index->Add(Split::kValid, position);
  EXPECT_EQ(Positions(index, Split::kValid), positions);
  EXPECT_TRUE(Positions(index, Split::kTrain).empty());
}

TEST(SplitIndexTest, TakesOneByteForAShortLine) {
  SplitIndex index;
  for (uint64_t i = 0; i < 1000; ++i) index.Add(Split::kTrain, i * 100);
  EXPECT_EQ(index.bytes(), 1000u);
}

}  // namespace
}  // namespace tandem::worker
