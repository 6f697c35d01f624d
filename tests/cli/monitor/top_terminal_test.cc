// SPDX-License-Identifier: Apache-2.0
// Tests tandem top in a terminal: the screen and the keys.

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/monitor/live_servers.h"
#include "tests/cli/monitor/pseudo_terminal.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class TopAtATerminalTest : public LiveServers {
 protected:
  void SetUp() override {
    LiveServers::SetUp();
    ASSERT_FALSE(HasFatalFailure());
    // Another table, whose name is longer than some columns, with a cache that serves most of what is pulled.
    ps::v1::TableConfig config =
        ps::EmbeddingTable("a_table_with_a_long_name", 4, ps::Sgd(0.1f), ps::Zeros());
    *config.mutable_update_mode() = ps::Async();
    TANDEM_ASSERT_OK(client_->CreateTable(config));
    TANDEM_ASSERT_OK(client_->SetCache("a_table_with_a_long_name", {.bytes = 1 << 20, .max_uses = 1000}));
    const std::vector<uint64_t> ids = {1, 2, 3, 4};
    std::vector<float> rows(ids.size() * 4);
    TANDEM_ASSERT_OK(client_->Push(
        0,
        {{.table = "a_table_with_a_long_name", .ids = ids, .gradients = rows.data()}}));  // a version to keep
    for (uint64_t step = 1; step < 100; ++step) {
      TANDEM_ASSERT_OK(client_->Pull(
          step, false, {{.table = "a_table_with_a_long_name", .ids = ids, .rows = rows.data()}}));
    }
  }

  PseudoTerminal Top(size_t rows, size_t columns, const char* interval = "0.2") {
    return PseudoTerminal(
        TANDEM_BINARY, {"top", "--store", Store(), "--interval", interval, "--timeout", "5"}, rows, columns);
  }
  static bool Shows(const ScreenModel& screen, absl::string_view text) {
    return absl::StrContains(screen.text(), text);
  }
  // The whole picture has been drawn: its last line is there.
  static bool IsWhole(const ScreenModel& screen) { return Shows(screen, "user:  7 ("); }
};

TEST_F(TopAtATerminalTest, FillsScreensOfEverySizeAndNoMore) {
  for (const size_t columns : {40, 80, 200}) {
    PseudoTerminal top = Top(24, columns);
    ASSERT_TRUE(top.AwaitScreen([](const ScreenModel& screen) { return Shows(screen, "user: "); }))
        << top.screen().text();
    EXPECT_THAT(top.screen().unknown(), IsEmpty());
    EXPECT_TRUE(top.screen().alternate());
    EXPECT_FALSE(top.screen().cursor_shown());
    EXPECT_FALSE(top.IsCooked());
    EXPECT_THAT(top.screen().lines()[0], HasSubstr("tandem top"));
    EXPECT_THAT(top.screen().lines()[1], HasSubstr("SERVER"));
    if (columns >= 80) {
      EXPECT_THAT(top.screen().lines()[0], HasSubstr("r reverses)"));
      EXPECT_THAT(top.screen().text(), HasSubstr("PUSH p50/p99"));
      EXPECT_THAT(top.screen().text(), HasSubstr("CACHE% EVICT SPILL  KEPT"));  // all of them
    }
    if (columns == 80) {
      EXPECT_THAT(top.screen().text(), HasSubstr("a_table_w~ "));
    }
    if (columns == 200) {
      EXPECT_THAT(top.screen().text(), HasSubstr("a_table_with_a_long_name "));
      // The numbers follow the name, not at the other end of the screen.
      EXPECT_THAT(top.screen().lines()[5].substr(120), ::testing::MatchesRegex(" *")) << top.screen().text();
    }
    top.Press("q");
    EXPECT_EQ(top.Wait(), 0);
  }
}

TEST_F(TopAtATerminalTest, CountsRowsThatTheCacheServed) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const ps::CacheStatistics cache,
                              client_->CacheStatisticsOf("a_table_with_a_long_name"));
  ASSERT_GT(cache.locally_served, 300u);
  const std::string percent = absl::StrFormat(
      " %.1f ", 100.0 * static_cast<double>(cache.hits()) / static_cast<double>(cache.lookups));
  // The first picture, of all the time until now, stays for an hour.
  PseudoTerminal top = Top(24, 80, "3600");
  EXPECT_TRUE(top.AwaitScreen([&](const ScreenModel& screen) { return Shows(screen, percent); }))
      << percent << "\n"
      << top.screen().text();
}

TEST_F(TopAtATerminalTest, GivesTheTerminalBackHoweverItEnds) {
  for (const char* key : {"q", "\x03"}) {
    PseudoTerminal top = Top(24, 80);
    ASSERT_TRUE(top.AwaitScreen(IsWhole)) << top.screen().text();
    top.Press(key);
    EXPECT_EQ(top.Wait(), 0);
    EXPECT_FALSE(top.screen().alternate());
    EXPECT_TRUE(top.screen().cursor_shown());
    EXPECT_TRUE(top.IsCooked());
  }
}

TEST_F(TopAtATerminalTest, StopsWithoutTheTerminalAndGoesOnWithIt) {
  PseudoTerminal top = Top(24, 80);
  ASSERT_TRUE(top.AwaitScreen(IsWhole)) << top.screen().text();
  top.Press("\x1a");  // Ctrl-Z
  ASSERT_TRUE(top.AwaitStop());
  EXPECT_TRUE(top.IsCooked());
  ASSERT_TRUE(top.AwaitScreen([](const ScreenModel& screen) { return !screen.alternate(); }));
  top.Continue();
  EXPECT_TRUE(top.AwaitScreen([](const ScreenModel& screen) {
    return screen.alternate() && IsWhole(screen);
  })) << top.screen().text();
  EXPECT_FALSE(top.IsCooked());
}

TEST_F(TopAtATerminalTest, FollowsTheTerminalsSize) {
  PseudoTerminal top = Top(24, 80);
  ASSERT_TRUE(top.AwaitScreen(IsWhole)) << top.screen().text();
  top.Resize(30, 120);
  EXPECT_TRUE(top.AwaitScreen([](const ScreenModel& screen) {
    return IsWhole(screen) && Shows(screen, "a_table_with_a_long_name ");
  })) << top.screen().text();
  top.Resize(8, 50);
  EXPECT_TRUE(top.AwaitScreen([](const ScreenModel& screen) {
    return absl::StrContains(screen.lines()[0], "tandem top") && screen.lines()[7][0] != ' ';
  })) << top.screen().text();
}

TEST_F(TopAtATerminalTest, SortsAndReversesAtAKey) {
  PseudoTerminal top = Top(24, 80);
  ASSERT_TRUE(top.AwaitScreen(IsWhole)) << top.screen().text();
  const auto by = [](const char* what) {
    return [what](const ScreenModel& screen) { return absl::StrContains(screen.lines()[0], what); };
  };
  top.Press("\x1b[C");
  EXPECT_TRUE(top.AwaitScreen(by("by rows"))) << top.screen().text();
  top.Press("\x1b[D\x1b[D");
  EXPECT_TRUE(top.AwaitScreen(by("by pull p99"))) << top.screen().text();
  top.Press("r");
  EXPECT_TRUE(top.AwaitScreen([](const ScreenModel& screen) { return Shows(screen, "^"); }))
      << top.screen().text();
}

TEST_F(TopAtATerminalTest, AServerThatDiesIsShownAndFoundAgainWhereverItListensThen) {
  PseudoTerminal top = Top(24, 80);
  ASSERT_TRUE(top.AwaitScreen(IsWhole)) << top.screen().text();
  servers_[1]->Signal(SIGKILL);
  servers_[1]->Wait();
  EXPECT_TRUE(top.AwaitScreen([&](const ScreenModel& screen) {
    return Shows(screen, absl::StrCat("1 ", addresses_[1], "  does not answer: ")) && Shows(screen, "user: ");
  })) << top.screen().text();
  EXPECT_THAT(top.screen().unknown(), IsEmpty());
  servers_[1] = StartServer(1);
  EXPECT_TRUE(top.AwaitScreen([&](const ScreenModel& screen) {
    return !Shows(screen, "does not answer") && !Shows(screen, addresses_[1]) && Shows(screen, "user: ");
  })) << top.screen().text();
  EXPECT_THAT(top.screen().text(), Not(HasSubstr("-nan")));
  top.Press("q");
  EXPECT_EQ(top.Wait(), 0);
}

}  // namespace
}  // namespace tandem::cli
