// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/futex.h"

#include <atomic>
#include <thread>

#include "base/ipc/host_identity.h"
#include "base/ticks.h"
#include "gtest/gtest.h"

namespace tandem::ipc {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(FutexTest, AWakeEndsAWaitAndAWordThatDiffersBeginsNone) {
  std::atomic<uint32_t> word{0};
  const int64_t begin = SteadyNanoseconds();
  FutexWait(&word, 1, 60 * kSecond);  // returns at once: the word is not 1
  std::thread waker([&word] {
    word.store(1);
    FutexWake(&word);
  });
  while (word.load() == 0) FutexWait(&word, 0, 60 * kSecond);
  waker.join();
  EXPECT_LT(SteadyNanoseconds() - begin, 30 * kSecond);
}

TEST(FutexTest, AWaitEndsAtItsTime) {
  std::atomic<uint32_t> word{0};
  const int64_t begin = SteadyNanoseconds();
  while (SteadyNanoseconds() - begin < 2'000'000) FutexWait(&word, 0, 1'000'000);
  EXPECT_LT(SteadyNanoseconds() - begin, 30 * kSecond);
}

TEST(HostIdentityTest, IsTheSameEachTimeAndNotEmpty) {
  EXPECT_EQ(HostIdentity(), HostIdentity());
  EXPECT_GT(HostIdentity().size(), 10u);
  EXPECT_GE(UsableProcessors(), 1);
}

}  // namespace
}  // namespace tandem::ipc
