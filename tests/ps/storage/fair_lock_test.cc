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
  // Each of these readers is in before the one before it leaves. Long before so many have come the writer
  // has.
  constexpr uint64_t kMany = 100'000'000;
  uint64_t readers = 0;
  while (readers < kMany && lock.ReaderTryLock()) {
    lock.ReaderUnlock();
    ++readers;
  }
  EXPECT_LT(readers, kMany);
  lock.ReaderUnlock();
  // Comes after the writer, who has been there before.
  lock.ReaderLock();
  EXPECT_TRUE(written);
  lock.ReaderUnlock();
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
