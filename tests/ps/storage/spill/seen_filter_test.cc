// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/spill/seen_filter.h"

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

TEST(SeenFilterTest, KnowsEveryIdThatWasAddedAndFewOthers) {
  constexpr uint64_t kIds = 100000;
  for (const uint32_t first : {1u, 1000u, 200000u}) {
    SeenFilter filter(first);
    EXPECT_FALSE(filter.MayContain(0));
    EXPECT_EQ(filter.bytes(), 0);
    // Typical ids: small numbers, and hashes.
    for (uint64_t i = 0; i < kIds; ++i) filter.Add(i % 2 == 0 ? i : Mix64(i));
    const size_t bytes = filter.bytes();
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < kIds; ++i) {
      ASSERT_TRUE(filter.MayContain(i % 2 == 0 ? i : Mix64(i))) << i;
      wrong += filter.MayContain(i % 2 == 0 ? kIds + i : Mix64(kIds + i)) ? 1 : 0;
    }
    EXPECT_LT(wrong, kIds / 10) << first;
    EXPECT_LT(bytes, 4 * std::max<uint64_t>(kIds, first)) << first;
    // Adding them again takes no memory.
    for (uint64_t i = 0; i < kIds; i += 2) filter.Add(i);
    EXPECT_EQ(filter.bytes(), bytes);
    filter.Clear();
    EXPECT_FALSE(filter.MayContain(2));
  }
}

}  // namespace
}  // namespace tandem::ps
