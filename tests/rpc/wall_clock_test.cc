// SPDX-License-Identifier: Apache-2.0
// Tests that calls and heartbeats survive steps of the wall clock, and that their deadlines do.

#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ticks.h"
#include "base/timed_wait.h"
#include "cluster/membership/job_monitor.h"
#include "cluster/membership/local_membership.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/store_service.h"
#include "gtest/gtest.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "rpc/transport/loopback.h"
#include "tests/rpc/echo_service.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/wall_clock.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::tandem::testing::WallClockStep;
using testing::DeferredCalls;
using testing::DeferringService;
using testing::kEcho;

constexpr absl::Duration kTimeout = absl::Milliseconds(200);
constexpr absl::Duration kFarTooLong = absl::Seconds(60);

// (transport, whether gRPC calls share a stream, the step)
using Case = std::tuple<std::string, bool, absl::Duration>;

class WallClockCallTest : public ::testing::TestWithParam<Case> {};

absl::StatusOr<Bytes> CallEcho(Channel& channel, absl::Duration timeout) {
  return channel.Call(kEcho, Bytes(std::string("?")), {.timeout = timeout});
}

absl::StatusOr<std::unique_ptr<Channel>> ConnectTo(const Server& server, const Case& how) {
  ConnectOptions options;
  options.transport = std::get<0>(how);
  options.channel.stream = std::get<1>(how);
  return Connect(absl::StrCat("127.0.0.1:", server.port()), options);
}

TEST_P(WallClockCallTest, ACallEndsAtItsDeadlineAndOthersAreAnswered) {
  DeferredCalls calls;
  auto server = Server::Start({}, {DeferringService(&calls)});
  ASSERT_THAT(server, IsOk());
  auto channel = ConnectTo(**server, GetParam());
  ASSERT_THAT(channel, IsOk());
  // A call that began before the step is unaffected by it.
  absl::StatusOr<Bytes> early;
  std::thread caller([&] { early = CallEcho(**channel, absl::Seconds(30)); });
  auto first = calls.Take();
  ASSERT_NE(first, nullptr);

  const WallClockStep step(std::get<2>(GetParam()));
  const int64_t begin = SteadyNanoseconds();
  EXPECT_THAT(CallEcho(**channel, kTimeout), StatusIs(absl::StatusCode::kDeadlineExceeded));
  const absl::Duration took = absl::Nanoseconds(SteadyNanoseconds() - begin);
  EXPECT_GE(took, kTimeout);
  EXPECT_LT(took, kFarTooLong);

  EXPECT_FALSE(first->IsCancelled());
  first->Finish(Bytes(std::string("!")));
  caller.join();
  EXPECT_THAT(early, IsOk());
  (*server)->Shutdown(absl::ZeroDuration());
}

TEST_P(WallClockCallTest, AnAnswerArrivesThatTakesAsLongAsItMay) {
  DeferredCalls calls;
  auto server = Server::Start({}, {DeferringService(&calls)});
  ASSERT_THAT(server, IsOk());
  auto channel = ConnectTo(**server, GetParam());
  ASSERT_THAT(channel, IsOk());
  const WallClockStep step(std::get<2>(GetParam()));
  absl::StatusOr<Bytes> answer;
  std::thread caller([&] { answer = CallEcho(**channel, absl::Seconds(30)); });
  auto call = calls.Take();
  ASSERT_NE(call, nullptr);
  EXPECT_FALSE(call->IsCancelled());
  EXPECT_LT(call->deadline(), MonotonicNow() + kFarTooLong);
  EXPECT_GT(call->deadline(), MonotonicNow());
  call->Finish(Bytes(std::string("!")));
  caller.join();
  EXPECT_THAT(answer, IsOk());
  (*server)->Shutdown(absl::ZeroDuration());
}

INSTANTIATE_TEST_SUITE_P(
    Steps, WallClockCallTest,
    ::testing::Values(Case{"grpc", true, absl::Hours(1)}, Case{"grpc", true, absl::Hours(-1)},
                      Case{"grpc", false, absl::Hours(1)}, Case{"grpc", false, absl::Hours(-1)},
                      Case{"shm", true, absl::Hours(1)}, Case{"shm", true, absl::Hours(-1)}),
    [](const auto& info) {
      return absl::StrCat(std::get<0>(info.param), std::get<1>(info.param) ? "" : "Unary",
                          std::get<2>(info.param) > absl::ZeroDuration() ? "Forward" : "Back");
    });

TEST(WallClockTest, AStoreAndItsMemberSurviveStepsThatAreLongerThanTheLease) {
  cluster::MemoryStore store;
  cluster::LocalMembership membership(Clock::Real());
  cluster::StoreService service(&store, &membership);
  auto services = std::make_shared<std::vector<Service>>();
  services->push_back(service.MakeService());
  std::shared_ptr<Channel> channel = ConnectLoopback(services);
  TimedNotification ended;
  auto monitor = cluster::JobMonitor::Start(channel, {.member = "worker/0", .lease = absl::Seconds(5)},
                                            [&](const cluster::JobState&) { ended.Notify(); });
  ASSERT_THAT(monitor, IsOk());
  {
    const WallClockStep forward(absl::Hours(1));
    EXPECT_FALSE(ended.WaitFor(absl::Seconds(1.5)));  // more than one heartbeat
  }
  {
    const WallClockStep back(absl::Hours(-1));
    EXPECT_FALSE(ended.WaitFor(absl::Seconds(1.5)));
  }
  EXPECT_FALSE((*monitor)->state().ended);
  EXPECT_THAT((*monitor)->Leave(), IsOk());
}

}  // namespace
}  // namespace tandem::rpc
