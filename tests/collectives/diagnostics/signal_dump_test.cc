// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/signal_dump.h"

#include <pthread.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::collectives {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;
using testing::TempDir;

TEST(SignalDumpTest, ASignalMakesADump) {
  TempDir dir;
  auto recorder = std::make_shared<FlightRecorder>(
      FlightRecorder::Options{.entries = 4, .directory = dir.path(), .rank = 7});
  TANDEM_ASSERT_OK_AND_ASSIGN(auto dump, SignalDump::Install(recorder));
  ASSERT_EQ(::kill(::getpid(), SIGUSR2), 0);
  // The destructor waits for the requested dumps. kill() has delivered the signal when it returns only if
  // this thread took it, so it is sent to this thread as well.
  ASSERT_EQ(::pthread_kill(::pthread_self(), SIGUSR2), 0);
  dump.reset();
  EXPECT_TRUE(std::filesystem::exists(dir.File(absl::StrCat("tandem-trace-rank7-pid", ::getpid(), ".json"))));
}

TEST(SignalDumpTest, TheEarlierHandlerIsRestored) {
  static int calls = 0;
  struct sigaction mine = {}, before = {};
  mine.sa_handler = [](int) { ++calls; };
  ASSERT_EQ(::sigaction(SIGUSR2, &mine, &before), 0);
  auto recorder = std::make_shared<FlightRecorder>(FlightRecorder::Options{.entries = 4});
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto dump, SignalDump::Install(recorder));
    ::pthread_kill(::pthread_self(), SIGUSR2);
    EXPECT_EQ(calls, 0);
  }
  ::pthread_kill(::pthread_self(), SIGUSR2);
  EXPECT_EQ(calls, 1);
  ::sigaction(SIGUSR2, &before, nullptr);
}

TEST(SignalDumpTest, ThereIsOneAtATime) {
  auto recorder = std::make_shared<FlightRecorder>(FlightRecorder::Options{.entries = 4});
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, SignalDump::Install(recorder));
  EXPECT_THAT(SignalDump::Install(recorder), StatusIs(absl::StatusCode::kFailedPrecondition));
  first.reset();
  TANDEM_EXPECT_OK(SignalDump::Install(recorder));
}

TEST(SignalDumpTest, SignalsThatCannotBeCaughtAreRefused) {
  auto recorder = std::make_shared<FlightRecorder>(FlightRecorder::Options{.entries = 4});
  EXPECT_THAT(SignalDump::Install(recorder, SIGKILL),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("signal 9")));
  TANDEM_EXPECT_OK(SignalDump::Install(recorder));
}

}  // namespace
}  // namespace tandem::collectives
