// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/lookup.h"

#include <cstdint>
#include <set>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/storage/few_buckets.h"
#include "tests/testing/every_target.h"

namespace tandem::ps {
namespace {

// Some buckets, and a map with the same rows.
class LookupTest : public ::testing::Test {
 protected:
  LookupTest() : buckets_(RowLayout(/*dim=*/3, /*state_floats=*/0), /*buckets=*/8) {}
  void Insert(uint64_t id) {
    if (rows_.insert(id).second) buckets_.Insert(id, static_cast<uint32_t>(id));
  }
  void Erase(uint64_t id) {
    if (rows_.erase(id) > 0) buckets_.StoreOf(id).Erase(id);
  }
  void ExpectFound(const std::vector<uint64_t>& ids) {
    const Indexes indexes = buckets_.indexes();
    std::vector<const RowIndex::Cell*> cells(ids.size()), of_items(ids.size());
    FindCells(indexes, ids, cells.data());
    std::vector<Grouping::Item> items;
    for (const uint64_t id : ids) items.push_back({id, Mix64(id), 0});
    FindCells(indexes, items, of_items.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ(cells[i], of_items[i]);
      ASSERT_EQ(cells[i] != nullptr, rows_.count(ids[i]) > 0) << ids[i];
      if (cells[i] == nullptr) continue;
      ASSERT_EQ(cells[i]->id, ids[i]);
      ASSERT_EQ(cells[i]->version, static_cast<uint32_t>(ids[i]));
      ASSERT_EQ(buckets_.pool().RowAt(cells[i]->slot), buckets_.StoreOf(ids[i]).Find(ids[i]));
    }
  }

  FewBuckets buckets_;
  std::set<uint64_t> rows_;
};

TEST_F(LookupTest, FindsNothingInAnEmptyTableNotEvenIdZero) {
  ExpectFound({});
  ExpectFound({0});
  ExpectFound(std::vector<uint64_t>(kMaxLookup, 0));
  ExpectFound({1, 0, ~uint64_t{0}});
}

TEST_F(LookupTest, FindsWhatIsThereAtEverySizeOfCallAndTableWithEveryInstructionSet) {
  uint64_t seed = 0;
  tandem::testing::OnEveryTarget([&] {
    CounterRandom random(++seed, 0);
    for (int round = 0; round < 60; ++round) {
      // Rows are added and some removed, so that lookups meet indexes that are growing, with ids beyond their
      // lines. Id 0 comes and goes.
      for (uint64_t n = random.Below(200); n > 0; --n) Insert(random.Below(6000));
      for (uint64_t n = random.Below(60); n > 0; --n) Erase(random.Below(6000));
      if (round % 3 == 0) Insert(0);
      if (round % 3 == 1) Erase(0);
      for (const size_t count : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{63}, size_t{64},
                                 size_t{65}, size_t{80}, size_t{81}, kMaxLookup - 1, kMaxLookup}) {
        std::vector<uint64_t> ids(count);
        for (uint64_t& id : ids) id = random.Below(4) == 0 ? 0 : random.Below(7000);
        ExpectFound(ids);
        if (HasFatalFailure()) return;
      }
    }
    while (!rows_.empty()) Erase(*rows_.begin());
  });
}

}  // namespace
}  // namespace tandem::ps
