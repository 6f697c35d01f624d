// SPDX-License-Identifier: Apache-2.0
#include "launcher/root_cause.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::launcher {
namespace {

class RootCauseTest : public ::testing::Test {
 protected:
  Process Running(const std::string& name) {
    return Process({.name = name}, std::make_unique<ChildOutput>(&console_, name, 0, /*raw=*/false));
  }
  Console console_;
};

TEST_F(RootCauseTest, TheProcessThatTheReasonNamesIsTheCause) {
  const Process one = Running("worker/1"), ten = Running("worker/10");
  const RootCause spoke = FindRootCause({}, {&ten, &one}, "worker/1: no such file");
  EXPECT_EQ(spoke.line, "the job failed: worker/1: no such file");
  EXPECT_EQ(spoke.process, &one);
  EXPECT_TRUE(spoke.explained);
  EXPECT_EQ(spoke.exit_code, 1);

  const RootCause silent = FindRootCause({}, {&ten, &one}, "worker/10 has been silent for 11s");
  EXPECT_EQ(silent.process, &ten);
  EXPECT_FALSE(silent.explained);
}

TEST_F(RootCauseTest, AReasonWithoutAProcessHasNoCause) {
  const Process one = Running("worker/1");
  const RootCause cause = FindRootCause({}, {&one}, "the store is gone");
  EXPECT_EQ(cause.line, "the job failed: the store is gone");
  EXPECT_EQ(cause.process, nullptr);
}

}  // namespace
}  // namespace tandem::launcher
