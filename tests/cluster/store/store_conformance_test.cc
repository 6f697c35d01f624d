// SPDX-License-Identifier: Apache-2.0
// The contract of Store, checked for each implementation.

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cluster/join.h"
#include "cluster/store/barrier.h"
#include "cluster/store/etcd/etcd_store.h"
#include "cluster/store/file_store.h"
#include "cluster/store/limits.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/prefix_store.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_server.h"
#include "rpc/transport/loopback.h"
#include "tests/testing/processes/etcd_server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A store and everything that it depends on.
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
  LocalMembership membership_{Clock::Real()};
  StoreService service_{&memory_, &membership_};
  std::unique_ptr<RemoteStore> remote_;
};

class GrpcSubject : public Subject {
 public:
  GrpcSubject() {
    server_ = StoreServer::Start("127.0.0.1:0").value();
    remote_ =
        std::make_unique<RemoteStore>(ConnectStore(absl::StrCat("127.0.0.1:", server_->port())).value());
  }
  Store* store() override { return remote_.get(); }

 private:
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<RemoteStore> remote_;
};

class DiskSubject : public Subject {
 public:
  DiskSubject() {
    TANDEM_CHECK(::mkdtemp(directory_.data()) != nullptr);
    server_ = StoreServer::Start("127.0.0.1:0", Clock::Real(), nullptr,
                                 {.disk = {.directory = directory_, .on_failure = nullptr}})
                  .value();
    remote_ =
        std::make_unique<RemoteStore>(ConnectStore(absl::StrCat("127.0.0.1:", server_->port())).value());
  }
  ~DiskSubject() override {
    server_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  Store* store() override { return remote_.get(); }

 private:
  std::string directory_ = "/dev/shm/tandem_store_XXXXXX";  // the speed of a disk is not what is tested
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<RemoteStore> remote_;
};

class FileSubject : public Subject {
 public:
  FileSubject() : store_(FileStore::Open(directory_.File("store")).value()) {}
  Store* store() override { return store_.get(); }

 private:
  testing::TempDir directory_;
  std::unique_ptr<FileStore> store_;
};

class EtcdSubject : public Subject {
 public:
  // One server for all tests of the process; each test has a prefix of its own. It allows values of any size
  // that the Store allows.
  static testing::EtcdServer* Server() {
    static const auto* const server = new std::unique_ptr<testing::EtcdServer>(
        testing::EtcdServer::Start({"--max-request-bytes=100000000", "--max-txn-ops=256"}));
    return server->get();
  }
  EtcdSubject() {
    static std::atomic<int> tests{0};
    EtcdOptions options;
    options.endpoints = {Server()->address()};
    options.prefix = absl::StrCat("test/", ++tests);
    store_ = EtcdStore::Open(options).value();
  }
  Store* store() override { return store_.get(); }

 private:
  std::unique_ptr<EtcdStore> store_;
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
  void SetUp() override {
    if (std::string(GetParam().name) == "Etcd" && !testing::EtcdServer::Installed()) {
      GTEST_SKIP() << "there is no /usr/bin/etcd: apt-get install etcd-server";
    }
    subject_ = GetParam().make();
  }
  Store& store() { return *subject_->store(); }

 private:
  std::unique_ptr<Subject> subject_;
};

constexpr absl::Duration kLong = absl::Seconds(30);
constexpr absl::Duration kShort = absl::Milliseconds(20);

TEST_P(StoreTest, GetReturnsTheValueThatWasSet) {
  TANDEM_ASSERT_OK(store().Set("a", "1"));
  EXPECT_EQ(store().Get("a", kLong).value(), "1");
  TANDEM_ASSERT_OK(store().Set("a", "2"));
  EXPECT_EQ(store().Get("a", absl::ZeroDuration()).value(), "2");
  TANDEM_ASSERT_OK(store().Set("empty", ""));
  EXPECT_EQ(store().Get("empty", kLong).value(), "");
}

TEST_P(StoreTest, AKeyThatMayBeAbsentIsNotWaitedFor) {
  EXPECT_EQ(store().GetIfPresent("k", absl::Hours(1)).value(), "");
  TANDEM_ASSERT_OK(store().Set("k", "v"));
  EXPECT_EQ(store().GetIfPresent("k", absl::Minutes(1)).value(), "v");
  EXPECT_THAT(store().GetIfPresent("", absl::Minutes(1)), StatusIs(absl::StatusCode::kInvalidArgument));
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
    EXPECT_THAT(store().Check({"good", key}), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(store().Append(key, "v"), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(store().MultiGet({"good", key}, kShort), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(store().MultiSet({"good", key}, {"v", "v"}), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(store().Push(key, "v"), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(store().Pop(key, kShort), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(store().Length(key), StatusIs(absl::StatusCode::kInvalidArgument));
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

TEST_P(StoreTest, CheckDoesNotWait) {
  TANDEM_ASSERT_OK(store().Set("a", ""));
  EXPECT_TRUE(store().Check({"a"}).value());
  EXPECT_FALSE(store().Check({"a", "b"}).value());
  EXPECT_TRUE(store().Check({}).value());
}

TEST_P(StoreTest, AppendMakesAndExtendsAValueAndWakesWaiters) {
  std::thread getter([&] { EXPECT_EQ(store().Get("log", kLong).value(), "ab"); });
  EXPECT_EQ(store().Append("log", "ab").value(), 2);
  getter.join();
  EXPECT_EQ(store().Append("log", std::string("\0c", 2)).value(), 4);
  EXPECT_EQ(store().Get("log", kLong).value(), std::string("ab\0c", 4));
  if (std::string(GetParam().name) == "Etcd")
    return;  // takes half a minute there, for limits that all stores share
  TANDEM_ASSERT_OK(store().Set("large", std::string(kMaxStoreValueBytes - 1, 'v')));
  EXPECT_THAT(store().Append("large", "vv"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("large")));
  EXPECT_EQ(store().Append("large", "v").value(), static_cast<int64_t>(kMaxStoreValueBytes));
}

TEST_P(StoreTest, ManyAreSetAndGotAtOnce) {
  TANDEM_ASSERT_OK(store().MultiSet({"a", "b", "a"}, {"1", "", "3"}));
  EXPECT_THAT(store().MultiGet({"b", "a", "b"}, kLong).value(), ElementsAre("", "3", ""));
  EXPECT_THAT(store().MultiGet({}, kLong).value(), ElementsAre());
  EXPECT_THAT(store().MultiGet({"a", "none"}, kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("none"), Not(HasSubstr("a'")))));
  EXPECT_THAT(store().MultiSet({"a", "b"}, {"x"}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(store().Get("a", kLong).value(), "3");
}

TEST_P(StoreTest, AMultiGetSeesAMultiSetWholly) {
  constexpr int kRounds = 60;
  std::thread writer([&] {
    for (int i = 0; i < kRounds; ++i) {
      const std::string value = absl::StrCat(i);
      TANDEM_EXPECT_OK(store().MultiSet({"left", "right"}, {value, value}));
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    auto both = store().MultiGet({"left", "right"}, kLong);
    TANDEM_EXPECT_OK(both);
    if (!both.ok()) break;
    EXPECT_EQ((*both)[0], (*both)[1]);
  }
  writer.join();
}

TEST_P(StoreTest, KeysAreCounted) {
  EXPECT_EQ(store().NumKeys().value(), 0);
  TANDEM_ASSERT_OK(store().MultiSet({"a", "b"}, {"", ""}));
  TANDEM_ASSERT_OK(store().Push("a queue is no key", ""));
  EXPECT_EQ(store().NumKeys().value(), 2);
  EXPECT_TRUE(store().Delete("a").value());
  EXPECT_EQ(store().NumKeys().value(), 1);
}

TEST_P(StoreTest, AQueueIsFirstInFirstOutAndApartFromKeys) {
  TANDEM_ASSERT_OK(store().Set("q", "a key"));
  for (const char* item : {"1", "", "3"}) TANDEM_ASSERT_OK(store().Push("q", item));
  TANDEM_ASSERT_OK(store().Push("other", "4"));
  EXPECT_EQ(store().Length("q").value(), 3);
  EXPECT_EQ(store().Length("none").value(), 0);
  for (const char* item : {"1", "", "3"}) EXPECT_EQ(store().Pop("q", kLong).value(), item);
  EXPECT_THAT(store().Pop("q", kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("q'"), HasSubstr("20ms"))));
  EXPECT_THAT(store().Pop("q", absl::ZeroDuration()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(store().Get("q", kLong).value(), "a key");
  EXPECT_EQ(store().Pop("other", kLong).value(), "4");
}

TEST_P(StoreTest, APopWakesWhenSomethingIsPushed) {
  std::thread popper([&] { EXPECT_EQ(store().Pop("q", kLong).value(), "it"); });
  TANDEM_EXPECT_OK(store().Push("q", "it"));
  popper.join();
  EXPECT_EQ(store().Length("q").value(), 0);
}

// Invariant: every item is popped once, and items of one producer in the order in which it pushed them, as
// each consumer sees them.
TEST_P(StoreTest, ManyProducersAndConsumersLoseAndDuplicateNoItem) {
  constexpr int kProducers = 3, kConsumers = 3, kItems = 60;
  std::vector<std::thread> threads;
  absl::Mutex mutex;
  std::vector<int> seen(kProducers * kItems, 0);
  for (int c = 0; c < kConsumers; ++c) {
    threads.emplace_back([&] {
      std::vector<int> last(kProducers, -1);
      for (int i = 0; i < kProducers * kItems / kConsumers; ++i) {
        auto item = store().Pop("q", kLong);
        TANDEM_EXPECT_OK(item);
        int number = 0;
        if (!item.ok() || !absl::SimpleAtoi(*item, &number)) return;
        EXPECT_LT(last[number / kItems], number % kItems);
        last[number / kItems] = number % kItems;
        absl::MutexLock lock(&mutex);
        ++seen[number];
      }
    });
  }
  for (int p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      for (int i = 0; i < kItems; ++i) TANDEM_EXPECT_OK(store().Push("q", absl::StrCat(p * kItems + i)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(seen, ::testing::Each(1));
  EXPECT_EQ(store().Length("q").value(), 0);
}

TEST_P(StoreTest, ABarrierWaitsForAllRanksAndCanBeReused) {
  constexpr int kRanks = 4, kRounds = 4;
  std::atomic<int> arrived{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 1; round <= kRounds; ++round) {
        ++arrived;
        TANDEM_EXPECT_OK(StoreBarrier(&store(), "b", kRanks, rank, kLong));
        EXPECT_GE(arrived.load(), round * kRanks);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // No keys accumulate: a round, four arrivals, a verdict or two.
  EXPECT_LE(store().NumKeys().value(), kRanks + 3);
}

TEST_P(StoreTest, ABarrierNamesAbsentRanksAndCanBeReused) {
  const auto come_in_vain = [&](int rank, absl::Duration timeout) {
    EXPECT_THAT(StoreBarrier(&store(), "b", 4, rank, timeout),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("ranks 1, 3 of 4"), HasSubstr("rank 0 waited 300ms"))));
  };
  std::thread two([&] { come_in_vain(2, kLong); });
  TANDEM_EXPECT_OK(store().Wait({"barrier/b/arrived/2"}, kLong));
  come_in_vain(0, absl::Milliseconds(300));
  two.join();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] { TANDEM_EXPECT_OK(StoreBarrier(&store(), "b", 4, rank, kLong)); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(StoreTest, ABarrierNamesRanksThatExpectOtherSizes) {
  std::vector<std::thread> threads;
  for (int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      EXPECT_THAT(StoreBarrier(&store(), "b", rank == 0 ? 3 : 4, rank, kLong),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr("rank 0 expects 3 ranks, rank 1 expects 4")));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(StoreBarrier(&store(), "b", 2, 2, kLong), StatusIs(absl::StatusCode::kInvalidArgument));
}

INSTANTIATE_TEST_SUITE_P(All, StoreTest,
                         ::testing::Values(KindOf<MemorySubject>("Memory"), KindOf<PrefixSubject>("Prefix"),
                                           KindOf<LoopbackSubject>("Loopback"), KindOf<GrpcSubject>("Grpc"),
                                           KindOf<DiskSubject>("Disk"), KindOf<FileSubject>("File"),
                                           KindOf<EtcdSubject>("Etcd")),
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
  EXPECT_NE(store.StartWait({"a", "b"}, 1, [&](std::vector<std::string>) { ++ready; }), 0u);
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
  const uint64_t id = store.StartWait({"a"}, 1, [&](std::vector<std::string>) { ++ready; });
  store.CancelWait(id);
  store.CancelWait(id);
  TANDEM_ASSERT_OK(store.Set("a", "1"));
  EXPECT_EQ(ready, 0);
}

TEST(MemoryStoreTest, AbsentAndCancelledPoppersGetNoItem) {
  MemoryStore store;
  bool here = false;
  std::vector<std::string> got;
  uint64_t first = 0, second = 0;
  const auto start = [&](std::function<bool()> present, const char* suffix, uint64_t* id) {
    return store.StartPop(
        "q", {std::move(present), [&got, suffix](std::string item) { got.push_back(item + suffix); }, {}},
        id);
  };
  EXPECT_EQ(start([&] { return here; }, "", &first).value(), absl::nullopt);
  EXPECT_EQ(start(nullptr, "!", &second).value(), absl::nullopt);
  TANDEM_ASSERT_OK(store.Push("q", "1"));
  EXPECT_THAT(got, ElementsAre("1!"));
  EXPECT_FALSE(store.CancelPop(second));
  TANDEM_ASSERT_OK(store.Push("q", "2"));
  EXPECT_EQ(store.Length("q").value(), 1);
  EXPECT_TRUE(store.CancelPop(first));
  EXPECT_EQ(store.TryPop("q").value(), "2");
}

}  // namespace
}  // namespace tandem::cluster
