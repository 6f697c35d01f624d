// SPDX-License-Identifier: Apache-2.0
#include "ps/subscription/bucket_edits.h"

#include <map>
#include <optional>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

TEST(BucketEditsTest, HasTheLastChangeOfEachId) {
  constexpr uint32_t kDim = 2;
  CounterRandom random(1, 2);
  BucketEdits edits;
  std::map<uint64_t, std::optional<std::vector<float>>> expected;
  bool whole = false;
  for (int i = 0; i < 3000; ++i) {
    RowChanges changes{.bucket = 3, .whole = random.Below(500) == 0, .dim = kDim};
    if (changes.whole) {
      expected.clear();
      whole = true;
    }
    for (uint64_t id = random.Below(20); id < 100; id += 1 + random.Below(40)) {
      if (!changes.whole && random.Below(4) == 0) {
        changes.removed.push_back(id);
        expected[id] = std::nullopt;
        continue;
      }
      const std::vector<float> row = {static_cast<float>(i), static_cast<float>(id)};
      changes.ids.push_back(id);
      changes.rows.insert(changes.rows.end(), row.begin(), row.end());
      expected[id] = row;
    }
    edits.Add(changes);
    if (i % 100 != 0) continue;
    std::map<uint64_t, std::optional<std::vector<float>>> seen;
    edits.ForEach([&](uint64_t id, const float* row) {
      EXPECT_TRUE(seen.empty() || seen.rbegin()->first < id);
      seen[id] = row == nullptr ? std::nullopt : std::make_optional(std::vector<float>(row, row + kDim));
    });
    ASSERT_EQ(seen, expected) << "after " << i;
    ASSERT_EQ(edits.whole(), whole);
  }
}

}  // namespace
}  // namespace tandem::ps
