// SPDX-License-Identifier: Apache-2.0
#include "base/trace/recorder.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/trace/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::trace {
namespace {

using ::testing::HasSubstr;

constexpr size_t kAll = size_t{1} << 20;
constexpr Kind kOuter{"outer", "test", {"bytes", "rows", "tries"}};
constexpr Kind kInner{"inner", "test"};

TEST(Recorder, RecordsNothingUnlessStarted) {
  Recorder recorder;
  EXPECT_FALSE(IsOn());
  EXPECT_EQ(Begin(), 0u);
  { Span span(kOuter, 1); }
  TANDEM_ASSERT_OK(recorder.Start());
  EXPECT_TRUE(IsOn());
  recorder.Stop();
  { Span span(kOuter, 1); }
  EXPECT_TRUE(recorder.Collect(kAll).threads.empty());
}

TEST(Recorder, SpansNestAndCarryTheirNumbers) {
  Recorder recorder;
  TANDEM_ASSERT_OK(recorder.Start());
  const int64_t before = SteadyNanoseconds();
  {
    Span outer(kOuter, 7, 8, -9);
    Span inner(kInner);
  }
  const int64_t after = SteadyNanoseconds();
  recorder.Stop();
  const Recording recording = recorder.Collect(kAll);
  ASSERT_EQ(recording.threads.size(), 1u);
  EXPECT_EQ(recording.threads[0].id, ::gettid());
  const std::vector<Event>& events = recording.threads[0].events;
  ASSERT_EQ(events.size(), 2u);
  const Event &inner = events[0], &outer = events[1];
  EXPECT_EQ(inner.kind, &kInner);
  EXPECT_EQ(outer.kind, &kOuter);
  EXPECT_THAT(outer.arguments, ::testing::ElementsAre(7, 8, -9));
  EXPECT_LE(outer.begin_ns, inner.begin_ns);
  EXPECT_LE(inner.end_ns, outer.end_ns);
  // The two clocks are read one after the other by a thread that may be preempted in between.
  constexpr int64_t kApart = 1'000'000;
  EXPECT_GE(outer.begin_ns, before - kApart);
  EXPECT_LE(outer.end_ns, after + kApart);
  EXPECT_LE(recording.from_ns, outer.begin_ns);
  EXPECT_GE(recording.to_ns, outer.end_ns);
}

TEST(Recorder, ASecondRecordingHasNothingOfTheFirst) {
  Recorder recorder;
  TANDEM_ASSERT_OK(recorder.Start());
  { Span span(kOuter); }
  const uint64_t across = Begin();
  recorder.Stop();
  End(kOuter, across);  // too late for the first recorder
  TANDEM_ASSERT_OK(recorder.Start());
  { Span span(kInner); }
  End(kOuter, across);  // too early for the second recorder
  recorder.Stop();
  const Recording recording = recorder.Collect(kAll);
  ASSERT_EQ(recording.threads.size(), 1u);
  ASSERT_EQ(recording.threads[0].events.size(), 1u);
  EXPECT_EQ(recording.threads[0].events[0].kind, &kInner);
}

TEST(Recorder, OneRecorderAtATime) {
  Recorder first, second;
  TANDEM_ASSERT_OK(first.Start());
  EXPECT_THAT(std::string(second.Start().message()), HasSubstr("traced already"));
  EXPECT_THAT(std::string(first.Start().message()), HasSubstr("traced already"));
  second.Stop();  // it is not recording
  EXPECT_TRUE(IsOn());
  first.Stop();
  TANDEM_ASSERT_OK(second.Start());
}

TEST(Recorder, ThreadsKeepTheirNamesAndEventsWhenTheyEnd) {
  Recorder recorder;
  TANDEM_ASSERT_OK(recorder.Start());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      NameThread(absl::StrCat("worker ", t).c_str());
      for (int i = 0; i <= t; ++i) Span span(kOuter, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  recorder.Stop();
  Recording recording = recorder.Collect(kAll);
  ASSERT_EQ(recording.threads.size(), 4u);
  std::sort(recording.threads.begin(), recording.threads.end(),
            [](const ThreadEvents& a, const ThreadEvents& b) { return a.name < b.name; });
  for (size_t t = 0; t < 4; ++t) {
    EXPECT_EQ(recording.threads[t].name, absl::StrCat("worker ", t));
    EXPECT_EQ(recording.threads[t].events.size(), t + 1);
  }
  // The threads have ended, so the next recording does not contain their rings.
  TANDEM_ASSERT_OK(recorder.Start());
  EXPECT_TRUE(recorder.Collect(kAll).threads.empty());
}

TEST(Recorder, MemoryIsBoundedAndLossesAreTold) {
  Recorder recorder({.events_per_thread = 64, .max_threads = 2});
  TANDEM_ASSERT_OK(recorder.Start());
  for (int i = 0; i < 1000; ++i) Span span(kOuter, i);
  std::thread([] { Span span(kInner); }).join();
  std::thread([] {
    for (int i = 0; i < 5; ++i) Span span(kInner);
  }).join();
  recorder.Stop();
  Recording recording = recorder.Collect(kAll);
  ASSERT_EQ(recording.threads.size(), 2u);
  EXPECT_EQ(recording.unplaced, 5u);
  EXPECT_EQ(recording.threads[1].events.size() + recording.threads[1].lost, 1000u);
  EXPECT_EQ(recording.threads[1].events.back().arguments[0], 999);
  // A limit for all threads together: the thread with one event leaves the rest of its share to the other.
  recording = recorder.Collect(20);
  EXPECT_EQ(recording.threads[0].events.size(), 1u);
  EXPECT_EQ(recording.threads[1].events.size(), 19u);
}

TEST(Recorder, InternsNamesOfAnyThread) {
  Recorder recorder;
  const Kind& pull = recorder.Intern("Pull", "call", "bytes");
  EXPECT_STREQ(pull.name, "Pull");
  EXPECT_TRUE(pull.may_overlap);
  EXPECT_NE(&recorder.Intern("Pull", "serve", "bytes"), &pull);
  TANDEM_ASSERT_OK(recorder.Start());
  { Span span(kOuter); }  // from now on this thread finds the name in its own map
  EXPECT_EQ(&recorder.Intern("Pull", "call", "bytes"), &pull);
  EXPECT_EQ(&recorder.Intern("Pull", "call", "bytes"), &pull);
  const Kind* last = nullptr;
  for (int i = 0; i < 5000; ++i) last = &recorder.Intern(absl::StrCat("method ", i), "call", "bytes");
  EXPECT_STREQ(last->name, "other");
  EXPECT_EQ(&recorder.Intern("Pull", "call", "bytes"), &pull);
}

// Several threads record, end and begin while another one collects: no event is torn, and each ends after it
// begins.
TEST(Recorder, CollectsWhileOthersRecord) {
  Recorder recorder({.events_per_thread = 256});
  TANDEM_ASSERT_OK(recorder.Start());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) Span span(kOuter, i, i, i);
    });
  }
  size_t seen = 0;
  for (int round = 0; round < 200 || seen == 0; ++round) {
    for (const ThreadEvents& thread : recorder.Collect(kAll).threads) {
      int64_t last = -1;
      for (const Event& event : thread.events) {
        ASSERT_EQ(event.kind, &kOuter);
        ASSERT_EQ(event.arguments[0], event.arguments[2]);
        ASSERT_GT(event.arguments[0], last);
        last = event.arguments[0];
        ++seen;
      }
    }
    if (round % 50 == 25) {
      recorder.Stop();
      TANDEM_ASSERT_OK(recorder.Start());
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tandem::trace
