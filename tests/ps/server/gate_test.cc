// SPDX-License-Identifier: Apache-2.0
#include "ps/server/gate.h"

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

TEST(Gate, LetsNobodyInWhileClosedAndHandsBackWhatItKept) {
  Gate gate;
  ASSERT_TRUE(gate.TryEnter());
  absl::Notification closed;
  std::thread closer([&] {
    gate.Close();
    closed.Notify();
  });
  gate.Leave();
  ASSERT_TRUE(closed.WaitForNotificationWithTimeout(absl::Minutes(1)));
  closer.join();
  EXPECT_FALSE(gate.TryEnter());
  int ran = 0;
  EXPECT_FALSE(gate.EnterOrDefer([&] { ++ran; }));
  for (auto& kept : gate.Open()) kept();
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(gate.EnterOrDefer([&] { ++ran; }));
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace tandem::ps
