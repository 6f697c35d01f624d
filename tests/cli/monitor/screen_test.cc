// SPDX-License-Identifier: Apache-2.0
// Tests the picture that tandem top draws for given statistics.

#include "cli/monitor/screen.h"
#include "base/json.h"

#include "cli/monitor/terminal.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "ps/table.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace v1 = ::tandem::v1;

v1::TableInfo Table(const std::string& name, uint64_t rows, uint64_t pulls, v1::UpdateMode mode) {
  v1::TableInfo table;
  table.mutable_config()->set_name(name);
  *table.mutable_config()->mutable_update_mode() = mode;
  v1::TableStatistics* s = table.mutable_statistics();
  s->set_rows(rows);
  s->set_bytes(rows * 80);
  s->set_bytes_per_row(80);
  s->set_pulls(pulls);
  s->set_pushes(pulls / 2);
  s->set_pulled_rows(pulls * 100);
  s->set_unchanged_rows(pulls * 25);
  s->set_unasked_rows(pulls * 300);
  s->set_evicted_rows(pulls);
  s->set_staleness_mean(1.25);
  s->set_staleness_max(7);
  s->mutable_row_staleness()->set_rows(4);
  s->mutable_row_staleness()->set_sum(3);
  s->mutable_row_staleness()->set_max(2);
  for (const int count : {2, 1, 1}) s->mutable_row_staleness()->add_histogram(count);
  for (int i = 0; i < 80; ++i) s->mutable_pull_latency()->add_counts(i == 69 ? pulls : 0);
  v1::HotId* hot = s->add_hottest();
  hot->set_id(4711);
  hot->set_pulls(pulls * 50);
  return table;
}

Snapshot TwoServers(double uptime_s, uint64_t pulls) {
  // The wall clock steps back between two snapshots, which no rate may show.
  Snapshot snapshot{.time = absl::FromUnixSeconds(1000) - absl::Seconds(uptime_s),
                    .taken = absl::FromUnixSeconds(1000) + absl::Seconds(uptime_s)};
  ServerSnapshot responses{.address = "127.0.0.1:7000"};
  responses.statistics.set_uptime_s(uptime_s);
  responses.statistics.set_cpu_s(uptime_s / 2);
  responses.statistics.set_rss_bytes(123456789);
  responses.tables = {Table("user", 1500000, pulls, ps::Gba(8)), Table("item", 20, 10, ps::Sync())};
  snapshot.tables = responses.tables;
  snapshot.servers.push_back(responses);
  snapshot.servers.push_back(
      {.address = "host-b:7001", .status = absl::UnavailableError("connection refused")});
  return snapshot;
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(Screen, NumbersAndTimesAreShort) {
  EXPECT_EQ(ShortNumber(0), "0");
  EXPECT_EQ(ShortNumber(2.54), "2.5");
  EXPECT_EQ(ShortNumber(999), "999");
  EXPECT_EQ(ShortNumber(1500000), "1.5M");
  EXPECT_EQ(ShortNumber(999600), "1.0M");
  EXPECT_EQ(ShortNumber(123456789), "123M");
  for (const double value : {9.96, 99.96, 999.6, 99960.0, 1.8e19}) EXPECT_LE(ShortNumber(value).size(), 5u);
  EXPECT_EQ(ShortTime(0.4), "0us");
  EXPECT_EQ(ShortTime(850), "850us");
  EXPECT_EQ(ShortTime(12340), "12.3ms");
  EXPECT_EQ(ShortTime(4.5e6), "4.5s");
  for (const double us : {999.6, 99960.0, 999600.0, 1e9}) EXPECT_LE(ShortTime(us).size(), 6u);
}

TEST(Screen, NoLineIsLongerThanTheTerminal) {
  const Snapshot now = TwoServers(10, 1000);
  for (const size_t columns : {40, 80, 200}) {
    for (const std::string& line : DrawSnapshot(now, nullptr, {.columns = columns})) {
      EXPECT_LE(line.size(), columns) << line;
    }
  }
}

TEST(Screen, ShowsRatesOfTheInterval) {
  const Snapshot before = TwoServers(10, 1000), now = TwoServers(12, 1600);
  const std::vector<std::string> lines = DrawSnapshot(now, &before, {});
  // 300 pulls, 150 pushes and 30000 rows a second; pulls took 384 to 416 us.
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("user"), HasSubstr("1.5M"), HasSubstr(" 300 "),
                                    HasSubstr(" 150 "), HasSubstr("30.0k"), HasSubstr("400us/400us"))));
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("user"), HasSubstr("gba:8"), HasSubstr("1.25/7/8"),
                                    HasSubstr("0.75/2"), HasSubstr("81.2"))))
      << "of 400 rows a pull, 300 needed no asking and 25 had not changed";
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("item"), HasSubstr("sync"), HasSubstr("1.25/7/0"))));
  EXPECT_THAT(lines, Contains(HasSubstr("4711 (50.00%)")));
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("0 127.0.0.1:7000"), HasSubstr(" 50 "), HasSubstr("123M"))));
}

TEST(Screen, AServerThatDoesNotAnswerIsShown) {
  EXPECT_THAT(DrawSnapshot(TwoServers(10, 1000), nullptr, {}),
              Contains(StartsWith("1 host-b:7001  does not answer: connection refused")));
  Snapshot none = TwoServers(10, 1000);
  none.servers[0].status = absl::UnavailableError("gone");
  none.tables.clear();
  EXPECT_THAT(Joined(DrawSnapshot(none, nullptr, {})), HasSubstr("no server answers"));
}

TEST(Screen, ARestartedServerHasNoNegativeRates) {
  const Snapshot before = TwoServers(1000, 1000000), now = TwoServers(1, 50);
  for (const TableActivity& table : Activity(now, &before)) {
    EXPECT_GE(table.pulls_per_s, 0.0);
    EXPECT_GE(table.rows_per_s, 0.0);
  }
}

TEST(Screen, SortsByWhatIsAsked) {
  const Snapshot now = TwoServers(10, 1000);
  const auto first = [&](ScreenOptions options) {
    for (const std::string& line : DrawSnapshot(now, nullptr, options)) {
      if (line.rfind("user", 0) == 0 || line.rfind("item", 0) == 0) return line.substr(0, 4);
    }
    return std::string();
  };
  EXPECT_EQ(first({.sort = SortBy::kName}), "item");
  EXPECT_EQ(first({.sort = SortBy::kName, .reversed = true}), "user");
  EXPECT_EQ(first({.sort = SortBy::kRows}), "user");
  EXPECT_EQ(first({.sort = SortBy::kPulls, .reversed = true}), "item");
}

TEST(Screen, JsonHoldsTheSame) {
  const Snapshot before = TwoServers(10, 1000), now = TwoServers(12, 1600);
  const std::string line = SnapshotToJson(now, &before);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = ParseJson(line);
  EXPECT_EQ(json["servers"][0]["answers"], true);
  EXPECT_EQ(json["servers"][1]["error"], "connection refused");
  EXPECT_EQ(json["tables"][0]["name"], "user");
  EXPECT_EQ(json["tables"][0]["mode"], "gba:8");
  EXPECT_DOUBLE_EQ(json["tables"][0]["pulls_per_s"], 300.0);
  EXPECT_DOUBLE_EQ(json["tables"][0]["cached_share"], 0.8125);
  EXPECT_EQ(json["tables"][0]["hottest"][0]["id"], 4711);
}

TEST(Terminal, KnowsItsKeys) {
  const auto key = [](absl::string_view bytes) { return ParseKey(bytes)->first; };
  EXPECT_EQ(key("q"), Key::kQuit);
  EXPECT_EQ(key("\x1b[C"), Key::kRight);
  EXPECT_EQ(key("\x1b[Dq"), Key::kLeft);
  EXPECT_EQ(ParseKey("\x1b[Dq")->second, 3u);
  EXPECT_EQ(key("r"), Key::kReverse);
  EXPECT_EQ(key("x"), Key::kOther);
  EXPECT_FALSE(ParseKey("\x1b").has_value());
  EXPECT_FALSE(ParseKey("\x1b[").has_value());
}

}  // namespace
}  // namespace tandem::cli
