// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/fair_lock.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

TEST(FairLockTest, ReadersAreInTogetherAndAWriterAlone) {
  FairLock lock;
  lock.ReaderLock();
  std::thread([&] {
    ASSERT_TRUE(lock.ReaderTryLock());
    lock.ReaderUnlock();
  }).join();
  lock.ReaderUnlock();
  const FairLock::Writer writing(&lock);
  std::thread([&] { EXPECT_FALSE(lock.ReaderTryLock()); }).join();
}

TEST(FairLockTest, AWriterThatWaitsGetsInAlthoughThereIsAlwaysAReaderIn) {
  FairLock lock;
  lock.ReaderLock();
  bool written = false;
  std::thread writer([&] {
    const FairLock::Writer writing(&lock);
    written = true;
  });
  // Each of these readers enters before the previous one leaves. The writer enters long before all of them
  // have come.
  constexpr uint64_t kMany = 100'000'000;
  // A try may fail for no reason, but this many in a row fail because the writer waits.
  constexpr int kInARow = 1000;
  uint64_t readers = 0;
  for (int refused = 0; refused < kInARow && readers < kMany;) {
    if (lock.ReaderTryLock()) {
      lock.ReaderUnlock();
      ++readers;
      refused = 0;
    } else {
      ++refused;
    }
  }
  EXPECT_LT(readers, kMany);
  lock.ReaderUnlock();
  // Readers that come now, without a pause, enter after the writer. That holds at once, or soon if the writer
  // had announced itself but did not hold its turn yet.
  bool seen = false;
  for (uint64_t reader = 0; reader < kMany && !seen; ++reader) {
    lock.ReaderLock();
    seen = written;
    lock.ReaderUnlock();
  }
  EXPECT_TRUE(seen);
  writer.join();
}

TEST(FairLockTest, NobodySeesWhatAWriterHasHalfDoneAndNothingIsLost) {
  constexpr int kTurns = 3000;
  FairLock lock;
  uint64_t a = 0, b = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < kTurns; ++turn) {
        const FairLock::Writer writing(&lock);
        ++a;
        b = a;
      }
    });
    threads.emplace_back([&] {
      for (int turn = 0; turn < kTurns; ++turn) {
        if (turn % 2 == 0) {
          const FairLock::Reader reading(&lock);
          ASSERT_EQ(a, b);
        } else if (lock.ReaderTryLock()) {
          ASSERT_EQ(a, b);
          lock.ReaderUnlock();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(a, 3 * kTurns);
}

}  // namespace
}  // namespace tandem::ps
