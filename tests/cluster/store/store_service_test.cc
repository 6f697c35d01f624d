// SPDX-License-Identifier: Apache-2.0
// The store over a network that loses responses, and a server that stops.

#include "cluster/store/store_service.h"
#include "cluster/join.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_server.h"
#include "rpc/transport/loopback.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LossyStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<RemoteStore> Connect(rpc::FaultInjector injector,
                                       absl::Duration call_timeout = absl::Seconds(30)) {
    auto services = std::make_shared<std::vector<rpc::Service>>();
    services->push_back(service_.MakeService());
    return std::make_unique<RemoteStore>(rpc::ConnectLoopback(services, std::move(injector)), call_timeout);
  }

  MemoryStore memory_;
  LocalMembership membership_{Clock::Real()};
  StoreService service_{&memory_, &membership_};
};

// Loses the response of the first of every two attempts; the call itself is processed.
rpc::Fault LoseEveryOtherResponse(absl::string_view, int64_t call_index) {
  rpc::Fault fault;
  if (call_index % 2 == 0) fault.kind = rpc::Fault::Kind::kFailAfter;
  return fault;
}

TEST_F(LossyStoreTest, AnAddWithALostResponseIsNotAppliedTwice) {
  auto store = Connect(LoseEveryOtherResponse);
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(store->Add("n", 1).value(), i);
  EXPECT_EQ(memory_.TryGet("n"), "5");
}

TEST_F(LossyStoreTest, ACompareSetWithALostResponseStillKnowsThatItWon) {
  auto store = Connect(LoseEveryOtherResponse);
  EXPECT_EQ(store->CompareSet("k", "", "a").value(), "a");
  EXPECT_EQ(store->CompareSet("k", "a", "b").value(), "b");
}

TEST_F(LossyStoreTest, ADeleteWithALostResponseStillKnowsThatTheKeyWasThere) {
  auto store = Connect(LoseEveryOtherResponse);
  TANDEM_ASSERT_OK(memory_.Set("k", "v"));
  EXPECT_TRUE(store->Delete("k").value());
}

TEST_F(LossyStoreTest, ADuplicatedCallIsAppliedOnce) {
  auto store = Connect([](absl::string_view, int64_t) {
    rpc::Fault fault;
    fault.kind = rpc::Fault::Kind::kDuplicate;
    return fault;
  });
  EXPECT_EQ(store->Add("n", 7).value(), 7);
  EXPECT_EQ(memory_.TryGet("n"), "7");
}

TEST_F(LossyStoreTest, NoChangeWithALostResponseIsMadeTwice) {
  auto store = Connect(LoseEveryOtherResponse);
  EXPECT_EQ(store->Append("a", "xy").value(), 2);
  EXPECT_EQ(memory_.TryGet("a"), "xy");
  TANDEM_ASSERT_OK(store->Push("q", "1"));
  TANDEM_ASSERT_OK(store->Push("q", "2"));
  EXPECT_EQ(memory_.Length("q").value(), 2);
}

TEST_F(LossyStoreTest, APopWithALostResponseGetsTheSameItemAgain) {
  auto store = Connect(LoseEveryOtherResponse);
  for (const char* item : {"1", "2", "3"}) TANDEM_ASSERT_OK(memory_.Push("q", item));
  for (const char* item : {"1", "2", "3"}) EXPECT_EQ(store->Pop("q", absl::Seconds(30)).value(), item);
}

TEST_F(LossyStoreTest, APopThatIsRepeatedWhileItWaitsTakesOneItem) {
  absl::Notification parked;
  auto store = Connect([&](absl::string_view, int64_t) {
    rpc::Fault fault;
    fault.kind = rpc::Fault::Kind::kDuplicate;
    parked.Notify();
    return fault;
  });
  std::thread popper([&] { EXPECT_EQ(store->Pop("q", absl::Seconds(30)).value(), "1"); });
  parked.WaitForNotification();
  TANDEM_EXPECT_OK(memory_.Push("q", "1"));
  popper.join();
  TANDEM_EXPECT_OK(memory_.Push("q", "2"));
  EXPECT_EQ(memory_.Length("q").value(), 1);
}

TEST_F(LossyStoreTest, TwoClientsRequestsAreNotMistakenForRepeats) {
  auto first = Connect(nullptr), second = Connect(nullptr);
  EXPECT_EQ(first->Add("n", 1).value(), 1);
  EXPECT_EQ(second->Add("n", 1).value(), 2);
}

TEST_F(LossyStoreTest, AStoreThatNeverRespondsIsUnavailableNotMissingAKey) {
  auto store = Connect(
      [](absl::string_view, int64_t) {
        rpc::Fault fault;
        fault.kind = rpc::Fault::Kind::kNeverRespond;
        return fault;
      },
      absl::Milliseconds(50));
  TANDEM_ASSERT_OK(memory_.Set("k", "v"));
  EXPECT_THAT(store->Get("k", absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("loopback"), HasSubstr("Get"))));
  EXPECT_THAT(store->Set("k", "w"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("Set")));
  EXPECT_THAT(store->Pop("q", absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("loopback"), HasSubstr("Pop"))));
}

TEST_F(LossyStoreTest, AStoppedServiceEndsItsWaitsAtOnce) {
  absl::Notification parked;
  auto store = Connect([&](absl::string_view method, int64_t index) {
    if (absl::StrContains(method, "Get") && index == 0) parked.Notify();
    return rpc::Fault{};
  });
  const absl::Time start = absl::Now();
  std::thread stopper([&] {
    parked.WaitForNotification();
    service_.StopWaits();
  });
  EXPECT_THAT(store->Get("never", absl::Minutes(2)),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("shutting down")));
  stopper.join();
  EXPECT_THAT(store->Pop("q", absl::Minutes(2)),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("shutting down")));
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

// A store with small limits, and a client that exceeds them.
class LimitedStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<RemoteStore> Connect() {
    auto services = std::make_shared<std::vector<rpc::Service>>();
    services->push_back(service_.MakeService());
    return std::make_unique<RemoteStore>(rpc::ConnectLoopback(services), absl::Seconds(30));
  }
  static auto Refused(const std::string& what) {
    return StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(what));
  }

  MemoryStore memory_{{.keys = 3, .bytes = 100, .waits = 2, .wait_bytes = 50}};
  LocalMembership membership_{Clock::Real()};
  StoreService service_{&memory_, &membership_};
  const std::unique_ptr<RemoteStore> store_ = Connect();
};

TEST_F(LimitedStoreTest, RefusesAKeyBeyondTheNumberOfKeysWhateverCallMakesIt) {
  for (const char* key : {"a", "b", "c"}) TANDEM_ASSERT_OK(store_->Set(key, "1"));
  EXPECT_THAT(store_->Set("d", ""), Refused("--max-keys"));
  EXPECT_THAT(store_->Add("d", 1), Refused("'d': the store may hold 3 keys"));
  EXPECT_THAT(store_->Append("d", "x"), Refused("--max-keys"));
  EXPECT_THAT(store_->CompareSet("d", "", "x"), Refused("--max-keys"));
  EXPECT_THAT(store_->MultiSet({"a", "d"}, {"2", "2"}), Refused("--max-keys"));
  EXPECT_THAT(store_->Push("queue", "x"), Refused("--max-keys"));
  EXPECT_EQ(memory_.TryGet("a"), "1") << "a refused call changes nothing";
  TANDEM_EXPECT_OK(store_->MultiSet({"a", "a"}, {"2", "3"}));
  EXPECT_TRUE(store_->Delete("c").value());
  TANDEM_EXPECT_OK(store_->Push("queue", "x"));
}

TEST_F(LimitedStoreTest, RefusesBytesBeyondItsMemoryUntilSomeAreDeleted) {
  TANDEM_ASSERT_OK(store_->Set("a", std::string(60, 'x')));
  EXPECT_THAT(store_->Set("b", std::string(39, 'x')), Refused("would hold 101 bytes and may hold 100"));
  EXPECT_THAT(store_->Append("a", std::string(40, 'x')), Refused("--max-bytes"));
  EXPECT_THAT(store_->Push("q", std::string(39, 'x')), Refused("--max-bytes"));
  EXPECT_THAT(store_->MultiSet({"b", "c"}, {std::string(20, 'x'), std::string(20, 'x')}),
              Refused("--max-bytes"));
  TANDEM_EXPECT_OK(store_->Set("a", std::string(99, 'x')));
  TANDEM_EXPECT_OK(store_->Set("a", ""));
  // The memory of items is given back, too.
  for (int i = 0; i < 5; ++i) {
    TANDEM_EXPECT_OK(store_->Push("q", std::string(98, 'x')));
    EXPECT_EQ(store_->Pop("q", absl::ZeroDuration()).value().size(), 98u);
  }
  memory_.Clear();
  TANDEM_EXPECT_OK(store_->Set("a", std::string(99, 'x')));
}

TEST_F(LimitedStoreTest, RefusesWaitsBeyondItsNumberAndServesCallsThatNeedNotWait) {
  std::vector<std::thread> waiting;
  // A call that finds the calls below at the limit asks again.
  const auto insist = [](auto call) {
    absl::StatusOr<std::string> result;
    do {
      result = call();
    } while (absl::IsResourceExhausted(result.status()));
    EXPECT_EQ(result.value(), "v");
  };
  waiting.emplace_back([&] { insist([&] { return Connect()->Get("late", absl::Seconds(30)); }); });
  waiting.emplace_back([&] { insist([&] { return Connect()->Pop("empty", absl::Seconds(30)); }); });
  // Until both of them wait, the third one does not exceed the limit and returns after its own time.
  absl::Status third;
  do {
    third = store_->Wait({"never"}, absl::Milliseconds(1));
  } while (absl::IsDeadlineExceeded(third));
  EXPECT_THAT(third, Refused("2 calls wait in the store already"));
  EXPECT_THAT(store_->Pop("nothing", absl::Milliseconds(1)), Refused("--max-waits"));
  TANDEM_ASSERT_OK(store_->Set("a", "1"));
  TANDEM_ASSERT_OK(store_->Push("q", "2"));
  EXPECT_EQ(store_->Get("a", absl::Milliseconds(1)).value(), "1");
  EXPECT_EQ(store_->Pop("q", absl::Milliseconds(1)).value(), "2");
  TANDEM_EXPECT_OK(store_->Set("late", "v"));
  TANDEM_EXPECT_OK(store_->Push("empty", "v"));
  for (std::thread& one : waiting) one.join();
  EXPECT_THAT(store_->Wait({"never"}, absl::Milliseconds(1)), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(LimitedStoreTest, RefusesAWaitWhoseKeysAreTooLong) {
  EXPECT_THAT(store_->Wait({std::string(30, 'a'), std::string(30, 'b')}, absl::Milliseconds(1)),
              Refused("would have 60 bytes; the limit is 50"));
  for (int i = 0; i < 5; ++i) {  // the bytes of a wait that is over are given back
    EXPECT_THAT(store_->Wait({std::string(30, 'a')}, absl::Milliseconds(1)),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
}

TEST(StoreServerTest, ServesItsOwnDataOverTheNetwork) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto server, StoreServer::Start("127.0.0.1:0"));
  ASSERT_GT(server->port(), 0);
  TANDEM_ASSERT_OK(server->store()->Set("k", "from inside"));
  const std::string target = absl::StrCat("127.0.0.1:", server->port());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, ConnectStore(target));
  RemoteStore remote(std::move(channel), absl::Seconds(30));
  EXPECT_EQ(remote.Get("k", absl::Seconds(30)).value(), "from inside");
  EXPECT_EQ(remote.address(), target);
}

TEST(StoreServerTest, AServerThatIsGoneIsNamed) {
  std::string target;
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto server, StoreServer::Start("127.0.0.1:0"));
    target = absl::StrCat("127.0.0.1:", server->port());
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, ConnectStore(target));
  RemoteStore remote(std::move(channel), absl::Milliseconds(200));
  EXPECT_THAT(remote.Set("k", "v"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(target)));
  EXPECT_THAT(remote.Get("k", absl::Milliseconds(200)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(target)));
}

TEST(StoreServerTest, APopperWithABrokenConnectionGetsNoItem) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto server, StoreServer::Start("127.0.0.1:0"));
  const std::string target = absl::StrCat("127.0.0.1:", server->port());
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, ConnectStore(target));
    RemoteStore gone(std::move(channel));
    // The call ends shortly after its time-out: the server no longer keeps it deferred.
    EXPECT_THAT(gone.Pop("q", absl::Milliseconds(50)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  TANDEM_ASSERT_OK(server->store()->Push("q", "1"));
  EXPECT_EQ(server->store()->Length("q").value(), 1);
}

TEST(StoreServerTest, ShutdownDoesNotWaitForWaiters) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto server, StoreServer::Start("127.0.0.1:0"));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, ConnectStore(absl::StrCat("127.0.0.1:", server->port())));
  RemoteStore remote(std::move(channel), absl::Seconds(30));
  TANDEM_ASSERT_OK(remote.Set("connected", ""));
  std::thread waiter([&] {
    // Before, during or after the shutdown, as it happens.
    EXPECT_THAT(remote.Get("never", absl::Milliseconds(300)), ::testing::Not(::tandem::testing::IsOk()));
  });
  const absl::Time start = absl::Now();
  server->Shutdown(absl::Seconds(20));
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
  waiter.join();
}

TEST(RemoteStore, TheServerHasTheTimeOutOfTheCallerToSayWhetherAKeyExists) {
  absl::Duration left;
  const auto get = [&left](const std::shared_ptr<rpc::ServerCall>& call, const v1::StoreGetRequest& request,
                           const rpc::Reply<v1::StoreGetResponse>& reply) {
    EXPECT_EQ(request.timeout_ms(), 0u);
    left = call->deadline() - Clock::Real()->Now();
    v1::StoreGetResponse response;
    response.set_missing(true);
    reply(std::move(response));
  };
  rpc::Service service;
  service.name = "tandem.v1.Store";
  service.methods = {
      {"Get", rpc::Right::kRead, rpc::AsyncProtoHandler<v1::StoreGetRequest, v1::StoreGetResponse>(get)}};
  RemoteStore store(
      rpc::ConnectLoopback(std::make_shared<std::vector<rpc::Service>>(std::vector<rpc::Service>{service})),
      absl::Seconds(30));
  EXPECT_EQ(store.GetIfPresent("k", absl::Minutes(10)).value(), "");
  EXPECT_GT(left, absl::Minutes(5));
  EXPECT_LE(left, absl::Minutes(10));
  EXPECT_EQ(store.GetIfPresent("k", absl::Milliseconds(200)).value(), "");
  EXPECT_LE(left, absl::Milliseconds(500));
}

}  // namespace
}  // namespace tandem::cluster
