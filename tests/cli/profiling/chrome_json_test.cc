// SPDX-License-Identifier: Apache-2.0
#include "cli/profiling/chrome_json.h"

#include <string>
#include <vector>

#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/profiling/trace_checker.h"
#include "tests/cli/profiling/traces.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;
using tandem::testing::StatusIs;
using testing::CheckTrace;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TraceBuilder;

std::vector<CollectedTrace> Example() {
  std::vector<CollectedTrace> collected = {
      TraceBuilder("worker/0")
          .Thread(11, "compute \"quoted\" \xff")
          .Add("train", "step", 0, 123'456'789)
          .Add("train", "forward", 0, 1)
          .Thread(12, "rpc")
          .Call(9, 1000, 5000)
          .Call(9, 2000, 6000)
          .Build(),
      TraceBuilder("ps/0").Clock(0, 500).Thread(7, "serve").Serve(9, 2100, 4000).Build(),
      TraceBuilder("worker/1").Build()};
  collected[2].status = absl::DeadlineExceededError("it does not answer");
  return collected;
}

TEST(ChromeJson, IsWhatPerfettoReads) {
  tandem::testing::TempDir dir;
  const std::string path = dir.path() + "/trace.json";
  const std::vector<CollectedTrace> collected = Example();
  TANDEM_ASSERT_OK(WriteChromeJson(path, MakeTimeline(collected), collected));
  const Json trace = ParseJson(tandem::testing::ReadFile(path));
  EXPECT_THAT(CheckTrace(trace), IsEmpty());
  const Json step = testing::EventsNamed(trace, "step").at(0);
  EXPECT_NEAR(step["dur"].get<double>(), 123456.789, 0.0005);
  EXPECT_EQ(step["args"]["bytes"], 7);
  EXPECT_EQ(testing::EventsNamed(trace, "Pull").size(), 3u);
  const Json& other = trace["otherData"];
  EXPECT_EQ(other["joined_calls"], 1);
  EXPECT_EQ(other["unjoined_halves"], 1);
  EXPECT_EQ(other["missing"][0]["member"], "worker/1");
  EXPECT_THAT(other["missing"][0]["why"].get<std::string>(), HasSubstr("does not answer"));
  EXPECT_GE(other["clock_error_us"].get<double>(), 0.5);
}

TEST(ChromeJson, EventsThatEndTogetherStayWithinEachOtherForWhoeverReadsThem) {
  tandem::testing::TempDir dir;
  const std::string path = dir.path() + "/trace.json";
  TraceBuilder builder("worker/0");
  builder.Thread(11, "main");
  for (int64_t i = 1; i < 3000; ++i) {
    const int64_t begin = i * 1'000'003, end = begin + 1000 + i;
    builder.Add("train", "outer", begin, end).Add("train", "inner", begin + i / 3, end);
    builder.Add("train", "next", end, end + i);
  }
  const std::vector<CollectedTrace> collected = {builder.Build()};
  TANDEM_ASSERT_OK(WriteChromeJson(path, MakeTimeline(collected), collected));
  EXPECT_THAT(CheckTrace(ParseJson(tandem::testing::ReadFile(path))), IsEmpty());
}

TEST(ChromeJson, APathThatCannotBeWrittenIsNamed) {
  const std::vector<CollectedTrace> collected = Example();
  EXPECT_THAT(WriteChromeJson("/nowhere/trace.json", MakeTimeline(collected), collected).message(),
              HasSubstr("/nowhere/trace.json"));
}

// Tests the checker: Perfetto would load each of these files wrongly, or not at all.
TEST(TraceChecker, FindsWhatIsWrong) {
  const Json name = {
      {"ph", "M"}, {"name", "process_name"}, {"pid", 1}, {"tid", 0}, {"args", {{"name", "a"}}}};
  const Json thread = {
      {"ph", "M"}, {"name", "thread_name"}, {"pid", 1}, {"tid", 2}, {"args", {{"name", "b"}}}};
  const auto event = [](double ts, double dur, int tid = 2) {
    return Json{{"ph", "X"}, {"name", "x"}, {"cat", "c"}, {"pid", 1}, {"tid", tid}, {"ts", ts}, {"dur", dur}};
  };
  const auto flow = [](const char* phase, double ts) {
    return Json{{"ph", phase}, {"bp", "e"}, {"name", "f"}, {"cat", "c"},
                {"pid", 1},    {"tid", 2},  {"ts", ts},    {"id", 5}};
  };
  const auto check = [](std::vector<Json> events) {
    return CheckTrace({{"traceEvents", std::move(events)}});
  };
  EXPECT_THAT(check({name, thread, event(0, 5), event(1, 2), event(5, 1)}), IsEmpty());
  EXPECT_THAT(check({name, thread, event(0, 5), flow("s", 0), event(6, 1), flow("f", 6)}), IsEmpty());
  EXPECT_THAT(check({name, thread, event(0, 5), event(4, 2)}), ElementsAre(HasSubstr("overlap")));
  EXPECT_THAT(check({name, thread, event(4, 2), event(0, 1)}), Not(IsEmpty()));
  EXPECT_THAT(check({name, thread, event(0, -1)}), ElementsAre(HasSubstr("duration")));
  EXPECT_THAT(check({name, event(0, 1)}), ElementsAre(HasSubstr("thread without a name")));
  EXPECT_THAT(check({thread, event(0, 1)}), ElementsAre(HasSubstr("process without a name")));
  EXPECT_THAT(check({name, name, thread}), ElementsAre(HasSubstr("named twice")));
  EXPECT_THAT(check({name, thread, event(0, 5), flow("s", 0)}),
              ElementsAre(HasSubstr("1 beginnings, 0 ends")));
  EXPECT_THAT(check({name, thread, event(0, 5), flow("s", 3), event(6, 1), flow("f", 6)}),
              ElementsAre(HasSubstr("flow at no event")));
  EXPECT_THAT(CheckTrace(Json::array()), Not(IsEmpty()));
}

}  // namespace
}  // namespace tandem::cli
