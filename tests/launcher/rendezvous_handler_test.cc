// SPDX-License-Identifier: Apache-2.0
#include "launcher/rendezvous_handler.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "launcher/host/port_reservation.h"
#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

using cluster::Node;
using cluster::Round;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

bool Never() { return false; }

TEST(RendezvousHandlerTest, ALauncherAloneNeedsNobody) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto meeting, RendezvousHandler::Open({}));
  EXPECT_TRUE(meeting->alone());
  EXPECT_EQ(meeting->host(), "127.0.0.1");
  TANDEM_ASSERT_OK(meeting->Reach(Never));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round round,
                              meeting->rendezvous()->Join({.id = "me", .host = "127.0.0.1"}));
  EXPECT_EQ(round.epoch, 1);
  EXPECT_EQ(round.nodes.size(), 1u);
}

TEST(RendezvousHandlerTest, WhoCanBindTheEndpointServesAndTheOthersComeToIt) {
  RendezvousHandlerOptions options{.backend = "c10d"};
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto reservation, PortReservation::Keep(0));
    options.endpoint = absl::StrCat("127.0.0.1:", reservation->port());
  }
  options.rendezvous.min_nodes = options.rendezvous.max_nodes = 2;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto one, RendezvousHandler::Open(options));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto other, RendezvousHandler::Open(options));
  Round rounds[2];
  std::thread joining([&] {
    TANDEM_ASSERT_OK(other->Reach(Never));
    TANDEM_ASSERT_OK_AND_ASSIGN(rounds[1],
                                other->rendezvous()->Join({.id = "b", .host = "h", .processes = {{"w", 1}}}));
  });
  TANDEM_ASSERT_OK(one->Reach(Never));
  TANDEM_ASSERT_OK_AND_ASSIGN(rounds[0],
                              one->rendezvous()->Join({.id = "a", .host = "h", .processes = {{"w", 2}}}));
  joining.join();
  EXPECT_EQ(rounds[0].WorldSize("w"), 3);
  EXPECT_NE(rounds[0].group_rank, rounds[1].group_rank);
  // SendShutdownNotice of the launcher that serves the store returns after that of the other.
  // A busy machine may delay one of them, but not each of three; without the other's notice, each would last
  // 5 s.
  absl::Duration shortest = absl::InfiniteDuration();
  for (int i = 0; i < 3 && shortest > absl::Seconds(4); ++i) {
    std::thread shutdown_notice([&] { other->SendShutdownNotice(rounds[1]); });
    const absl::Time began = absl::Now();
    one->SendShutdownNotice(rounds[0]);
    shortest = std::min(shortest, absl::Now() - began);
    shutdown_notice.join();
  }
  EXPECT_LT(shortest, absl::Seconds(4));
}

TEST(RendezvousHandlerTest, AStoreThatNobodyServesIsNamed) {
  RendezvousHandlerOptions options{.backend = "static", .endpoint = "127.0.0.1:1", .node_rank = 1};
  options.rendezvous.min_nodes = options.rendezvous.max_nodes = 2;
  options.rendezvous.lease = absl::Milliseconds(200);
  options.rendezvous.join_timeout = absl::Milliseconds(300);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto meeting, RendezvousHandler::Open(options));
  EXPECT_THAT(meeting->Reach(Never),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("the store of the nodes at 127.0.0.1:1"), HasSubstr("within 300ms"))));
  EXPECT_THAT(meeting->Reach([] { return true; }), StatusIs(absl::StatusCode::kCancelled));
}

TEST(RendezvousHandlerTest, WhatItWaitsForIsSaidAtOnce) {
  RendezvousHandlerOptions options{.backend = "static", .endpoint = "127.0.0.1:1", .node_rank = 1};
  options.rendezvous.min_nodes = options.rendezvous.max_nodes = 2;
  options.rendezvous.lease = absl::Milliseconds(200);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto meeting, RendezvousHandler::Open(options));
  int failures = 0;
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(meeting->Reach([&] { return ++failures == 2; }), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("waiting for the store of the nodes at 127.0.0.1:1, at most 10m (--rdzv-conf "
                        "join_timeout): "));
}

// A store that may hold one key, and has it.
struct FullStore {
  FullStore() {
    TANDEM_EXPECT_OK(server->store()->Set("filler", ""));
    options = {.backend = "static", .endpoint = absl::StrCat("127.0.0.1:", server->port()), .node_rank = 1};
    options.rendezvous.min_nodes = options.rendezvous.max_nodes = 2;
  }
  std::unique_ptr<cluster::StoreServer> server =
      *cluster::StoreServer::Start("127.0.0.1:0", Clock::Real(), nullptr, {.limits = {.keys = 1}});
  RendezvousHandlerOptions options;
};

TEST(RendezvousHandlerTest, AStoreThatTakesNoChangeIsAnErrorSoon) {
  FullStore full;
  full.options.full_timeout = absl::Milliseconds(300);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto meeting, RendezvousHandler::Open(full.options));
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(meeting->Reach(Never),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr(full.options.endpoint), HasSubstr("has taken no change for 300ms"),
                             HasSubstr("the store may hold 1 keys"), HasSubstr("make room on its disk"))));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr(" takes no change; trying again for 300ms: "), HasSubstr("no space for 'launchers'")));
}

TEST(RendezvousHandlerTest, AStoreInWhichRoomIsMadeIsReached) {
  FullStore full;
  full.options.full_timeout = absl::Seconds(60);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto meeting, RendezvousHandler::Open(full.options));
  const auto make_room = [&] {
    TANDEM_EXPECT_OK(full.server->store()->Delete("filler"));
    return false;
  };
  TANDEM_EXPECT_OK(meeting->Reach(make_room));
  EXPECT_TRUE(full.server->store()->Check({"launchers"}).value());
}

TEST(RendezvousHandlerTest, ALongLeaseIsNoReasonToWaitLongForASilentStore) {
  RendezvousHandlerOptions options{.backend = "static", .endpoint = "127.0.0.1:1", .node_rank = 1};
  options.rendezvous.min_nodes = options.rendezvous.max_nodes = 2;
  options.rendezvous.lease = absl::Minutes(10);
  options.rendezvous.close_timeout = absl::Milliseconds(200);
  options.rendezvous.join_timeout = absl::Milliseconds(300);
  const absl::Time began = absl::Now();
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto meeting, RendezvousHandler::Open(options));
  EXPECT_THAT(meeting->Reach(Never), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("within 300ms")));
  meeting->SendShutdownNotice({.nodes = {{.id = "me"}}});
  EXPECT_LT(absl::Now() - began, absl::Seconds(30));
}

TEST(RendezvousHandlerTest, OptionsThatMakeNoSenseAreExplained) {
  const struct {
    RendezvousHandlerOptions options;
    const char* message;
  } kCases[] = {
      {{.backend = "etcd-v2", .endpoint = "h:1"}, "use --rdzv-backend etcd"},
      {{.backend = "c10d"}, "--rdzv-endpoint HOST:PORT is missing"},
      {{.backend = "c10d", .endpoint = "nonsense"}, "--rdzv-endpoint"},
      {{.backend = "c10d", .endpoint = "127.0.0.1:0"}, "tandem store"},
      {{.backend = "zookeeper", .endpoint = "127.0.0.1:1"}, "expected static, c10d or etcd"},
      {{.backend = "c10d", .endpoint = "127.0.0.1:1", .conf = {{"is_host", "maybe"}}}, "is_host='maybe'"},
  };
  for (const auto& one : kCases) {
    EXPECT_THAT(RendezvousHandler::Open(one.options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(one.message)));
  }
}

TEST(RendezvousHandlerTest, APortThatSomethingElseHasIsExplained) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto taken, cluster::StoreServer::Start("127.0.0.1:0"));
  EXPECT_THAT(
      RendezvousHandler::Open(
          {.backend = "static", .endpoint = absl::StrCat("127.0.0.1:", taken->port()), .node_rank = 0}),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("at which the nodes meet"), HasSubstr("in use"))));
}

}  // namespace
}  // namespace tandem::launcher
