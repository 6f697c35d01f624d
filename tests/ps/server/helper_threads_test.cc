// SPDX-License-Identifier: Apache-2.0
#include "ps/server/helper_threads.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

TEST(HelperThreadsTest, WithoutThreadsTheCallerWorksAlone) {
  HelperThreads helpers(0);
  int calls = 0;
  helpers.Share([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(HelperThreadsTest, AHelperComesWhileTheCallerWorks) {
  HelperThreads helpers(1);
  absl::Notification helped;
  const std::thread::id caller = std::this_thread::get_id();
  helpers.Share([&] {
    if (std::this_thread::get_id() != caller) {
      helped.Notify();
      return;
    }
    EXPECT_TRUE(helped.WaitForNotificationWithTimeout(absl::Seconds(30)));
  });
}

TEST(HelperThreadsTest, ShareReturnsWhenAllWhoBeganHaveReturned) {
  HelperThreads helpers(3);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> inside{0}, left{500};
    helpers.Share([&] {
      ++inside;
      while (left.fetch_sub(1) > 0) {
      }
      --inside;
    });
    ASSERT_EQ(inside, 0);
    ASSERT_LE(left, 0);
  }
}

TEST(HelperThreadsTest, SeveralCallersAreHelpedAtTheSameTime) {
  HelperThreads helpers(2);
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        std::atomic<int> left{50};
        helpers.Share([&] {
          while (left.fetch_sub(1) > 0) ++done;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 4 * 100 * 50);
}

}  // namespace
}  // namespace tandem::ps
