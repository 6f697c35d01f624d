// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/arena.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "rpc/shm/layout.h"

namespace tandem::rpc::shm {
namespace {

class ArenaTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kPages = 512;
  std::vector<std::atomic<uint32_t>> released_ = std::vector<std::atomic<uint32_t>>(kPages);
  Arena arena_{released_.data(), kPages};
};

TEST_F(ArenaTest, ABlockIsFreeWhenLetGoAndGivenBackAsOftenAsSent) {
  const uint32_t block = arena_.Take(5 * kPage + 1, 0).value();
  EXPECT_EQ(arena_.free_pages(), kPages - 6);
  EXPECT_EQ(arena_.BlockOf(block + 5), block);
  arena_.Sent(block);
  arena_.Sent(block);  // a retry
  released_[block] += 2;
  EXPECT_EQ(arena_.free_pages(), kPages - 6) << "it is still held";
  arena_.Release(block);
  EXPECT_EQ(arena_.free_pages(), kPages);

  const uint32_t again = arena_.Take(1, 0).value();
  arena_.Sent(again);
  arena_.Sent(again);
  arena_.Release(again);
  EXPECT_EQ(arena_.free_pages(), kPages - 1);
  ++released_[again];
  EXPECT_EQ(arena_.free_pages(), kPages - 1);
  ++released_[again];
  EXPECT_EQ(arena_.free_pages(), kPages);
}

TEST_F(ArenaTest, WhatWasNeverSentIsFreeAtOnce) {
  arena_.Release(arena_.Take(kPages * kPage, 0).value());
  EXPECT_EQ(arena_.free_pages(), kPages);
}

TEST_F(ArenaTest, AReserveIsLeftAndTheLargestRunIsFound) {
  EXPECT_FALSE(arena_.Take(400 * kPage, 200).has_value());
  const uint32_t low = arena_.Take(200 * kPage, 200).value();
  const uint32_t high = arena_.Take(200 * kPage, 0).value();
  EXPECT_FALSE(arena_.Take(200 * kPage, 0).has_value());
  size_t bytes;
  const auto rest = arena_.TakeUpTo(300 * kPage, kPage, &bytes);
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(bytes, 112 * kPage);
  EXPECT_FALSE(arena_.TakeUpTo(kPage, 1, &bytes).has_value());
  arena_.Release(low);
  EXPECT_FALSE(arena_.TakeUpTo(300 * kPage, 201 * kPage, &bytes).has_value());
  arena_.Release(*rest);
  arena_.Release(high);
  EXPECT_EQ(arena_.free_pages(), kPages);
  EXPECT_TRUE(arena_.Take(kPages * kPage, 0).has_value()) << "runs that touch are one";
}

TEST_F(ArenaTest, BlocksNeverOverlapUnderRandomUseAndNoneIsLost) {
  CounterRandom random(3, 1);
  std::vector<bool> used(kPages, false);
  std::map<uint32_t, uint32_t> held, away;  // block -> pages
  const auto pick = [&](std::map<uint32_t, uint32_t>& from) {
    return *std::next(from.begin(), random.Below(from.size()));
  };
  for (int round = 0; round < 50000; ++round) {
    const uint64_t what = random.Below(3);
    if (what == 0) {
      const uint32_t pages = 1 + random.Below(40);
      const auto block = arena_.Take(pages * kPage - random.Below(kPage), 0);
      if (!block.has_value()) continue;
      for (uint32_t p = *block; p < *block + pages; ++p) {
        ASSERT_FALSE(used[p]);
        used[p] = true;
      }
      held[*block] = pages;
    } else if (what == 1 && !held.empty()) {
      const auto [block, pages] = pick(held);
      held.erase(block);
      if (random.Below(4) == 0) {
        std::fill_n(used.begin() + block, pages, false);
      } else {
        arena_.Sent(block);
        away[block] = pages;
      }
      arena_.Release(block);
    } else if (what == 2 && !away.empty()) {
      const auto [block, pages] = pick(away);  // in any order
      away.erase(block);
      ++released_[block];
      std::fill_n(used.begin() + block, pages, false);
    }
  }
  ASSERT_EQ(arena_.free_pages(), static_cast<size_t>(std::count(used.begin(), used.end(), false)));
  for (const auto& [block, pages] : held) arena_.Release(block);
  for (const auto& [block, pages] : away) ++released_[block];
  EXPECT_EQ(arena_.free_pages(), kPages);
}

}  // namespace
}  // namespace tandem::rpc::shm
