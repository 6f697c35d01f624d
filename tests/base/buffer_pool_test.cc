// SPDX-License-Identifier: Apache-2.0
#include "base/buffer_pool.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(BufferPoolTest, BuffersAreAlignedAndLargeEnough) {
  BufferPool pool;
  for (size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, size_t{3} << 20}) {
    const std::shared_ptr<char> buffer = pool.Get(size);
    ASSERT_NE(buffer, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.get()) % 64, 0);
    std::memset(buffer.get(), 7, size);  // AddressSanitizer reports if it is too short
  }
}

TEST(BufferPoolTest, ADroppedBufferComesBackForASimilarSize) {
  BufferPool pool;
  char* first = pool.Get(100000).get();
  const std::shared_ptr<char> again = pool.Get(120000);
  EXPECT_EQ(again.get(), first);
  EXPECT_NE(pool.Get(120000).get(), first);  // in use
}

TEST(BufferPoolTest, BuffersInUseAreNeverShared) {
  BufferPool pool;
  std::atomic<int> torn{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const std::shared_ptr<char> buffer = pool.Get(64);
        std::memset(buffer.get(), t, 64);
        for (int k = 0; k < 64; ++k) torn += buffer.get()[k] == t ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
}

TEST(BufferPoolTest, NothingIsKeptPastTheLimitAndBuffersMayOutliveThePool) {
  std::optional<BufferPool> pool(std::in_place, /*max_idle_bytes=*/0);
  const std::shared_ptr<char> buffer = pool->Get(5000);
  pool->Get(5000).reset();
  pool.reset();
  std::memset(buffer.get(), 1, 5000);  // LeakSanitizer reports if the last pointer does not free it
}

}  // namespace
}  // namespace tandem
