// SPDX-License-Identifier: Apache-2.0
#include "base/logging.h"

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// Returns what Log() writes while `body` runs.
template <typename Body>
std::string Logged(Body body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

TEST(LoggingTest, ALineHasLevelTimeNameAndText) {
  SetLogLevel(LogLevel::kInfo);
  EXPECT_THAT(Logged([] { LogWarning("row {} is 100% full"); }),
              MatchesRegex("W [0-9:.]+ row \\{\\} is 100% full\n"));
  SetLogName("worker/3");
  EXPECT_THAT(Logged([] { LogInfo("ready"); }), MatchesRegex("I [0-9:.]+ worker/3 ready\n"));
  SetLogName("");
  EXPECT_THAT(Logged([] { LogError("gone"); }), MatchesRegex("E [0-9:.]+ gone\n"));
}

TEST(LoggingTest, MessagesBelowTheLevelAreDropped) {
  SetLogLevel(LogLevel::kWarning);
  const std::string logged = Logged([] {
    LogDebug("one");
    LogInfo("two");
    LogWarning("three");
  });
  SetLogLevel(LogLevel::kInfo);
  EXPECT_THAT(logged, HasSubstr("three"));
  EXPECT_THAT(logged, Not(HasSubstr("one")));
  EXPECT_THAT(logged, Not(HasSubstr("two")));
}

TEST(LoggingTest, LinesOfManyThreadsStayWhole) {
  const std::string logged = Logged([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 50; ++i) LogInfo("0123456789");
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_EQ(std::count(logged.begin(), logged.end(), '\n'), 200);
  size_t whole = 0;
  for (size_t at = logged.find(" 0123456789\n"); at != std::string::npos;
       at = logged.find(" 0123456789\n", at + 1)) {
    ++whole;
  }
  EXPECT_EQ(whole, 200);
}

}  // namespace
}  // namespace tandem
