#include "ps/storage/batch/lookup.h"

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/storage/rows/row_store.h"
#include "tests/testing/every_target.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kBuckets = 8;

// Some buckets, a map beside them.
class LookupTest : public ::testing::Test {
 protected:
  LookupTest() : layout_(/*dim=*/3, /*state_floats=*/0), pool_(&layout_), heads_(kBuckets) {
    stores_.reserve(kBuckets);
    for (uint32_t b = 0; b < kBuckets; ++b) stores_.emplace_back(&layout_, &pool_, &arena_, &heads_[b]);
  }
  RowStore& StoreOf(uint64_t id) { return stores_[(Mix64(id) >> 32) % kBuckets]; }
  void Insert(uint64_t id) {
    if (rows_.emplace(id, nullptr).second) StoreOf(id).Insert(id, Mix64(id), static_cast<uint32_t>(id));
  }
  void Erase(uint64_t id) {
    if (rows_.erase(id) > 0) StoreOf(id).Erase(id);
  }
  void ExpectFound(const std::vector<uint64_t>& ids) {
    const Indexes indexes{heads_.data(), kBuckets - 1};
    std::vector<const char*> rows(ids.size());
    size_t told = 0;
    FindRows(indexes, pool_.address(), ids, /*row_bytes=*/12, rows.data(), [&](size_t begin, size_t end) {
      ASSERT_EQ(begin, told);
      ASSERT_GT(end, begin);
      told = end;
    });
    ASSERT_EQ(told, ids.size());
    std::vector<const RowIndex::Cell*> cells(ids.size()), of_items(ids.size());
    FindCells(indexes, ids, cells.data());
    std::vector<Grouping::Item> items;
    for (const uint64_t id : ids) items.push_back({id, Mix64(id), 0});
    FindCells(indexes, items, of_items.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ(cells[i], of_items[i]);
      ASSERT_EQ(rows[i], StoreOf(ids[i]).Find(ids[i]));
      ASSERT_EQ(cells[i] != nullptr, rows_.count(ids[i]) > 0) << ids[i];
      if (cells[i] == nullptr) continue;
      ASSERT_EQ(cells[i]->id, ids[i]);
      ASSERT_EQ(cells[i]->version, static_cast<uint32_t>(ids[i]));
      ASSERT_EQ(rows[i], pool_.RowAt(cells[i]->slot()));
    }
  }

  const RowLayout layout_;
  Arena arena_;
  RowPool pool_;
  std::vector<RowIndex::Head> heads_;
  std::vector<RowStore> stores_;
  std::map<uint64_t, char*> rows_;
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
      // Grows, and loses some on the way: indexes are met in the middle of growing, with ids beyond their
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
    while (!rows_.empty()) Erase(rows_.begin()->first);
  });
}

}  // namespace
}  // namespace tandem::ps
