// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/tickets.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::shm {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);
const Caller kWorker = {.run_id = "job", .epoch = 3, .member = "worker/1", .token = "secret", .life = 2};

TEST(TicketsTest, ATicketGivesTheIdentityOfTheCallerThatAskedForItOnce) {
  Tickets tickets;
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string worker, tickets.Issue(kWorker, "ipv4:127.0.0.1:1", kStart));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string nobody, tickets.Issue(Caller(), "ipv4:127.0.0.1:2", kStart));
  EXPECT_EQ(worker.size(), kTicketBytes);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Caller caller, tickets.Redeem(worker, kStart + absl::Seconds(29)));
  EXPECT_EQ(caller.ToBytes(), kWorker.ToBytes());
  TANDEM_ASSERT_OK_AND_ASSIGN(const Caller none, tickets.Redeem(nobody, kStart));
  EXPECT_EQ(none.ToBytes(), "");
  EXPECT_THAT(tickets.Redeem(worker, kStart),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("used before")));
}

TEST(TicketsTest, ATicketExpires) {
  Tickets tickets;
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string ticket, tickets.Issue(kWorker, "ipv4:127.0.0.1:1", kStart));
  EXPECT_THAT(tickets.Redeem(ticket, kStart + Tickets::kLifetime + absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("expired")));
  EXPECT_THAT(tickets.Redeem(std::string(kTicketBytes, '0'), kStart),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("no such ticket")));
}

TEST(TicketsTest, AConnectionAndAServerHaveALimitedNumberOfOpenTickets) {
  Tickets tickets;
  std::set<std::string> issued;
  for (size_t i = 0; i < Tickets::kMostOfPeer; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string ticket, tickets.Issue(kWorker, "ipv4:127.0.0.1:1", kStart));
    EXPECT_TRUE(issued.insert(ticket).second);
  }
  EXPECT_THAT(tickets.Issue(kWorker, "ipv4:127.0.0.1:1", kStart),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the connection has 16")));
  TANDEM_EXPECT_OK(tickets.Redeem(*issued.begin(), kStart));
  TANDEM_EXPECT_OK(tickets.Issue(kWorker, "ipv4:127.0.0.1:1", kStart));  // a used one is not open
  size_t open = 0;
  absl::Status full;
  while (full.ok() && open < 10 * Tickets::kMostOpen) {
    full = tickets.Issue(kWorker, absl::StrCat("ipv4:127.0.0.1:", 2 + open++), kStart).status();
  }
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the server has 1024")));
  // Expired ones make room.
  TANDEM_EXPECT_OK(
      tickets.Issue(kWorker, "ipv4:127.0.0.1:1", kStart + Tickets::kLifetime + absl::Milliseconds(1)));
}

TEST(TicketsTest, ConnectionsOfUnixSocketsShareTheLimitOfTheServer) {
  Tickets tickets;
  for (size_t i = 0; i < Tickets::kMostOpen; ++i) TANDEM_ASSERT_OK(tickets.Issue(kWorker, "unix:", kStart));
  EXPECT_THAT(tickets.Issue(kWorker, "unix:", kStart), StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace tandem::rpc::shm
