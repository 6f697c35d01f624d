// SPDX-License-Identifier: Apache-2.0
// What each credential may do at each kind of listener: the table of docs/security.md, and what servers do.

#include <sys/socket.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/connect.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/security/transport_security.h"
#include "rpc/server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::rpc {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);
const Right kRights[] = {Right::kObserve, Right::kRead,    Right::kTrain, Right::kAct,
                         Right::kMember,  Right::kReplica, Right::kAdmin};

std::string MethodOf(Right right) { return absl::StrCat("NeedsRight", static_cast<int>(right)); }

Credential Of(const JobKey& key) { return {.key = std::make_shared<const JobKey>(key), .grant = nullptr}; }
Credential Of(const JobKey& key, GrantClaims claims) {
  if (claims.expires == absl::Time()) claims.expires = absl::Now() + absl::Hours(1);
  return {.key = nullptr, .grant = std::make_shared<const Grant>(*Grant::Make(key, std::move(claims)))};
}

// A server at each kind of listener with one method for each right, all of the table "user" and any other.
class CredentialsTest : public ::testing::Test {
 protected:
  CredentialsTest() {
    Service service{.name = "test.Rights", .methods = {}};
    for (const Right right : kRights) {
      service.methods.emplace_back(
          MethodOf(right), right,
          [](const std::shared_ptr<ServerCall>& call) { call->Finish(Bytes("served")); },
          Reach::kNamedTables);
    }
    service.methods.emplace_back("AnyTable", Right::kRead, [](const std::shared_ptr<ServerCall>& call) {
      call->Finish(Bytes("served"));
    });
    const std::string socket = absl::StrCat("unix:", dir_.File("socket"));
    for (const auto& [listener, address] : std::vector<std::pair<std::string, std::string>>{
             {"TCP", "127.0.0.1:0"}, {"a unix socket", socket}}) {
      servers_[listener] =
          Server::Start({.listen = address, .gate = gate_, .key = std::make_shared<const JobKey>(key_)},
                        {service})
              .value();
      targets_[listener] =
          listener == "TCP" ? absl::StrCat("127.0.0.1:", servers_[listener]->port()) : address;
    }
    targets_["shared memory"] = targets_["TCP"];
  }
  ~CredentialsTest() override { SetProcessCredential({}); }

  // Returns what becomes of a call of `method` with `credential`: "served", "refused", or "no connection".
  std::string Try(const Credential& credential, const std::string& listener, const std::string& method) {
    SetProcessCredential(credential);
    auto channel = Connect(targets_.at(listener), {.transport = listener == "shared memory" ? "shm" : "grpc",
                                                   .offer_timeout = kTimeout});
    if (!channel.ok()) return "no connection";
    const auto answer =
        (*channel)->Call(absl::StrCat("/test.Rights/", method), Bytes(), {.timeout = kTimeout});
    if (answer.ok()) return "served";
    last_error_ = std::string(answer.status().message());
    if (absl::StrContains(last_error_, "handshake") || absl::StrContains(last_error_, "failed to connect")) {
      return absl::IsPermissionDenied(answer.status()) ? "no connection"
                                                       : "? without the reason: " + last_error_;
    }
    return absl::IsPermissionDenied(answer.status()) ? "refused"
                                                     : absl::StrCat("? ", answer.status().ToString());
  }

  const tandem::testing::TempDir dir_;
  const JobKey key_ = JobKey::Make();
  const std::shared_ptr<EpochGate> gate_ = std::make_shared<EpochGate>(key_, Caller{.member = "server/0"});
  std::map<std::string, std::unique_ptr<Server>> servers_;
  std::map<std::string, std::string> targets_;
  std::string last_error_;
};

TEST_F(CredentialsTest, TheTableOfTheDocumentsIsWhatServersDo) {
  const Credential revoked = Of(key_, {.role = "operator"});
  gate_->grants().SetFetch(
      [&](const auto& done) { done(std::vector<std::string>{revoked.grant->claims().id}); });
  const std::vector<std::pair<std::string, Credential>> credentials = {
      {"another job's key", Of(JobKey::Make())},
      {"another job's grant", Of(JobKey::Make(), {.role = "operator"})},
      {"an expired grant", Of(key_, {.role = "operator", .expires = absl::Now() - absl::Hours(1)})},
      {"a revoked grant", revoked},
      {"a reader of some tables", Of(key_, {.role = "reader", .tables = {"user*"}})},
      {"a reader", Of(key_, {.role = "reader"})},
      {"a trainer", Of(key_, {.role = "trainer"})},
      {"an actor", Of(key_, {.role = "actor"})},
      {"a learner", Of(key_, {.role = "learner"})},
      {"an operator", Of(key_, {.role = "operator"})},
      {"the job's key", Of(key_)},
  };
  std::string table = "| credential | TCP | a unix socket | shared memory |\n|---|---|---|---|\n";
  for (const auto& [name, credential] : credentials) {
    absl::StrAppend(&table, "| ", name, " |");
    for (const std::string listener : {"TCP", "a unix socket", "shared memory"}) {
      std::string may;
      size_t rights = 0;
      bool connects = true;
      for (const Right right : kRights) {
        const std::string what = Try(credential, listener, MethodOf(right));
        connects = connects && what != "no connection";
        if (what == "served") {
          ++rights;
          absl::StrAppend(&may, may.empty() ? "" : ", ", RightName(right));
        } else if (what != "no connection") {
          EXPECT_EQ(what, "refused") << name << ", " << listener;
        }
      }
      if (rights == std::size(kRights)) may = "everything";
      absl::StrAppend(&table, " ", !connects ? "no connection" : may.empty() ? "refused" : may, " |");
    }
    absl::StrAppend(&table, "\n");
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string page, ReadFile(TANDEM_SECURITY_PAGE));
  EXPECT_THAT(page, HasSubstr(table)) << "docs/security.md needs this table:\n" << table;
}

TEST_F(CredentialsTest, AGrantOfSomeTablesMayNotCallWhatConcernsAny) {
  EXPECT_EQ(Try(Of(key_, {.role = "reader", .tables = {"user*"}}), "TCP", "AnyTable"), "refused");
  EXPECT_THAT(last_error_, HasSubstr("reader of user*, covers only some"));
  EXPECT_EQ(Try(Of(key_, {.role = "reader"}), "TCP", "AnyTable"), "served");
}

TEST_F(CredentialsTest, AProcessWithAGrantIsNoServer) {
  SetProcessCredential(Of(key_, {.role = "operator"}));
  EXPECT_THAT(Server::Start({.listen = "127.0.0.1:0"}, {}),
              tandem::testing::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("operator")));
  EXPECT_THAT(DerivedSecurity(nullptr), tandem::testing::StatusIs(absl::StatusCode::kFailedPrecondition));
}

// It could otherwise answer in place of a member.
TEST_F(CredentialsTest, MembersDoNotTakeTheCertificateOfAGrantForAServers) {
  const Grant grant = *Grant::Make(key_, {.role = "operator", .expires = absl::Now() + absl::Hours(1)});
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto own, SecurityOf(Of(key_)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto granted, crypto::TlsContext::Make(grant.certificates()));
  for (const bool grant_accepts : {true, false}) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    using Side = crypto::TlsSocket::Side;
    crypto::TlsSocket member(own->context, fds[0], grant_accepts ? Side::kConnects : Side::kAccepts);
    crypto::TlsSocket holder(granted, fds[1], grant_accepts ? Side::kAccepts : Side::kConnects);
    absl::Status refused;
    for (int i = 0; i < 20 && refused.ok(); ++i) {
      (void)holder.Continue();
      refused = member.Continue().status();
    }
    EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
    ::close(fds[0]);
    ::close(fds[1]);
  }
}

}  // namespace
}  // namespace tandem::rpc
