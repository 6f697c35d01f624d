// SPDX-License-Identifier: Apache-2.0
#include "cli/profiling/timeline.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/profiling/traces.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using testing::TraceBuilder;

std::vector<std::string> TrackNames(const TimelineProcess& process) {
  std::vector<std::string> names;
  for (const TimelineTrack& track : process.tracks) names.push_back(track.name);
  return names;
}

TEST(Timeline, WhatIsUnderWayTogetherGetsTracksSideBySide) {
  const std::vector<CollectedTrace> collected = {TraceBuilder("worker/0")
                                                     .Thread(11, "compute")
                                                     .Add("train", "step", 0, 100)
                                                     .Add("train", "forward", 10, 50)
                                                     .Add("ps", "pull", 5, 60, true)
                                                     .Thread(12, "push")
                                                     .Add("ps", "pull", 20, 40, true)
                                                     .Add("ps", "pull", 60, 70, true)
                                                     .Build()};
  const Timeline timeline = MakeTimeline(collected);
  ASSERT_EQ(timeline.processes.size(), 1u);
  const TimelineProcess& process = timeline.processes[0];
  EXPECT_THAT(TrackNames(process), ElementsAre("compute", "pull 1", "pull 2"));
  EXPECT_EQ(process.tracks[0].id, 11);
  ASSERT_EQ(process.tracks[1].events.size(), 2u);  // 5-60 and 60-70
  EXPECT_EQ(process.tracks[1].events[1].begin_ns, 60);
  EXPECT_EQ(process.tracks[2].events[0].begin_ns, 20);
}

TEST(Timeline, ClocksAreAlignedAndTimesCountFromTheFirst) {
  const std::vector<CollectedTrace> collected = {
      TraceBuilder("worker/0").Clock(0, 0).Thread(1, "a").Add("t", "x", 1000, 2000).Build(),
      TraceBuilder("ps/0").Clock(5000, 30).Thread(1, "a").Add("t", "x", 6500, 6600).Build()};
  std::vector<CollectedTrace> moved = collected;
  moved[0].trace.from_ns = 1000;
  moved[1].trace.from_ns = 6000;
  const Timeline timeline = MakeTimeline(moved);
  EXPECT_EQ(timeline.begin_ns, 1000);
  EXPECT_EQ(timeline.processes[0].tracks[0].events[0].begin_ns, 0);
  EXPECT_NEAR(static_cast<double>(timeline.processes[1].tracks[0].events[0].begin_ns), 500, 31);
  EXPECT_GE(timeline.error_ns, 30);
}

TEST(Timeline, HalvesOfACallAreJoinedByTimeWhereTheirContentIsTheSame) {
  // Three equal calls, one after the other; the server's half of the second was lost.
  const std::vector<CollectedTrace> collected = {
      TraceBuilder("worker/0")
          .Thread(1, "a")
          .Call(9, 0, 100)
          .Call(9, 200, 300)
          .Call(9, 400, 500)
          .Call(8, 0, 10)
          .Build(),
      TraceBuilder("ps/0").Thread(1, "b").Serve(9, 420, 470).Serve(9, 20, 80).Serve(7, 0, 10).Build()};
  const Timeline timeline = MakeTimeline(collected);
  EXPECT_EQ(timeline.joined, 2u);
  EXPECT_EQ(timeline.unjoined, 3u);
  std::map<uint64_t, std::vector<int64_t>> begins;
  for (const TimelineProcess& process : timeline.processes) {
    for (const TimelineTrack& track : process.tracks) {
      for (const TimelineEvent& event : track.events) {
        if (event.flow != 0) begins[event.flow].push_back(event.begin_ns);
      }
    }
  }
  ASSERT_EQ(begins.size(), 2u);
  std::vector<std::vector<int64_t>> pairs;
  for (const auto& [flow, pair] : begins) pairs.push_back(pair);
  EXPECT_THAT(pairs, ::testing::UnorderedElementsAre(ElementsAre(0, 20), ElementsAre(400, 420)));
}

TEST(Timeline, ClockErrorsDoNotPartTheHalves) {
  // The server's half begins 50 early by its estimated clock.
  const auto with_error = [](int64_t error) {
    return std::vector<CollectedTrace>{
        TraceBuilder("worker/0").Thread(1, "a").Call(9, 1000, 2000).Build(),
        TraceBuilder("ps/0").Clock(0, error).Thread(1, "b").Serve(9, 950, 1500).Build()};
  };
  EXPECT_EQ(MakeTimeline(with_error(60)).joined, 1u);
  EXPECT_EQ(MakeTimeline(with_error(10)).joined, 0u);
}

TEST(Timeline, ProcessesWithoutATraceAreLeftOut) {
  std::vector<CollectedTrace> collected = {
      TraceBuilder("worker/0").Thread(1, "a").Add("t", "x", 0, 1).Build(), TraceBuilder("worker/1").Build()};
  collected[1].status = absl::UnavailableError("gone");
  const Timeline timeline = MakeTimeline(collected);
  ASSERT_EQ(timeline.processes.size(), 1u);
  EXPECT_EQ(timeline.processes[0].from->member.name, "worker/0");
}

// However the events overlap, those of a track nest, and none is lost.
TEST(Timeline, TracksNestForAnyEvents) {
  CounterRandom random(3, 4);
  for (int round = 0; round < 200; ++round) {
    TraceBuilder builder("worker/0");
    size_t added = 0;
    for (int thread = 1; thread <= 3; ++thread) {
      builder.Thread(thread, "t");
      for (uint64_t i = random.Below(30); i > 0; --i, ++added) {
        const auto begin = static_cast<int64_t>(random.Below(100)),
                   length = static_cast<int64_t>(random.Below(40));
        const bool beside = random.Below(2) == 0;
        builder.Add("c", beside ? "beside" : "nested", begin, begin + length, beside);
      }
    }
    const std::vector<CollectedTrace> collected = {builder.Build()};
    const Timeline timeline = MakeTimeline(collected);
    size_t found = 0;
    for (const TimelineTrack& track : timeline.processes[0].tracks) {
      found += track.events.size();
      std::vector<int64_t> open;
      for (const TimelineEvent& event : track.events) {
        while (!open.empty() && open.back() <= event.begin_ns) open.pop_back();
        if (!open.empty()) {
          ASSERT_LE(event.end_ns, open.back());
        }
        open.push_back(event.end_ns);
      }
    }
    EXPECT_EQ(found, added);
  }
}

}  // namespace
}  // namespace tandem::cli
