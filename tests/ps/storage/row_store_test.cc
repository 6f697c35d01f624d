#include "ps/storage/row_store.h"

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

TEST(RowLayoutTest, RowsAreWholeWordsAndChunksArePowersOfTwo) {
  for (const size_t dim : {1, 2, 3, 16, 17, 64, 1000, 65536}) {
    for (const size_t state : {size_t{0}, size_t{1}, dim, 2 * dim + 1}) {
      const RowLayout layout(dim, state);
      EXPECT_EQ(layout.stride % 8, 0);
      EXPECT_GE(layout.stride, 16 + 4 * (dim + state));
      EXPECT_LT(layout.stride, 16 + 4 * (dim + state) + 8);
      EXPECT_TRUE(layout.chunk_rows() == 1 || layout.chunk_rows() * layout.stride <= (16 << 10));
    }
  }
}

// Ids whose hashes have the same low 16 bits: they share their place in the index of any bucket of up to
// 65536 cells.
std::vector<uint64_t> CollidingIds(size_t count) {
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; ids.size() < count; ++id) {
    if ((TagOf(id) & 0xffff) == 0x1234) ids.push_back(id);
  }
  return ids;
}

class RowStoreTest : public ::testing::TestWithParam<size_t> {
 protected:
  // Inserts ids, each row filled with a function of its id, and checks that all are found, and others not, on
  // the way.
  void InsertAndCheck(const std::vector<uint64_t>& ids) {
    const RowLayout layout(/*dim=*/GetParam(), /*state_floats=*/1);
    Arena arena;
    RowStore store(&layout, &arena);
    for (size_t n = 0; n < ids.size(); ++n) {
      ASSERT_EQ(store.Find(ids[n], TagOf(ids[n])), nullptr);
      Row* row = store.Insert(ids[n], TagOf(ids[n]));
      for (size_t i = 0; i < layout.row_floats(); ++i) row->floats()[i] = Value(ids[n], i);
      ASSERT_EQ(row->stamp, 0);
      // All of them now and then, the newest always.
      const size_t first = (n & (n + 1)) == 0 || n + 1 == ids.size() ? 0 : n;
      for (size_t k = first; k <= n; ++k) ExpectRow(store, layout, ids[k]);
    }
    ASSERT_EQ(store.size(), ids.size());
    size_t visited = 0;
    store.ForEach([&](const Row& row) { ASSERT_EQ(row.id, ids[visited++]); });
    EXPECT_EQ(visited, ids.size());
    store.Clear();
    EXPECT_EQ(store.size(), 0);
    EXPECT_EQ(store.Find(ids[0], TagOf(ids[0])), nullptr);
    store.Insert(ids[0], TagOf(ids[0]));
    EXPECT_NE(store.Find(ids[0], TagOf(ids[0])), nullptr);
  }

  static float Value(uint64_t id, size_t i) { return static_cast<float>(id % 1000 + 1000 * i); }

  static void ExpectRow(const RowStore& store, const RowLayout& layout, uint64_t id) {
    const uint32_t tag = TagOf(id);
    store.PrefetchCell(tag);
    const Row* row = store.Confirm(store.Candidate(tag), id, tag);
    ASSERT_EQ(row, store.Find(id, tag));
    ASSERT_NE(row, nullptr);
    ASSERT_EQ(row->id, id);
    for (size_t i = 0; i < layout.row_floats(); ++i) ASSERT_EQ(row->floats()[i], Value(id, i));
  }
};
INSTANTIATE_TEST_SUITE_P(Dims, RowStoreTest, ::testing::Values(1, 3, 16, 300, 5000));

TEST_P(RowStoreTest, KeepsEveryRowWhileItGrows) {
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 3000 / (1 + GetParam() / 100); ++i) ids.push_back(i * 0x9e3779b97f4a7c15ull);
  InsertAndCheck(ids);
}

TEST_P(RowStoreTest, KeepsEveryRowWhenAllShareOnePlace) { InsertAndCheck(CollidingIds(60)); }

TEST(RowStoreTagTest, IdsWithEqualTagsAreToldApartByTheirRows) {
  // Two ids with the same 32-bit tag, from a birthday search.
  std::map<uint32_t, uint64_t> seen;
  uint64_t a = 0, b = 0;
  for (uint64_t id = 1; b == 0; ++id) {
    const auto [it, is_new] = seen.emplace(TagOf(id), id);
    if (!is_new) a = it->second, b = id;
  }
  const RowLayout layout(2, 0);
  Arena arena;
  RowStore store(&layout, &arena);
  Row* row_a = store.Insert(a, TagOf(a));
  EXPECT_EQ(store.Confirm(store.Candidate(TagOf(b)), b, TagOf(b)), nullptr);
  Row* row_b = store.Insert(b, TagOf(b));
  ASSERT_NE(row_a, row_b);
  EXPECT_EQ(store.Confirm(store.Candidate(TagOf(a)), a, TagOf(a)), row_a);
  EXPECT_EQ(store.Confirm(store.Candidate(TagOf(b)), b, TagOf(b)), row_b);
}

TEST(RowStoreStampTest, StampsAscendAndFallBackToZeroTogetherWhenTheyRunOut) {
  const RowLayout layout(2, 0);
  Arena arena;
  RowStore store(&layout, &arena);
  Row* row = store.Insert(1, TagOf(1));
  const uint32_t first = store.BeginUpdates(10);
  EXPECT_GT(first, row->stamp);
  EXPECT_EQ(store.BeginUpdates(5), first + 10);
  row->stamp = store.BeginUpdates(std::numeric_limits<uint32_t>::max() - 100);
  const uint32_t wrapped = store.BeginUpdates(200);
  EXPECT_EQ(row->stamp, 0);
  EXPECT_GE(wrapped, 1);
  EXPECT_LE(wrapped, std::numeric_limits<uint32_t>::max() - 200);
}

TEST(ArenaTest, ClearedBucketsGiveTheirMemoryBack) {
  const RowLayout layout(64, 64);
  Arena arena;
  RowStore store(&layout, &arena);
  for (int round = 0; round < 3; ++round) {
    for (uint64_t id = 0; id < 20000; ++id) store.Insert(id, TagOf(id));
    EXPECT_GE(arena.bytes(), (20000 - layout.chunk_rows()) * layout.stride);
    EXPECT_LE(arena.bytes(), 20000 * layout.stride * 1.3 + (2 << 20));
    arena.StartAfresh();
    store.Clear();
    EXPECT_EQ(arena.bytes(), 0);
    EXPECT_EQ(store.own_bytes(), 0);
  }
}

}  // namespace
}  // namespace tandem::ps
