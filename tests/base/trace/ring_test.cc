// SPDX-License-Identifier: Apache-2.0
#include "base/trace/ring.h"

#include <atomic>
#include <thread>

#include "base/trace/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::trace {
namespace {

constexpr Kind kKind{"work", "test"};

// Returns an event with `n` in all fields.
RawEvent Event(uint64_t n) {
  const auto i = static_cast<int64_t>(n);
  return {&kKind, n, n, n, n, {i, i, i}};
}

TEST(Ring, ReadsWhatWasWrittenInOrder) {
  Ring ring(8, 1, "thread");
  for (uint64_t n = 0; n < 5; ++n) ring.Put(Event(n));
  uint64_t lost = 0;
  const std::vector<RawEvent> events = ring.Read(2, 100, &lost);
  ASSERT_EQ(events.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(events[i].begin, i + 2);
  EXPECT_EQ(events[0].kind, &kKind);
  EXPECT_EQ(lost, 0u);
}

TEST(Ring, KeepsTheNewestAndCountsTheOthers) {
  Ring ring(8, 1, "thread");
  for (uint64_t n = 0; n < 21; ++n) ring.Put(Event(n));
  uint64_t lost = 0;
  // The thread may be writing to the place of the oldest event.
  std::vector<RawEvent> events = ring.Read(0, 100, &lost);
  ASSERT_EQ(events.size(), 7u);
  EXPECT_EQ(events.front().begin, 14u);
  EXPECT_EQ(events.back().begin, 20u);
  EXPECT_EQ(lost, 14u);
  events = ring.Read(10, 3, &lost);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events.front().begin, 18u);
  EXPECT_EQ(lost, 8u);
}

TEST(Ring, AReaderNeverSeesAHalfWrittenEvent) {
  Ring ring(16, 1, "thread");
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> written{0};
  std::thread writer([&] {
    for (uint64_t n = 0; !stop.load(std::memory_order_relaxed); ++n) {
      ring.Put(Event(n));
      written.store(n, std::memory_order_relaxed);
    }
  });
  while (written.load() < 1000) std::this_thread::yield();
  uint64_t seen = 0, last = 0;
  for (int round = 0; round < 20000; ++round) {
    uint64_t lost = 0;
    const uint64_t from = ring.count() > 8 ? ring.count() - 8 : 0;
    uint64_t expected = 0;
    for (const RawEvent& event : ring.Read(from, 100, &lost)) {
      if (expected == 0) expected = from + lost;
      ASSERT_EQ(event.begin, expected);
      ASSERT_EQ(event.end, expected);
      ASSERT_EQ(event.flow_end, expected);
      ASSERT_EQ(event.arguments[2], static_cast<int64_t>(expected));
      ++expected;
      ++seen;
      last = event.begin;
    }
  }
  stop = true;
  writer.join();
  EXPECT_GT(seen, 0u);
  EXPECT_GT(last, 1000u - 16);
}

}  // namespace
}  // namespace tandem::trace
