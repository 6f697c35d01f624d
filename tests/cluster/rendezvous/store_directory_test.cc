// SPDX-License-Identifier: Apache-2.0
#include "cluster/rendezvous/store_directory.h"

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/store/forwarding_store.h"
#include "cluster/store/memory_store.h"
#include "rpc/remote/rpc_agent.h"
#include "tests/rpc/remote/await_members.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using rpc::remote::Function;
using rpc::remote::Functions;
using rpc::remote::Member;
using rpc::remote::RpcAgent;
using rpc::remote::testing::AwaitMembers;
using tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kTestTimeout = absl::Seconds(30);
constexpr absl::Duration kDirectoryLease = absl::Seconds(2);

class StoreDirectoryTest : public ::testing::Test {
 protected:
  std::unique_ptr<StoreDirectory> Open() {
    auto directory = StoreDirectory::Open(&store, {.lease = kDirectoryLease});
    TANDEM_CHECK_MSG(directory.ok(), directory.status().ToString());
    return *std::move(directory);
  }
  static bool AwaitSize(StoreDirectory& directory, size_t size) {
    return AwaitMembers(directory, [size](const auto& members) { return members.size() == size; });
  }
  static Member Worker(int index, uint64_t incarnation) {
    return {absl::StrCat("worker/", index), absl::StrCat("127.0.0.1:", 4000 + index), incarnation};
  }

  MemoryStore store;
};

TEST_F(StoreDirectoryTest, JoinersAndLeaversAreSeenByAll) {
  auto a = Open(), b = Open();
  TANDEM_ASSERT_OK(a->Register(Worker(0, 11)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Member seen, b->Lookup("worker/0", kTestTimeout));
  EXPECT_EQ(seen, Worker(0, 11));
  TANDEM_ASSERT_OK(b->Register(Worker(1, 12)));
  EXPECT_TRUE(AwaitSize(*a, 2));
  TANDEM_ASSERT_OK(a->Unregister(Worker(0, 11)));
  EXPECT_TRUE(AwaitMembers(*b, [](const auto& members) { return members.count("worker/0") == 0; }));
  EXPECT_THAT(b->Lookup("worker/0", absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("there: worker/1")));
}

// A store that refuses to count changes while told to.
class MuteStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override {
    if (mute && delta > 0) return absl::UnavailableError("no answer");
    return ForwardingStore::Add(key, delta);
  }
  std::atomic<bool> mute{false};
};

TEST_F(StoreDirectoryTest, AMemberWhoseRegistrationFailedIsNotKeptAlive) {
  MuteStore mute(&store);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto a, StoreDirectory::Open(&mute, {.lease = kDirectoryLease}));
  mute.mute = true;
  EXPECT_THAT(a->Register(Worker(0, 11)), StatusIs(absl::StatusCode::kUnavailable));
  mute.mute = false;
  // Nobody holds the name.
  auto b = Open();
  TANDEM_ASSERT_OK(b->Register(Worker(0, 12)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Member seen, a->Lookup("worker/0", kTestTimeout));
  EXPECT_EQ(seen.incarnation, 12u);
}

TEST_F(StoreDirectoryTest, MembersStayWhileTheyLiveAndGoWithTheirLease) {
  auto a = Open(), b = Open();
  TANDEM_ASSERT_OK(a->Register(Worker(0, 11)));
  ASSERT_TRUE(AwaitSize(*b, 1));
  EXPECT_FALSE(AwaitMembers(
      *b, [](const auto& members) { return members.size() != 1; }, 1.5 * kDirectoryLease));
  a.reset();  // as if its process had died
  EXPECT_TRUE(AwaitSize(*b, 0));
  EXPECT_TRUE(Open()->List().empty()) << "for newcomers too";
}

TEST_F(StoreDirectoryTest, ANameIsTakenWhileItsOwnerLives) {
  auto a = Open(), b = Open();
  TANDEM_ASSERT_OK(a->Register(Worker(0, 11)));
  EXPECT_THAT(b->Register(Worker(0, 22)),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("a living worker/0 at 127.0.0.1:4000")));
  a.reset();
  TANDEM_ASSERT_OK(b->Register(Worker(0, 22)));
  EXPECT_TRUE(AwaitMembers(*b, [](const auto& members) {
    return members.size() == 1 && members.begin()->second.incarnation == 22;
  }));
}

TEST_F(StoreDirectoryTest, WhoWasTakenForDeadRegistersAgain) {
  auto a = Open(), b = Open();
  TANDEM_ASSERT_OK(a->Register(Worker(0, 11)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const int64_t changes, store.Add("rpc/changes", 0));
  TANDEM_ASSERT_OK(store.Set("rpc/member/worker/0", ""));
  TANDEM_ASSERT_OK(store.Get(absl::StrCat("rpc/change/", changes + 1), kTestTimeout))
      << "that it is there again";
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string record, store.Get("rpc/member/worker/0", kTestTimeout));
  EXPECT_NE(record, "");
  EXPECT_TRUE(AwaitSize(*b, 1));
}

TEST_F(StoreDirectoryTest, AgentsFindEachOtherThroughAStore) {
  constexpr Function<int64_t(int64_t)> kDouble{"double"};
  auto a = Open(), b = Open();
  Functions functions;
  functions.Add(kDouble, [](int64_t value) { return 2 * value; });
  TANDEM_ASSERT_OK_AND_ASSIGN(auto caller, RpcAgent::Start({.name = "actor/0"}, a.get(), Functions()));
  auto early = caller->RpcAsync("learner/0", kDouble, 21);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto callee,
                              RpcAgent::Start({.name = "learner/0"}, b.get(), std::move(functions)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const int64_t doubled, early.Wait(kTestTimeout));
  EXPECT_EQ(doubled, 42);
}

}  // namespace
}  // namespace tandem::cluster
