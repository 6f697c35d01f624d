// SPDX-License-Identifier: Apache-2.0
#include "rpc/diagnostics/diagnostics_server.h"

#include <unistd.h>

#include <memory>
#include <string>

#include "base/ticks.h"
#include "base/trace/trace.h"
#include "rpc/channel.h"
#include "rpc/diagnostics/trace_codec.h"
#include "rpc/health.h"
#include "tandem/v1/diagnostics.pb.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr trace::Kind kWork{"work", "test", {"bytes"}};

class DiagnosticsTest : public ::testing::Test {
 protected:
  void SetUp() override { Serve({}); }
  void Serve(const DiagnosticsOptions& options) {
    channel_ = nullptr;
    server_ = nullptr;
    TANDEM_ASSERT_OK_AND_ASSIGN(server_, DiagnosticsServer::Start(options, status_, &recorder_));
    TANDEM_ASSERT_OK_AND_ASSIGN(channel_, ConnectGrpc(server_->address(), {.stream = false}));
  }
  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(const std::string& method, const Request& request) {
    Response response;
    absl::Status status = CallProto(*channel_, "/tandem.v1.Diagnostics/" + method, request, &response, {});
    if (!status.ok()) return status;
    return response;
  }
  absl::Status StartTrace(const std::string& owner, absl::Duration limit = absl::Minutes(1)) {
    v1::StartTraceRequest request;
    request.set_owner(owner);
    request.set_limit_ms(absl::ToInt64Milliseconds(limit));
    return Call<v1::StartTraceResponse>("StartTrace", request).status();
  }
  absl::StatusOr<ProcessTrace> StopTrace(const std::string& owner, uint64_t max_events = 1000) {
    v1::StopTraceRequest request;
    request.set_owner(owner);
    request.set_max_events(max_events);
    auto answer = Call<v1::TraceRecording>("StopTrace", request);
    if (!answer.ok()) return answer.status();
    return DecodeTrace(*answer);
  }
  absl::StatusOr<bool> Health(const std::string& service) {
    return CheckHealth(*channel_, service, absl::Minutes(1));
  }

  trace::Recorder recorder_;
  std::shared_ptr<ProcessStatus> status_ = std::make_shared<ProcessStatus>("worker/3", 2);
  std::unique_ptr<DiagnosticsServer> server_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(DiagnosticsTest, TellsHowTheProcessGoes) {
  status_->SetStep(41);
  status_->SetState("training");
  status_->SetTrainEpoch(5);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto info, Call<v1::ProcessInfo>("GetProcess", v1::GetProcessRequest()));
  EXPECT_EQ(info.member(), "worker/3");
  EXPECT_EQ(info.pid(), ::getpid());
  EXPECT_EQ(info.step(), 41u);
  EXPECT_EQ(info.epoch(), 2);
  EXPECT_EQ(info.train_epoch(), 5);
  EXPECT_EQ(info.state(), "training");
  EXPECT_FALSE(info.host().empty());
  EXPECT_EQ(status_->Get().diagnostics, server_->address());
}

TEST_F(DiagnosticsTest, HealthIsThatOfTheProcessAndOfEachService) {
  EXPECT_FALSE(Health("").value());
  EXPECT_TRUE(Health("tandem.v1.Diagnostics").value());
  EXPECT_THAT(Health("tandem.v1.ParameterServer").status(), StatusIs(absl::StatusCode::kNotFound));
  server_->SetServing(true);
  EXPECT_TRUE(Health("").value());
  server_->SetServing(false);
  EXPECT_FALSE(Health("").value());
}

TEST_F(DiagnosticsTest, TracesWhatHappensBetweenStartAndStop) {
  { trace::Span span(kWork, 1); }
  TANDEM_ASSERT_OK(StartTrace("me"));
  { trace::Span span(kWork, 2); }
  TANDEM_ASSERT_OK_AND_ASSIGN(const ProcessTrace recorded, StopTrace("me"));
  { trace::Span span(kWork, 3); }
  int found = 0;
  for (const auto& thread : recorded.threads) {
    for (const auto& event : thread.events) {
      EXPECT_GE(event.begin_ns, recorded.from_ns);
      EXPECT_LE(event.end_ns, recorded.to_ns);
      if (recorded.kinds[event.kind].name != "work") continue;
      ++found;
      EXPECT_EQ(event.arguments[0], 2);
      EXPECT_EQ(thread.id, ::gettid());
    }
  }
  EXPECT_EQ(found, 1);
  EXPECT_FALSE(trace::IsOn());
}

TEST_F(DiagnosticsTest, ATraceBelongsToItsOwner) {
  EXPECT_THAT(StopTrace("me").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no trace was started")));
  TANDEM_ASSERT_OK(StartTrace("me"));
  EXPECT_THAT(StartTrace("you"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("traced already")));
  EXPECT_THAT(StopTrace("you").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another trace")));
  EXPECT_TRUE(trace::IsOn());
  TANDEM_ASSERT_OK_AND_ASSIGN(const ProcessTrace dropped, StopTrace("me", 0));
  EXPECT_TRUE(dropped.threads.empty());
  EXPECT_THAT(StartTrace(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(StartTrace("me", absl::Hours(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("an hour")));
}

TEST_F(DiagnosticsTest, ATraceThatNobodyEndsEndsByItself) {
  TANDEM_ASSERT_OK(StartTrace("me", absl::Milliseconds(20)));
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (trace::IsOn() && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_FALSE(trace::IsOn());
  EXPECT_THAT(StopTrace("me").status(), StatusIs(absl::StatusCode::kFailedPrecondition));
  TANDEM_ASSERT_OK(StartTrace("me"));
  server_ = nullptr;  // a trace also ends when its process shuts down
  EXPECT_FALSE(trace::IsOn());
}

TEST_F(DiagnosticsTest, TheClockIsTheSteadyOneAndItsSkewIsSeenInTracesToo) {
  constexpr int64_t kSkew = 5'000'000'000'000;
  Serve({.skew_ns = kSkew});
  const int64_t before = SteadyNanoseconds();
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto clock,
                              Call<v1::ReadClockResponse>("ReadClock", v1::ReadClockRequest()));
  EXPECT_LE(before, clock.received_ns() - kSkew);
  EXPECT_LE(clock.received_ns(), clock.answered_ns());
  EXPECT_GE(SteadyNanoseconds(), clock.answered_ns() - kSkew);
  TANDEM_ASSERT_OK(StartTrace("me"));
  { trace::Span span(kWork); }
  TANDEM_ASSERT_OK_AND_ASSIGN(const ProcessTrace recorded, StopTrace("me"));
  EXPECT_GE(recorded.from_ns, before + kSkew);
  for (const auto& thread : recorded.threads) {
    for (const auto& event : thread.events) EXPECT_GE(event.begin_ns, before + kSkew);
  }
}

}  // namespace
}  // namespace tandem::rpc
