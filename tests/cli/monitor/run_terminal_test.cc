// SPDX-License-Identifier: Apache-2.0
// Tests tandem run in a terminal: its only process reads the keyboard.

#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/monitor/pseudo_terminal.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

class RunAtATerminalTest : public ::testing::Test {
 protected:
  PseudoTerminal Run(const char* workers, const std::string& script) {
    return PseudoTerminal(
        TANDEM_BINARY, {"run", "--log-dir", dir_.path(), "--workers", workers, "--", "/bin/sh", "-c", script},
        /*rows=*/40, /*columns=*/200);
  }
  static bool AwaitText(PseudoTerminal& terminal, const std::string& text) {
    return terminal.AwaitScreen(
        [&](const ScreenModel& screen) { return absl::StrContains(screen.text(), text); });
  }
  testing::TempDir dir_;
};

TEST_F(RunAtATerminalTest, ASingleProcessReadsTheKeyboard) {
  PseudoTerminal terminal = Run("1", "echo ready; read line; echo got $line");
  ASSERT_TRUE(AwaitText(terminal, "ready")) << terminal.screen().text();
  terminal.Press("hello\r");
  EXPECT_TRUE(AwaitText(terminal, "got hello")) << terminal.screen().text();
  EXPECT_EQ(terminal.Wait(), 0);
}

TEST_F(RunAtATerminalTest, ControlCStopsTheJobOfASingleProcess) {
  PseudoTerminal terminal = Run("1", "echo ready; exec tail -f /dev/null");
  ASSERT_TRUE(AwaitText(terminal, "ready")) << terminal.screen().text();
  terminal.Press("\x03");
  EXPECT_EQ(terminal.Wait(), 130) << terminal.screen().text();
}

TEST_F(RunAtATerminalTest, SeveralProcessesHaveNoInput) {
  PseudoTerminal terminal = Run("2", "read line || echo none; [ -z \"$line\" ]");
  EXPECT_EQ(terminal.Wait(), 0) << terminal.screen().text();
}

}  // namespace
}  // namespace tandem::cli
