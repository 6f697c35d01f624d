// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/rows/row_pool.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

class RowPoolTest : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Dims, RowPoolTest, ::testing::Values(1, 16, 100, 5000, 65536));

TEST_P(RowPoolTest, NoTwoRunsShareASlotRowsKeepWhatIsWrittenAndAllMemoryComesBack) {
  const RowLayout layout(/*dim=*/GetParam(), /*state_floats=*/1);
  RowPool pool(&layout);
  CounterRandom random(/*seed=*/1, GetParam());
  const auto most = static_cast<uint32_t>(std::max<size_t>(2, (size_t{2} << 20) / layout.stride));
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> runs;  // begin -> end, what its rows hold
  uint32_t written = 0;
  const auto fill = [&](uint32_t slot, uint32_t value) {
    std::memcpy(pool.RowAt(slot), &value, sizeof(value));
    std::memcpy(pool.RowAt(slot) + layout.stride - sizeof(value), &value, sizeof(value));
  };
  const auto check = [&](uint32_t slot, uint32_t value) {
    uint32_t first, last;
    std::memcpy(&first, pool.RowAt(slot), sizeof(first));
    std::memcpy(&last, pool.RowAt(slot) + layout.stride - sizeof(last), sizeof(last));
    ASSERT_EQ(first, value);
    ASSERT_EQ(last, value);
  };
  size_t slots = 0;
  for (int round = 0; round < 400; ++round) {
    if (random.Below(5) < 3) {
      const auto count = static_cast<uint32_t>(1 + random.Below(most));
      if (random.Below(2) == 0) pool.Prepare(count);
      const RowPool::Run run = pool.Take(count);
      ASSERT_GE(run.size(), 1);
      ASSERT_LE(run.size(), count);
      const auto after = runs.lower_bound(run.begin);
      ASSERT_TRUE(after == runs.end() || run.end <= after->first);
      ASSERT_TRUE(after == runs.begin() || std::prev(after)->second.first <= run.begin);
      runs[run.begin] = {run.end, ++written};
      for (uint32_t slot = run.begin; slot < run.end; ++slot) fill(slot, written);
      slots += run.size();
    } else if (!runs.empty()) {
      const auto run = std::next(runs.begin(), random.Below(runs.size()));
      for (uint32_t slot = run->first; slot < run->second.first; ++slot) check(slot, run->second.second);
      slots -= run->second.first - run->first;
      pool.Release({run->first, run->second.first});
      runs.erase(run);
    }
    ASSERT_GE(pool.bytes(), slots * layout.stride);
    if (slots == 0) {
      ASSERT_EQ(pool.bytes(), 0);
    }
  }
  for (const auto& [begin, run] : runs) {
    for (uint32_t slot = begin; slot < run.first; ++slot) check(slot, run.second);
    pool.Release({begin, run.first});
  }
  EXPECT_EQ(pool.bytes(), 0);
}

TEST_P(RowPoolTest, SlotZeroIsNobodysAndReadsAsZerosHoweverManyAreTaken) {
  const RowLayout layout(/*dim=*/GetParam(), /*state_floats=*/1);
  RowPool pool(&layout);
  const std::vector<char> zeros(layout.stride, '\0');
  std::vector<RowPool::Run> runs;
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(std::memcmp(pool.RowAt(kNoSlot), zeros.data(), layout.stride), 0);
    runs.push_back(pool.Take(1 + i));
    ASSERT_GT(runs.back().begin, kNoSlot);
    for (uint32_t slot = runs.back().begin; slot < runs.back().end; ++slot) {
      std::memset(pool.RowAt(slot), -1, layout.stride);
    }
  }
  for (const RowPool::Run& run : runs) pool.Release(run);
  EXPECT_EQ(std::memcmp(pool.RowAt(kNoSlot), zeros.data(), layout.stride), 0);
}

TEST(RowPoolTest, AnAddressServesForTheSlotsThatWereThereWhenItWasMadeHoweverManyFollow) {
  const RowLayout layout(/*dim=*/65536, /*state_floats=*/1);  // 127 rows a chunk: the list grows soon
  RowPool pool(&layout);
  std::vector<RowPool::Run> runs = {pool.Take(1)};
  const RowAddress address = pool.address();
  char* const row = address.Of(runs[0].begin);
  for (int i = 0; i < 60; ++i) runs.push_back(pool.Take(64));
  EXPECT_EQ(address.Of(runs[0].begin), row);
  EXPECT_EQ(pool.RowAt(runs[0].begin), row);
  for (const RowPool::Run& run : runs) pool.Release(run);
}

TEST(RowPoolTest, MemoryThatIsOnlyPreparedIsNotCounted) {
  const RowLayout layout(/*dim=*/16, /*state_floats=*/0);
  RowPool pool(&layout);
  pool.Prepare(1000);
  EXPECT_EQ(pool.bytes(), 0);
  const RowPool::Run run = pool.Take(1000);
  EXPECT_EQ(pool.bytes(), 64 << 10);
  pool.Release(run);
  EXPECT_EQ(pool.bytes(), 0);
}

}  // namespace
}  // namespace tandem::ps
