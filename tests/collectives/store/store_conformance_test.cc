// What every Store must do, run against each of them.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/store/limits.h"
#include "collectives/store/memory_store.h"
#include "collectives/store/prefix_store.h"
#include "collectives/store/remote_store.h"
#include "collectives/store/store_server.h"
#include "rpc/loopback.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A store and all that it stands on.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual Store* store() = 0;
};

class MemorySubject : public Subject {
 public:
  Store* store() override { return &store_; }

 private:
  MemoryStore store_;
};

class PrefixSubject : public Subject {
 public:
  PrefixSubject() { (void)memory_.Set("other/key", "not mine"); }
  Store* store() override { return &prefix_; }

 private:
  MemoryStore memory_;
  PrefixStore prefix_{&memory_, "mine"};
};

class LoopbackSubject : public Subject {
 public:
  LoopbackSubject() {
    auto services = std::make_shared<std::vector<rpc::Service>>();
    services->push_back(service_.MakeService());
    remote_ = std::make_unique<RemoteStore>(rpc::ConnectLoopback(services));
  }
  Store* store() override { return remote_.get(); }

 private:
  MemoryStore memory_;
  Membership membership_{Clock::Real()};
  StoreService service_{&memory_, &membership_};
  std::unique_ptr<RemoteStore> remote_;
};

class GrpcSubject : public Subject {
 public:
  GrpcSubject() {
    server_ = StoreServer::Start("127.0.0.1:0").value();
    remote_ =
        std::make_unique<RemoteStore>(rpc::ConnectGrpc(absl::StrCat("127.0.0.1:", server_->port())).value());
  }
  Store* store() override { return remote_.get(); }

 private:
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<RemoteStore> remote_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Subject>()> make;
};

template <typename T>
Kind KindOf(const char* name) {
  return {name, [] { return std::make_unique<T>(); }};
}

class StoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  Store& store() { return *subject_->store(); }

 private:
  std::unique_ptr<Subject> subject_ = GetParam().make();
};

constexpr absl::Duration kLong = absl::Seconds(30);
constexpr absl::Duration kShort = absl::Milliseconds(20);

TEST_P(StoreTest, WhatIsSetIsGot) {
  TANDEM_ASSERT_OK(store().Set("a", "1"));
  EXPECT_EQ(store().Get("a", kLong).value(), "1");
  TANDEM_ASSERT_OK(store().Set("a", "2"));
  EXPECT_EQ(store().Get("a", absl::ZeroDuration()).value(), "2");
  TANDEM_ASSERT_OK(store().Set("empty", ""));
  EXPECT_EQ(store().Get("empty", kLong).value(), "");
}

TEST_P(StoreTest, KeysAndValuesMayHoldAnyBytes) {
  const std::string key("\0\xff/\n", 4);
  const std::string value("\xc3\x28\0z", 4);
  TANDEM_ASSERT_OK(store().Set(key, value));
  EXPECT_EQ(store().Get(key, kLong).value(), value);
  EXPECT_THAT(store().List(key.substr(0, 2)).value(), ElementsAre(key));
}

TEST_P(StoreTest, AMissingKeyIsNamedWhenTheTimeIsUp) {
  EXPECT_THAT(store().Get("the key", kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("the key"), HasSubstr("20ms"))));
  TANDEM_ASSERT_OK(store().Set("b", ""));
  EXPECT_THAT(store().Wait({"a", "b", "c"}, kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("a'"), HasSubstr("c'"), Not(HasSubstr("b'")))));
  TANDEM_EXPECT_OK(store().Wait({}, absl::ZeroDuration()));
}

TEST_P(StoreTest, AGetWakesWhenTheKeyIsSet) {
  std::thread getter([&] { EXPECT_EQ(store().Get("later", kLong).value(), "now"); });
  TANDEM_EXPECT_OK(store().Set("later", "now"));
  getter.join();
}

TEST_P(StoreTest, AWaitWakesWhenTheLastOfItsKeysComes) {
  std::atomic<int> keys_set{0};
  std::thread waiter([&] {
    TANDEM_EXPECT_OK(store().Wait({"x", "y", "z"}, kLong));
    EXPECT_EQ(keys_set.load(), 3);
  });
  for (const char* key : {"z", "x", "y"}) {
    ++keys_set;
    TANDEM_EXPECT_OK(store().Set(key, ""));
  }
  waiter.join();
}

TEST_P(StoreTest, AddCountsFromNothingAndWakesWaiters) {
  EXPECT_EQ(store().Add("n", 3).value(), 3);
  EXPECT_EQ(store().Add("n", -5).value(), -2);
  EXPECT_EQ(store().Get("n", kLong).value(), "-2");
  TANDEM_ASSERT_OK(store().Set("word", "three"));
  EXPECT_THAT(store().Add("word", 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("three")));
  TANDEM_ASSERT_OK(store().Set("big", absl::StrCat(INT64_MAX)));
  EXPECT_THAT(store().Add("big", 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("64-bit")));
  EXPECT_EQ(store().Get("big", kLong).value(), absl::StrCat(INT64_MAX));
}

TEST_P(StoreTest, NoAdditionIsLostBetweenThreads) {
  constexpr int kThreads = 4, kAdds = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kAdds; ++i) TANDEM_EXPECT_OK(store().Add("sum", 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store().Add("sum", 0).value(), kThreads * kAdds);
}

TEST_P(StoreTest, CompareSetChangesOnlyWhatItExpects) {
  EXPECT_EQ(store().CompareSet("c", "x", "y").value(), "");
  EXPECT_THAT(store().Get("c", absl::ZeroDuration()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(store().CompareSet("c", "", "first").value(), "first");
  EXPECT_EQ(store().CompareSet("c", "", "second").value(), "first");
  EXPECT_EQ(store().CompareSet("c", "first", "second").value(), "second");
  EXPECT_EQ(store().Get("c", kLong).value(), "second");
}

TEST_P(StoreTest, OneOfManyThreadsWinsACompareSet) {
  std::atomic<int> winners{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string mine = absl::StrCat("thread ", t);
      if (store().CompareSet("lock", "", mine).value() == mine) ++winners;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(winners.load(), 1);
}

TEST_P(StoreTest, DeleteTellsWhetherTheKeyWasThere) {
  TANDEM_ASSERT_OK(store().Set("d", "1"));
  EXPECT_TRUE(store().Delete("d").value());
  EXPECT_FALSE(store().Delete("d").value());
  EXPECT_THAT(store().Get("d", absl::ZeroDuration()), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_P(StoreTest, ListGivesTheKeysOfAPrefixInOrder) {
  for (const char* key : {"job/2", "job/1", "jobs", "k"}) TANDEM_ASSERT_OK(store().Set(key, ""));
  EXPECT_THAT(store().List("job/").value(), ElementsAre("job/1", "job/2"));
  EXPECT_THAT(store().List("").value(), ElementsAre("job/1", "job/2", "jobs", "k"));
  EXPECT_THAT(store().List("none").value(), ElementsAre());
}

TEST_P(StoreTest, EmptyAndHugeKeysAreRefused) {
  const std::string huge(kMaxStoreKeyBytes + 1, 'k');
  for (const std::string& key : {std::string(), huge}) {
    EXPECT_THAT(store().Set(key, "v"), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(store().Get(key, kShort), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(store().Add(key, 1), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(store().CompareSet(key, "", "v"), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(store().Delete(key), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(store().Wait({"good", key}, kShort), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(store().Set(huge, "v"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4096")));
}

TEST_P(StoreTest, ValuesPastTheLimitAreRefusedAndLargeOnesKept) {
  const std::string large(5 << 20, 'v');  // past gRPC's default message limit of 4 MiB
  TANDEM_ASSERT_OK(store().Set("large", large));
  EXPECT_EQ(store().Get("large", kLong).value(), large);
  EXPECT_THAT(store().Set("huge", std::string(kMaxStoreValueBytes + 1, 'v')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("huge")));
}

INSTANTIATE_TEST_SUITE_P(All, StoreTest,
                         ::testing::Values(KindOf<MemorySubject>("Memory"), KindOf<PrefixSubject>("Prefix"),
                                           KindOf<LoopbackSubject>("Loopback"), KindOf<GrpcSubject>("Grpc")),
                         [](const auto& info) { return info.param.name; });

TEST(PrefixStoreTest, PrefixesKeepTheirKeysApart) {
  MemoryStore memory;
  PrefixStore a(&memory, "a"), ab(&memory, "ab");
  TANDEM_ASSERT_OK(a.Set("k", "of a"));
  EXPECT_THAT(ab.Get("k", absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("ab/k")));
  EXPECT_EQ(memory.Get("a/k", absl::ZeroDuration()).value(), "of a");
}

TEST(MemoryStoreTest, AWaitNeedsAllKeysAtTheSameTime) {
  MemoryStore store;
  int ready = 0;
  EXPECT_NE(store.StartWait({"a", "b"}, [&](std::string) { ++ready; }), 0u);
  TANDEM_ASSERT_OK(store.Set("a", "1"));
  TANDEM_ASSERT_OK(store.Delete("a"));
  TANDEM_ASSERT_OK(store.Set("b", "2"));
  EXPECT_EQ(ready, 0);
  TANDEM_ASSERT_OK(store.Set("a", "3"));
  EXPECT_EQ(ready, 1);
}

TEST(MemoryStoreTest, ACancelledWaitIsSilent) {
  MemoryStore store;
  int ready = 0;
  const uint64_t id = store.StartWait({"a"}, [&](std::string) { ++ready; });
  store.CancelWait(id);
  store.CancelWait(id);
  TANDEM_ASSERT_OK(store.Set("a", "1"));
  EXPECT_EQ(ready, 0);
}

}  // namespace
}  // namespace tandem::collectives
