// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/spinner.h"

#include <cstdint>

#include "base/ticks.h"
#include "gtest/gtest.h"

namespace tandem::rpc::shm {
namespace {

int yields = 0;

// Simulates other threads that want the processor and use it for a while.
int LongYield() {
  ++yields;
  for (const int64_t begin = SteadyNanoseconds(); SteadyNanoseconds() - begin < 2'000'000;) {
  }
  return 0;
}
int ShortYield() {
  ++yields;
  return 0;
}

// Spins until it should sleep; the sleep takes no time.
void WaitInVain(Spinner* spinner) {
  while (spinner->Spin()) {
  }
  spinner->Woke();
}

// Returns true if the spinner yields in one of many waits. (The system may take the processor away during one
// of them.)
bool Yields(Spinner* spinner) {
  yields = 0;
  for (int wait = 0; wait < 1000 && yields == 0; ++wait) WaitInVain(spinner);
  return yields > 0;
}

TEST(SpinnerTest, ALookingThreadYieldsAsLongAsThatTakesNoTime) {
  if (ipc::UsableProcessors() == 1) GTEST_SKIP() << "nobody looks on the only processor";
  Spinner spinner(ShortYield);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Yields(&spinner));
}

TEST(SpinnerTest, AThreadThatCameBackLateYieldsNoMoreForAWhile) {
  if (ipc::UsableProcessors() == 1) GTEST_SKIP() << "nobody looks on the only processor";
  Spinner spinner(LongYield);
  ASSERT_TRUE(Yields(&spinner));
  ASSERT_EQ(yields, 1);  // the yield ended the wait
  // Normally these waits take less than a tenth of a second.
  const int64_t begin = SteadyNanoseconds();
  for (int wait = 0; wait < 100; ++wait) WaitInVain(&spinner);
  if (SteadyNanoseconds() - begin < 90'000'000) {
    EXPECT_EQ(yields, 1);
  }
  // After that time it yields again.
  while (yields == 1 && SteadyNanoseconds() - begin < 10'000'000'000) WaitInVain(&spinner);
  EXPECT_EQ(yields, 2);
}

}  // namespace
}  // namespace tandem::rpc::shm
