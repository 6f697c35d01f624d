// SPDX-License-Identifier: Apache-2.0
#include "rpc/diagnostics/trace_codec.h"

#include <functional>
#include <limits>

#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;

constexpr trace::Kind kPull{"pull", "ps", {"bytes", "rows"}, /*may_overlap=*/true};
constexpr trace::Kind kGather{"gather", "train"};

trace::Recording Example() {
  trace::Recording recording{.from_ns = 1000, .to_ns = 9000};
  recording.threads.push_back({.id = 7, .name = "compute", .lost = 3});
  recording.threads.back().events = {{&kGather, 1500, 1600, {}, {}},
                                     {&kPull, 1100, 1700, {99, trace::Flow::End::kSends}, {-5, 6, 7}}};
  recording.threads.push_back({.id = 8, .name = "push"});
  recording.threads.back().events = {{&kPull, 2000, 2000, {98, trace::Flow::End::kReceives}, {1, 2, 3}}};
  recording.unplaced = 4;
  return recording;
}

TEST(TraceCodec, WhatIsDecodedIsWhatWasEncoded) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const ProcessTrace trace, DecodeTrace(EncodeTrace(Example(), /*skew_ns=*/10)));
  EXPECT_EQ(trace.from_ns, 1010);
  EXPECT_EQ(trace.to_ns, 9010);
  EXPECT_EQ(trace.unplaced, 4u);
  ASSERT_EQ(trace.threads.size(), 2u);
  EXPECT_EQ(trace.threads[0].name, "compute");
  EXPECT_EQ(trace.threads[0].id, 7);
  EXPECT_EQ(trace.threads[0].lost, 3u);
  ASSERT_EQ(trace.threads[0].events.size(), 2u);
  const ProcessTrace::Event& pull = trace.threads[0].events[1];
  EXPECT_EQ(pull.begin_ns, 1110);
  EXPECT_EQ(pull.end_ns, 1710);
  EXPECT_EQ(pull.flow.id, 99u);
  EXPECT_EQ(pull.flow.end, trace::Flow::End::kSends);
  EXPECT_THAT(pull.arguments, ::testing::ElementsAre(-5, 6, 7));
  EXPECT_EQ(trace.kinds[pull.kind].name, "pull");
  EXPECT_THAT(trace.kinds[pull.kind].arguments, ::testing::ElementsAre("bytes", "rows"));
  EXPECT_TRUE(trace.kinds[pull.kind].may_overlap);
  EXPECT_EQ(trace.threads[1].events[0].kind, pull.kind);
  EXPECT_EQ(trace.kinds[trace.threads[0].events[0].kind].category, "train");
}

TEST(TraceCodec, DamagedRecordingsAreRefused) {
  using Damage = std::function<void(v1::TraceRecording*)>;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const Damage damages[] = {
      [](v1::TraceRecording* r) { r->mutable_threads(0)->set_kind(0, 2); },
      [](v1::TraceRecording* r) { r->mutable_threads(0)->add_kind(0); },
      [](v1::TraceRecording* r) { r->mutable_threads(0)->mutable_arguments()->RemoveLast(); },
      [](v1::TraceRecording* r) { r->mutable_threads(0)->mutable_flow()->Clear(); },
      [](v1::TraceRecording* r) { r->mutable_threads(0)->set_flow_end(1, 3); },
      [](v1::TraceRecording* r) { r->mutable_threads(0)->set_duration_ns(0, ~uint64_t{0}); },
      [](v1::TraceRecording* r) { r->mutable_threads(1)->set_end_delta(0, kMax); },
      [](v1::TraceRecording* r) { r->set_from_ns(-kMax); },
      [](v1::TraceRecording* r) {
        for (int i = 0; i < 3; ++i) r->mutable_kinds(0)->add_arguments("x");
        r->mutable_kinds(0)->add_arguments("x");
      }};
  TANDEM_ASSERT_OK(DecodeTrace(EncodeTrace(Example(), 0)));
  for (const Damage& damage : damages) {
    v1::TraceRecording recording = EncodeTrace(Example(), 0);
    damage(&recording);
    EXPECT_THAT(DecodeTrace(recording).status(), StatusIs(absl::StatusCode::kDataLoss));
  }
}

}  // namespace
}  // namespace tandem::rpc
