// SPDX-License-Identifier: Apache-2.0
#include "base/copy_choice.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

// Makes `copies` copies that take the given times and returns how many bypassed the caches.
int AroundOf(CopyChoice& choice, int copies, int64_t plain_ns, int64_t around_ns) {
  int around = 0;
  for (int i = 0; i < copies; ++i) {
    const CopyChoice::Way way = choice.Next();
    choice.Note(way, kBytes, way == CopyChoice::kPlain ? plain_ns : around_ns);
    around += way == CopyChoice::kAroundCaches ? 1 : 0;
  }
  return around;
}

TEST(CopyChoiceTest, PlainCopiesAreTakenWhereTheyAreAsFastAndTheOtherWayIsTriedNowAndThen) {
  CopyChoice choice(CopyChoice::kOfCopies);
  EXPECT_EQ(AroundOf(choice, 320, 40'000, 45'000), 10);
}

TEST(CopyChoiceTest, CopiesGoAroundTheCachesWherePlainOnesAreSlow) {
  CopyChoice choice(CopyChoice::kOfCopies);
  EXPECT_GE(AroundOf(choice, 320, 400'000, 45'000), 320 - 32 - 10);
}

TEST(CopyChoiceTest, FollowsTheMachineFromOneToTheOtherAndBack) {
  CopyChoice choice(CopyChoice::kOfCopies);
  AroundOf(choice, 100, 40'000, 45'000);
  EXPECT_GE(AroundOf(choice, 100, 400'000, 45'000), 90);
  AroundOf(choice, 64, 40'000, 45'000);
  EXPECT_LE(AroundOf(choice, 320, 40'000, 45'000), 10);
}

TEST(CopyChoiceTest, ACopyThatWasInterruptedChangesNothing) {
  CopyChoice choice(CopyChoice::kOfCopies);
  AroundOf(choice, 100, 40'000, 45'000);
  choice.Note(CopyChoice::kPlain, kBytes, 9'000'000);
  EXPECT_EQ(choice.Next(), CopyChoice::kPlain);
}

TEST(CopyChoiceTest, EveryByteArrivesAndNoOtherWhateverTheWayAndTheAlignment) {
  CopyChoice choice(CopyChoice::kOfCopies);
  const size_t size = CopyChoice::kWorthChoosing + 200;
  std::string from(size, '\0');
  for (size_t i = 0; i < size; ++i) from[i] = static_cast<char>(i * 31 + i / 251);
  std::string to;
  // More than 32 copies: both ways are used, each several times.
  for (size_t i = 0; i < 80; ++i) {
    const size_t skip = i % 67, bytes = i % 5 == 0 ? i : size - 70 - i;
    to.assign(size, '#');
    choice.Copy(to.data() + skip, from.data() + i % 3, bytes);
    ASSERT_EQ(to.substr(0, skip), std::string(skip, '#'));
    ASSERT_EQ(to.substr(skip, bytes), from.substr(i % 3, bytes)) << i;
    ASSERT_EQ(to.substr(skip + bytes), std::string(size - skip - bytes, '#'));
  }
}

}  // namespace
}  // namespace tandem
