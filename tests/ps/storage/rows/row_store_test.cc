// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/rows/row_store.h"

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

TEST(RowLayoutTest, PartsLieBehindOneAnother) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const size_t dim : {1, 2, 3, 16, 17, 64, 1000, 65536}) {
      for (const size_t state : {size_t{0}, size_t{1}, dim, 2 * dim + 1}) {
        for (const bool counted : {false, true}) {
          const RowLayout layout(dim, state, dtype, counted);
          EXPECT_EQ(layout.embedding_bytes, dim * SizeOf(dtype));
          EXPECT_EQ(layout.state_offset % 4, 0);
          EXPECT_GE(layout.state_offset, layout.embedding_bytes);
          EXPECT_LT(layout.state_offset, layout.embedding_bytes + 4);
          EXPECT_EQ(layout.row_bytes, layout.state_offset + 4 * state + (counted ? 4 : 0));
          EXPECT_GE(layout.stride, layout.row_bytes);
          EXPECT_LE(layout.stride, layout.row_bytes + 64);
        }
      }
    }
  }
}

TEST(RowLayoutTest, EmbeddingsLieInAllPartsOfMemoryEvenly) {
  // If all were in the lower half of each 512 bytes, half of the memory's channels would serve them all.
  for (const size_t dim : {16, 32, 64}) {
    for (size_t state = 0; state <= 4 * dim; state += 16) {
      const RowLayout layout(dim, state);
      EXPECT_NE(layout.stride % 512, 0) << dim << " + " << state;
    }
  }
  for (const size_t state : {16u, 48u, 80u}) EXPECT_NE(RowLayout(16, state).stride % 128, 0) << state;
  EXPECT_EQ(RowLayout(16, 0).stride, 64);
  EXPECT_EQ(RowLayout(64, 0).stride, 256);
  EXPECT_EQ(RowLayout(128, 128).stride, 1024);
}

// Ids whose hashes have the same top bits of the low half: they share their place in the index of any bucket
// of up to 65536 lines.
std::vector<uint64_t> CollidingIds(size_t count) {
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; ids.size() < count; ++id) {
    if ((Mix64(id) & 0xffff0000u) == 0x12340000u) ids.push_back(id);
  }
  return ids;
}

TEST(RowIndexTest, GrowsIntoMemoryThatWasGotBefore) {
  Arena arena;
  RowIndex::Head head;
  RowIndex index(&arena, &head);
  uint32_t rows = 0, prepared = 0;
  for (; rows < 60000; ++rows) {
    index.Insert(rows, Mix64(rows), rows + 1, 0);
    const size_t bytes = index.WantedBytes();
    if (bytes == 0) continue;
    EXPECT_NE(index.TakeSpare(arena.AllocateReady(bytes / 2)).data(), nullptr);  // too little: given back
    EXPECT_EQ(index.TakeSpare(arena.AllocateReady(bytes)).data(), nullptr);
    EXPECT_EQ(index.WantedBytes(), 0);
    EXPECT_NE(index.TakeSpare(arena.AllocateReady(bytes)).data(), nullptr);  // has it already
    ++prepared;
  }
  EXPECT_GE(prepared, 8);
  for (uint32_t id = 0; id < rows; ++id) {
    ASSERT_NE(index.Find(id), nullptr);
    ASSERT_EQ(index.Find(id)->slot, id + 1);
  }
  index.Clear();
  EXPECT_EQ(arena.bytes(), 0);
}

// A row store and a map under the same random operations.
class RowStoreTest : public ::testing::TestWithParam<size_t> {
 protected:
  RowStoreTest()
      : layout_(/*dim=*/GetParam(), /*state_floats=*/1),
        pool_(&layout_),
        store_(&layout_, &pool_, &arena_, &head_) {}

  void Insert(uint64_t id) {
    ASSERT_EQ(store_.Find(id), nullptr);
    const float value = static_cast<float>(++values_);
    char* const row = store_.Insert(id, Mix64(id), values_);
    for (size_t i = 0; i < layout_.dim; ++i) reinterpret_cast<float*>(row)[i] = value;
    *layout_.state(row) = value;
    model_[id] = value;
  }
  void Erase(uint64_t id) {
    store_.Erase(id);
    model_.erase(id);
    ASSERT_EQ(store_.Find(id), nullptr);
  }
  void ExpectRow(uint64_t id) {
    const uint64_t hash = Mix64(id);
    const RowIndex::Cell* const cell = store_.index().Find(store_.index().Line(hash), id, hash);
    const auto found = model_.find(id);
    ASSERT_EQ(cell != nullptr, found != model_.end()) << id;
    if (cell == nullptr) return;
    ASSERT_EQ(cell->id, id);
    ASSERT_EQ(static_cast<float>(cell->version), found->second);
    const char* const row = store_.RowAt(cell->slot);
    for (size_t i = 0; i < layout_.dim; ++i) ASSERT_EQ(reinterpret_cast<const float*>(row)[i], found->second);
    ASSERT_EQ(*layout_.state(row), found->second);
  }
  void ExpectAll() {
    ASSERT_EQ(store_.size(), model_.size());
    for (const auto& [id, value] : model_) ExpectRow(id);
    size_t visited = 0;
    store_.ForEach([&](const RowIndex::Cell& cell, const char* row) {
      ++visited;
      ASSERT_EQ(*layout_.state(row), model_.at(cell.id));
    });
    ASSERT_EQ(visited, model_.size());
  }
  // Grows to `ids`, shrinks and grows again, erasing and inserting at random.
  void Churn(const std::vector<uint64_t>& ids) {
    CounterRandom random(/*seed=*/5, ids.size());
    for (int round = 0; round < 4; ++round) {
      const uint64_t keep_of_ten = round % 2 == 0 ? 8 : 2;
      for (size_t n = 0; n < 3 * ids.size(); ++n) {
        const uint64_t id = ids[random.Below(ids.size())];
        const bool there = model_.count(id) > 0;
        if (random.Below(10) < keep_of_ten) {
          if (!there) Insert(id);
        } else if (there) {
          Erase(id);
        }
        ExpectRow(ids[random.Below(ids.size())]);
        if (HasFatalFailure()) return;
      }
      ExpectAll();
      const size_t before = arena_.bytes();
      store_.Compact();
      EXPECT_LE(arena_.bytes(), before + (64 << 10));
      EXPECT_LE(store_.free_slots(), store_.size());
      ExpectAll();
    }
    while (!model_.empty()) Erase(model_.begin()->first);
    store_.Compact();
    EXPECT_EQ(arena_.bytes(), 0);
    EXPECT_EQ(pool_.bytes(), 0);
    Insert(ids[0]);
    ExpectAll();
  }

  const RowLayout layout_;
  Arena arena_;
  RowPool pool_;
  RowIndex::Head head_;
  RowStore store_;
  std::map<uint64_t, float> model_;
  uint32_t values_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Dims, RowStoreTest, ::testing::Values(1, 3, 16, 300, 5000));

TEST_P(RowStoreTest, IsAMapUnderInsertsErasuresAndCompaction) {
  std::vector<uint64_t> ids = {0};
  for (uint64_t i = 1; i < 3000 / (1 + GetParam() / 100); ++i) ids.push_back(i * 0x9e3779b97f4a7c15ull);
  Churn(ids);
}

TEST_P(RowStoreTest, IsAMapWhenAllIdsShareOnePlace) { Churn(CollidingIds(60)); }

TEST_P(RowStoreTest, GrowsWithoutLosingARowAtAnySize) {
  for (uint64_t id = 0; id < 2000 / (1 + GetParam() / 100); ++id) {
    Insert(id * 7);
    ExpectRow(id * 7);
    ExpectRow(id * 7 + 1);
    if ((id & (id + 1)) == 0 || id % 97 == 0) ExpectAll();
    if (HasFatalFailure()) return;
  }
  store_.Clear();
  EXPECT_EQ(store_.size(), 0);
  EXPECT_EQ(store_.Find(0), nullptr);
  EXPECT_EQ(store_.own_bytes(), 0);
  EXPECT_EQ(arena_.bytes(), 0);
  EXPECT_EQ(pool_.bytes(), 0);
}

TEST(RowIndexTest, HundredsOfThousandsOfIdsAreFoundWhileItGrowsAndTheLoadStaysInBounds) {
  Arena arena;
  RowIndex::Head head;
  RowIndex index(&arena, &head);
  EXPECT_EQ(index.Find(0), nullptr);
  constexpr uint32_t kIds = 300000;
  for (uint32_t id = 0; id < kIds; ++id) {
    index.Insert(id, Mix64(id), id + 1, 0);
    if (id % 1000 == 0) {
      for (uint32_t other = 0; other <= id; other += 97) ASSERT_EQ(index.Find(other)->slot, other + 1);
      ASSERT_EQ(index.Find(id + 1), nullptr);
    }
  }
  for (uint32_t id = 0; id < kIds; ++id) ASSERT_EQ(index.Find(id)->slot, id + 1);
  EXPECT_LE(arena.bytes(), kIds * 16 * 4);  // both tables while it grows
}

TEST(ArenaTest, LargeHolesKeepNoMemory) {
  Arena arena;
  constexpr size_t kBytes = 100000;
  std::vector<Arena::Block> old_blocks, blocks;
  for (int i = 0; i < 256; ++i) {
    old_blocks.push_back(arena.AllocateZeroed(kBytes));
    std::memset(old_blocks.back().data(), 1, kBytes);
  }
  // The indexes of a table grow like this: every other old block stays, so that no hole fits a new one.
  for (int i = 0; i < 256; i += 2) {
    blocks.push_back(arena.AllocateZeroed(kBytes * 5 / 4));
    for (size_t at = 0; at < blocks.back().bytes(); ++at) ASSERT_EQ(blocks.back().data()[at], 0);
    old_blocks[i] = Arena::Block();
  }
  const double held = 128 * kBytes * (1 + 1.25);
  EXPECT_GE(static_cast<double>(arena.bytes()), held);
  EXPECT_LE(static_cast<double>(arena.bytes()), held * 1.1);
  // Memory that is taken from a hole again is zero.
  const Arena::Block again = arena.AllocateZeroed(kBytes * 9 / 10);
  for (size_t at = 0; at < again.bytes(); ++at) ASSERT_EQ(again.data()[at], 0);
}

TEST(ArenaTest, HoldsLittleInReserveAndGivesAllBack) {
  Arena arena;
  CounterRandom random(/*seed=*/7, 0);
  for (int round = 0; round < 3; ++round) {
    std::vector<Arena::Block> blocks;
    size_t held = 0;
    for (int i = 0; i < 3000; ++i) {
      if (random.Below(3) == 0 && !blocks.empty()) {
        const size_t at = random.Below(blocks.size());
        held -= blocks[at].bytes();
        std::swap(blocks[at], blocks.back());
        blocks.pop_back();
      } else {
        blocks.push_back(arena.AllocateZeroed(1 + random.Below(i == 2000     ? 4 << 20
                                                               : i % 10 == 0 ? 300000
                                                                             : 20000)));
        held += blocks.back().bytes();
        for (size_t at = 0; at < blocks.back().bytes(); at += 61) ASSERT_EQ(blocks.back().data()[at], 0);
        std::memset(blocks.back().data(), 1, blocks.back().bytes());
      }
      if (!blocks.empty()) {
        ASSERT_EQ(reinterpret_cast<uintptr_t>(blocks.back().data()) % 64, 0);
      }
    }
    EXPECT_GE(arena.bytes(), held);
    EXPECT_LE(static_cast<double>(arena.bytes()), static_cast<double>(held) * 1.5 + (4 << 20));
    blocks.clear();
    EXPECT_EQ(arena.bytes(), 0);
  }
}

}  // namespace
}  // namespace tandem::ps
