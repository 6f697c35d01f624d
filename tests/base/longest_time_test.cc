// SPDX-License-Identifier: Apache-2.0
#include "base/longest_time.h"

#include <thread>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(LongestTime, KeepsTheLongestOfAll) {
  LongestTime longest;
  EXPECT_EQ(longest.seconds(), 0);
  for (const int64_t nanoseconds : {int64_t{5}, int64_t{3'000'000'000}, int64_t{7}})
    longest.Note(nanoseconds);
  EXPECT_DOUBLE_EQ(longest.seconds(), 3);
}

TEST(LongestTime, KeepsTheLongestOfManyThreads) {
  LongestTime longest;
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; ++t) {
    threads.emplace_back([&longest, t] {
      for (int i = 0; i < 1000; ++i) longest.Note(i * t);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_DOUBLE_EQ(longest.seconds(), 999 * 4 * 1e-9);
}

TEST(LongestTime, ATimerNotesItsLife) {
  LongestTime longest;
  const absl::Time before = MonotonicNow();
  {
    const LongestTime::Timer timer(&longest);
    while (MonotonicNow() - before < absl::Milliseconds(2)) std::this_thread::yield();
  }
  EXPECT_GT(longest.seconds(), 0.001);
  EXPECT_LE(longest.seconds(), absl::ToDoubleSeconds(MonotonicNow() - before));
}

}  // namespace
}  // namespace tandem
