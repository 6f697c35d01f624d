// SPDX-License-Identifier: Apache-2.0
// Which callers change which keys of a job's store, and what its server does with the others.

#include "cluster/store/key_owners.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_key.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

rpc::Caller Server(const std::string& member, uint32_t shards = 3) {
  return {.member = member, .life = 1, .shards = shards};
}
rpc::Caller Member(const std::string& member) { return {.member = member, .life = 1}; }

TEST(KeyOwnersTest, ThePlaceOfAShardBelongsToItsServers) {
  for (const std::string key : {"ps/1", "ps/placement/1"}) {
    for (const char* const own : {"ps/1", "ps/4", "ps/7"})
      EXPECT_THAT(CheckKeyOwner(key, Server(own)), IsOk());
    for (const rpc::Caller& other : {Server("ps/0"), Server("ps/2"), Server("ps/3"), Member("worker/1"),
                                     Member("learner/1"), rpc::Caller{}}) {
      EXPECT_THAT(
          CheckKeyOwner(key, other),
          StatusIs(kDenied, AllOf(HasSubstr(key), HasSubstr("of shard '1'"), HasSubstr(other.member))));
    }
  }
  // A server of a job without followers need not say how many there are.
  EXPECT_THAT(CheckKeyOwner("ps/1", Server("ps/1", 0)), IsOk());
  EXPECT_THAT(CheckKeyOwner("ps/1", Server("ps/4", 0)), StatusIs(kDenied));
  for (const char* const malformed : {"ps/", "ps/x", "ps/1/2", "ps/-1", "ps/placement/"}) {
    EXPECT_THAT(CheckKeyOwner(malformed, Server("ps/1")), StatusIs(kDenied)) << malformed;
  }
}

TEST(KeyOwnersTest, TheAddressOfARolesServerIsItsOwnAndTheCountBelongsToTheRole) {
  EXPECT_THAT(CheckKeyOwner("rl/replay/1", Member("replay/1")), IsOk());
  EXPECT_THAT(CheckKeyOwner("rl/replay/count", Member("replay/1")), IsOk());
  EXPECT_THAT(CheckKeyOwner("rl/replay/1", Member("replay/0")),
              StatusIs(kDenied, AllOf(HasSubstr("replay/1"), HasSubstr("replay/0"))));
  EXPECT_THAT(CheckKeyOwner("rl/replay/count", Member("actor/1")), StatusIs(kDenied));
  EXPECT_THAT(CheckKeyOwner("rl/replay/1", rpc::Caller{}), StatusIs(kDenied));
}

TEST(KeyOwnersTest, AMemberSaysOnlyOfItselfThatItUsesTheStoreAndMeetsNoLaunchers) {
  EXPECT_THAT(CheckKeyOwner("job/closed/worker/1", Member("worker/1")), IsOk());
  EXPECT_THAT(CheckKeyOwner("job/closed/worker/1", Member("worker/2")), StatusIs(kDenied));
  EXPECT_THAT(CheckKeyOwner("job/opened/ps/1", Member("worker/1")), StatusIs(kDenied));
  for (const char* const key : {"rdzv/job/state", "launchers/job/gone/a"}) {
    EXPECT_THAT(CheckKeyOwner(key, rpc::Caller{}), IsOk());
    EXPECT_THAT(CheckKeyOwner(key, Member("worker/1")), StatusIs(kDenied, HasSubstr("launchers")));
  }
}

TEST(KeyOwnersTest, OtherKeysBelongToEveryone) {
  for (const char* const key : {"", "psx", "rlx/replay/1", "group/ps/1", "job/epoch", "anything"}) {
    EXPECT_THAT(CheckKeyOwner(key, Member("worker/1")), IsOk());
    EXPECT_THAT(CheckKeyOwner(key, rpc::Caller{}), IsOk());
  }
}

TEST(KeyOwnersTest, AServedStoreRefusesEveryChangeByAnotherThanTheOwnerAndLetsEveryoneRead) {
  const auto server = StoreServer::Start("127.0.0.1:0").value();
  const auto connect = [&](const rpc::Caller& caller) {
    return RemoteStore(rpc::ConnectGrpc(absl::StrCat("127.0.0.1:", server->port()),
                                        {.caller = tandem::testing::WithTestKey(caller)})
                           .value());
  };
  RemoteStore owner = connect(Server("ps/1")), other = connect(Member("worker/0"));
  TANDEM_ASSERT_OK(owner.Set("ps/1", "here"));
  const auto refused = StatusIs(kDenied, AllOf(HasSubstr("ps/1"), HasSubstr("worker/0")));
  EXPECT_THAT(other.Set("ps/1", "elsewhere"), refused);
  EXPECT_THAT(other.Add("ps/1", 1).status(), refused);
  EXPECT_THAT(other.CompareSet("ps/1", "here", "elsewhere").status(), refused);
  EXPECT_THAT(other.Delete("ps/1").status(), refused);
  EXPECT_THAT(other.Append("ps/1", "x").status(), refused);
  EXPECT_THAT(other.MultiSet({"mine", "ps/1"}, {"a", "b"}), refused);
  EXPECT_THAT(other.Push("ps/1", "x"), refused);
  EXPECT_THAT(other.Pop("ps/1", absl::Seconds(60)).status(), refused);
  EXPECT_EQ(other.Get("ps/1", absl::ZeroDuration()).value(), "here");
  EXPECT_EQ(other.NumKeys().value(), 1) << "a refused MultiSet sets none of its keys";
  TANDEM_EXPECT_OK(other.Set("mine", "a"));
}

}  // namespace
}  // namespace tandem::cluster
