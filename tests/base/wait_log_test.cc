// SPDX-License-Identifier: Apache-2.0
#include "base/wait_log.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/timed_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::Contains;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

// Keeps lines.
class WaitLines {
 public:
  void Add(const std::string& line) {
    absl::MutexLock lock(&mutex_);
    lines_.push_back(line);
  }
  // Waits until `count` lines begin with `text`, and returns all lines.
  std::vector<std::string> Await(const std::string& text, int64_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] {
      mutex_.AssertReaderHeld();
      return std::count_if(lines_.begin(), lines_.end(), [&](const std::string& line) {
               return line.compare(0, text.size(), text) == 0;
             }) >= count;
    };
    EXPECT_TRUE(AwaitFor(&mutex_, absl::Condition(&there), absl::Minutes(1)));
    return lines_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

TEST(WaitLogTest, EachWaitIsLoggedAgainAndAgainUntilItEnds) {
  WaitLines lines;
  WaitLog log(absl::Milliseconds(2), [&](const std::string& line) { lines.Add(line); });
  const WaitLog::Wait first = log.Begin("learner/1");
  std::optional<WaitLog::Wait> second(log.Begin("replay/0"));
  EXPECT_THAT(lines.Await("has waited for learner/1 for ", 2),
              Contains(MatchesRegex("has waited for learner/1 for [0-9]+s?")));
  lines.Await("has waited for replay/0 for ", 2);
  second.reset();
  const size_t before = lines.Await("has waited for learner/1 for ", 3).size();
  const std::vector<std::string> all =
      lines.Await("has waited for learner/1 for ", static_cast<int64_t>(before) + 3);
  // One line of the wait that has ended may have been under way.
  const std::vector<std::string> later(all.begin() + static_cast<ptrdiff_t>(before) + 1, all.end());
  EXPECT_THAT(later, Not(Contains(StartsWith("has waited for replay/0"))));
}

TEST(WaitLogTest, TheLongestWaitIsTheOneThatBeganFirst) {
  WaitLog log(absl::Hours(1), [](const std::string&) {});
  EXPECT_EQ(log.Longest(), "");
  std::optional<WaitLog::Wait> first(log.Begin("learner/1"));
  const WaitLog::Wait second = log.Begin("replay/0");
  EXPECT_THAT(log.Longest(), MatchesRegex("learner/1 for [0-9]+s?"));
  first.reset();
  EXPECT_THAT(log.Longest(), MatchesRegex("replay/0 for [0-9]+s?"));
}

TEST(WaitLogTest, AWaitThatEndsSoonIsNotLogged) {
  WaitLines lines;
  {
    WaitLog log(absl::Hours(1), [&](const std::string& line) { lines.Add(line); });
    const WaitLog::Wait wait = log.Begin("learner/1");
    const WaitLog::Wait none = WaitLog::Begin(nullptr, "nobody");
  }
  EXPECT_TRUE(lines.Await("", 0).empty());
  EXPECT_EQ(WaitText("learner/1", absl::Seconds(90.5)), "has waited for learner/1 for 1m30s");
}

}  // namespace
}  // namespace tandem
