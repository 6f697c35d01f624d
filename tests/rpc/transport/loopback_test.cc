// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/loopback.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rpc/earlier_attempts.h"
#include "tests/rpc/echo_service.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using testing::DeferredCalls;
using testing::DeferringService;
using testing::EchoService;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kEcho;
using testing::kTestTimeout;

std::shared_ptr<const std::vector<Service>> Serve(Service service) {
  return std::make_shared<const std::vector<Service>>(std::vector<Service>{std::move(service)});
}

// Counts its requests and responds with the count.
Service CountingService(std::atomic<int>* count) {
  return EchoService(
      [count](std::shared_ptr<ServerCall> call) { call->Finish(Bytes(absl::StrCat("answer ", ++*count))); });
}

// Injects `faults[i]` into attempt i, and none after the last.
FaultInjector Script(std::vector<Fault::Kind> faults) {
  return [faults](absl::string_view, int64_t index) {
    return Fault{.kind = index < faults.size() ? faults[index] : Fault::Kind::kNone};
  };
}

TEST(LoopbackTest, ACallThatFailsBeforeNeverReachesItsHandler) {
  std::atomic<int> count{0};
  auto channel = ConnectLoopback(Serve(CountingService(&count)), Script({Fault::Kind::kFailBefore}));
  EXPECT_THAT(
      channel->Call(kEcho, Bytes(), {}),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/tandem.v1.Echo/Echo at loopback: injected")));
  EXPECT_EQ(count, 0);
  EXPECT_THAT(channel->Call(kEcho, Bytes(), {}), ::tandem::testing::IsOk());
}

TEST(LoopbackTest, ARefusalTellsWhetherAnEarlierAttemptMayHaveBeenExecuted) {
  std::atomic<int> count{0};
  const FaultInjector injector = [](absl::string_view, int64_t index) {
    if (index == 0) return Fault{.kind = Fault::Kind::kFailAfter};
    return Fault{.kind = Fault::Kind::kFailBefore, .status = absl::FailedPreconditionError("refused")};
  };
  auto channel =
      ConnectLoopback(Serve(CountingService(&count)), injector, {.initial = absl::Milliseconds(1)});
  const absl::Status repeated = channel->Call(kEcho, Bytes(), {.idempotent = true}).status();
  EXPECT_THAT(repeated, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(HadEarlierAttempts(repeated));
  EXPECT_EQ(count, 1);
  const absl::Status refused = channel->Call(kEcho, Bytes(), {.idempotent = true}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_FALSE(HadEarlierAttempts(refused));
}

TEST(LoopbackTest, ACallThatFailsAfterLosesOnlyItsAnswer) {
  std::atomic<int> count{0};
  auto channel = ConnectLoopback(Serve(CountingService(&count)), Script({Fault::Kind::kFailAfter}));
  EXPECT_THAT(channel->Call(kEcho, Bytes(), {}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(count, 1);
}

TEST(LoopbackTest, AnIdempotentCallIsRetriedUntilItIsAnswered) {
  std::atomic<int> count{0};
  using enum Fault::Kind;
  auto channel =
      ConnectLoopback(Serve(CountingService(&count)), Script({kFailBefore, kFailAfter, kFailAfter}));
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes response, channel->Call(kEcho, Bytes(), {.idempotent = true}));
  EXPECT_EQ(response.Flatten(), "answer 3");
  EXPECT_EQ(count, 3);
}

TEST(LoopbackTest, RetriesEndWithTheTimeoutAndSayWhatFailedLast) {
  std::atomic<int> attempts{0};
  std::atomic<int> count{0};
  auto channel = ConnectLoopback(Serve(CountingService(&count)), [&attempts](absl::string_view, int64_t) {
    ++attempts;
    return Fault{.kind = Fault::Kind::kFailBefore};
  });
  const absl::Time start = absl::Now();
  EXPECT_THAT(channel->Call(kEcho, Bytes(), {.timeout = absl::Seconds(1), .idempotent = true}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("failed with: injected fault")));
  EXPECT_LT(absl::Now() - start, kTestTimeout);
  EXPECT_GT(attempts, 1);
}

TEST(LoopbackTest, ALastAttemptThatHangsDoesNotHideWhatFailedBefore) {
  std::atomic<int> count{0};
  using enum Fault::Kind;
  auto channel = ConnectLoopback(Serve(CountingService(&count)), Script({kFailBefore, kNeverRespond}));
  EXPECT_THAT(channel->Call(kEcho, Bytes(), {.timeout = absl::Seconds(1), .idempotent = true}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("failed with: injected fault")));
}

TEST(LoopbackTest, OnlyUnavailableIsRetried) {
  std::atomic<int> attempts{0};
  std::atomic<int> count{0};
  auto channel = ConnectLoopback(Serve(CountingService(&count)), [&attempts](absl::string_view, int64_t) {
    ++attempts;
    return Fault{.kind = Fault::Kind::kFailBefore, .status = absl::DataLossError("gone")};
  });
  EXPECT_THAT(channel->Call(kEcho, Bytes(), {.idempotent = true}), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(attempts, 1);
}

TEST(LoopbackTest, ACallThatIsNeverAnsweredMeetsItsDeadline) {
  std::atomic<int> count{0};
  auto channel = ConnectLoopback(Serve(CountingService(&count)), Script({Fault::Kind::kNeverRespond}));
  EXPECT_THAT(channel->Call(kEcho, Bytes(), {.timeout = absl::Milliseconds(100)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(count, 1);
}

TEST(LoopbackTest, ADuplicateRunsTheHandlerTwiceAndDeliversOneAnswer) {
  std::atomic<int> count{0};
  auto channel = ConnectLoopback(Serve(CountingService(&count)), Script({Fault::Kind::kDuplicate}));
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes response, channel->Call(kEcho, Bytes(), {}));
  EXPECT_EQ(response.Flatten(), "answer 1");
  TANDEM_ASSERT_OK_AND_ASSIGN(response, channel->Call(kEcho, Bytes(), {}));
  EXPECT_EQ(response.Flatten(), "answer 3");  // calls run one after the other, so the duplicate was number 2
}

TEST(LoopbackTest, TheInjectorSeesMethodsAndAttemptsInOrder) {
  std::atomic<int> count{0};
  std::vector<std::string> seen;
  auto channel =
      ConnectLoopback(Serve(CountingService(&count)), [&seen](absl::string_view method, int64_t index) {
        seen.push_back(absl::StrCat(method, " ", index));
        return Fault{.kind = index == 0 ? Fault::Kind::kFailBefore : Fault::Kind::kNone};
      });
  TANDEM_ASSERT_OK(channel->Call(kEcho, Bytes(), {.idempotent = true}));
  TANDEM_ASSERT_OK(channel->Call(kEcho, Bytes(), {}));
  EXPECT_THAT(seen,
              ElementsAre(absl::StrCat(kEcho, " 0"), absl::StrCat(kEcho, " 1"), absl::StrCat(kEcho, " 2")));
}

TEST(LoopbackTest, DestroyingTheChannelEndsACallThatWaitsForItsRetry) {
  std::atomic<int> count{0};
  absl::Status status;
  absl::Mutex mutex;
  {
    auto channel = ConnectLoopback(Serve(CountingService(&count)), [](absl::string_view, int64_t) {
      return Fault{.kind = Fault::Kind::kFailBefore};
    });
    channel->CallAsync(kEcho, Bytes(), {.timeout = absl::Hours(1), .idempotent = true},
                       [&](absl::StatusOr<Bytes> response) {
                         absl::MutexLock lock(&mutex);
                         status = response.status();
                       });
  }
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled));
}

TEST(LoopbackTest, AParkedCallMayBeFinishedAfterTheChannelIsGone) {
  DeferredCalls deferred_calls;
  auto channel = ConnectLoopback(Serve(DeferringService(&deferred_calls)));
  absl::StatusCode code = absl::StatusCode::kOk;
  absl::Mutex mutex;
  channel->CallAsync(kEcho, Bytes(std::string("request")), {}, [&](absl::StatusOr<Bytes> response) {
    absl::MutexLock lock(&mutex);
    code = response.status().code();
  });
  auto parked = deferred_calls.Take();
  ASSERT_NE(parked, nullptr);
  EXPECT_FALSE(parked->IsCancelled());
  channel.reset();
  EXPECT_TRUE(parked->IsCancelled());
  EXPECT_EQ(parked->request().Flatten(), "request");
  parked->Finish(Bytes());
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(code, absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tandem::rpc
