// SPDX-License-Identifier: Apache-2.0
#include "ps/server/task_executor.h"

#include <atomic>

#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

TEST(TaskExecutor, RunsAllThatWasPostedBeforeStop) {
  std::atomic<int> ran{0};
  TaskExecutor executor(3);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(executor.Post([&] { ++ran; }));
  executor.Stop();
  EXPECT_EQ(ran, 100);
  EXPECT_FALSE(executor.Post([&] { ++ran; }));
}

}  // namespace
}  // namespace tandem::ps
