// SPDX-License-Identifier: Apache-2.0
#include "ps/client/gpu/pinned_memory.h"

#include <set>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/cuda/fake_gpu.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TEST(PinnedMemoryTest, RegionsDoNotOverlapAndFreeOnesAreUsedAgain) {
  cuda::FakeGpu gpu;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto memory, PinnedMemory::Allocate(gpu.api(), 0, 8192));
  struct Region {
    std::shared_ptr<char> memory;
    size_t bytes;
  };
  std::vector<Region> taken;
  CounterRandom random(3, 0);
  size_t refused = 0;
  for (int i = 0; i < 2000; ++i) {
    if (!taken.empty() && random.Below(2) == 0) {
      std::swap(taken[random.Below(taken.size())], taken.back());
      taken.pop_back();
      continue;
    }
    const size_t bytes = 1 + random.Below(1000);
    std::shared_ptr<char> region = memory->TryTakeRegion(bytes);
    if (region == nullptr) {
      ++refused;
      continue;
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(region.get()) % 16, 0u);
    for (const Region& other : taken) {
      EXPECT_TRUE(region.get() + bytes <= other.memory.get() ||
                  other.memory.get() + other.bytes <= region.get());
    }
    taken.push_back({std::move(region), bytes});
  }
  EXPECT_GT(refused, 0u);
  taken.clear();
  // All of it is one region again.
  std::shared_ptr<char> all = memory->TryTakeRegion(4096);
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(memory->TryTakeRegion(1), nullptr);
}

TEST(PinnedMemoryTest, PiecesAreFreeWhateverTheRegionsAreUsedFor) {
  cuda::FakeGpu gpu;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto memory, PinnedMemory::Allocate(gpu.api(), 0, 8192));
  const std::shared_ptr<char> region = memory->TryTakeRegion(4096);
  EXPECT_EQ(memory->piece_bytes(), 1024u);
  std::vector<std::shared_ptr<char>> pieces;
  for (size_t i = 0; i < PinnedMemory::kPieces; ++i) {
    pieces.push_back(memory->TryTakePiece());
    ASSERT_NE(pieces.back(), nullptr);
  }
  EXPECT_EQ(memory->TryTakePiece(), nullptr);
  pieces.pop_back();
  EXPECT_NE(memory->TryTakePiece(), nullptr);
}

TEST(PinnedMemoryTest, MemoryIsFreedWithItsLastRegion) {
  cuda::FakeGpu gpu;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto memory, PinnedMemory::Allocate(gpu.api(), 0, 8192));
  std::shared_ptr<char> region = memory->TryTakeRegion(100);
  memory.reset();
  EXPECT_EQ(gpu.pinned(), 1);
  region.reset();
  EXPECT_EQ(gpu.pinned(), 0);
}

TEST(PinnedMemoryTest, AnAllocationThatFailsIsNamed) {
  cuda::FakeGpu gpu;
  gpu.Fail("cudaHostAlloc");
  EXPECT_THAT(PinnedMemory::Allocate(gpu.api(), 0, 8192),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cudaHostAlloc of 8192 bytes")));
}

}  // namespace
}  // namespace tandem::ps
