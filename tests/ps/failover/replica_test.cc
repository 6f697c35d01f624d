// SPDX-License-Identifier: Apache-2.0
// Copies of a shard that decide their roles themselves, over gRPC and a board in memory.

#include "ps/failover/replica.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ipc/descriptor.h"
#include "base/timed_wait.h"
#include "gtest/gtest.h"
#include "ps/failover/data_path.h"
#include "ps/shard_map.h"
#include "rpc/server.h"
#include "tests/ps/server/driver.h"
#include "tests/ps/storage/spill/memory_tier.h"
#include "tests/testing/memory_board.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::MemoryBoard;
using ::tandem::testing::MemoryDocuments;

constexpr uint64_t kCommonRow = 7;
uint64_t RowOf(uint32_t worker, uint64_t step) { return 1000 + 100000 * uint64_t{worker} + step; }

// A process with one copy of shard 0.
class CopyProcess {
 public:
  explicit CopyProcess(std::shared_ptr<MemoryDocuments> documents,
                       const std::function<void(ReplicaOptions*)>& change = nullptr,
                       std::shared_ptr<ColdStore> cold_store = nullptr)
      : board_(std::move(documents)),
        driver_({.cold_store = std::move(cold_store),
                 .boot_time = [this] { return BootTimeNow() + absl::Nanoseconds(suspended_ns_.load()); },
                 .failover = true}) {
    ReplicaOptions options{.board = &board_, .server = &driver_.server()};
    options.on_end = [this](const absl::Status& status) {
      absl::MutexLock lock(&mutex_);
      end_ = status;
    };
    if (change) change(&options);
    replica_ = std::make_unique<Replica>(options);
    service_ = replica_->service();
    auto listening = rpc::Server::Start({.listen = "127.0.0.1:0", .transport = "grpc"}, {service_});
    TANDEM_CHECK_MSG(listening.ok(), listening.status().ToString());
    listening_ = *std::move(listening);
    replica_->Start(absl::StrCat("127.0.0.1:", listening_->port()));
  }
  ~CopyProcess() { Kill(); }

  // Closes the connections of the process before it ends, so that it can tell nobody anything.
  void Kill() {
    listening_->Shutdown(absl::ZeroDuration());
    replica_->Stop();
    driver_.server().Stop();
  }
  // Makes the boot clock of the process pass `time`, while its monotonic clock stands still.
  void Suspend(absl::Duration time) { suspended_ns_ += absl::ToInt64Nanoseconds(time); }
  Driver* operator->() { return &driver_; }
  MemoryBoard& board() { return board_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", listening_->port()); }
  Replica& replica() { return *replica_; }

  // Lets the process handle a call of its service.
  void Handle(const std::string& name, const std::shared_ptr<rpc::ServerCall>& call) {
    for (const rpc::Method& method : service_.methods) {
      if (method.name == name) method.handler(call);
    }
  }
  // Waits for a status with a property, by GetPlacement. Returns false after a minute.
  bool Await(const std::function<bool(const v1::ReplicaStatus&)>& property) {
    const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
    v1::ReplicaStatus status = replica_->Status();
    while (!property(status)) {
      if (MonotonicNow() > deadline) {
        ADD_FAILURE() << status.ShortDebugString();
        return false;
      }
      v1::GetPlacementRequest request;
      request.set_wait_version(status.placement().version());
      request.set_wait_ms(20);
      const auto call =
          std::make_shared<TestCall>(Bytes(request.SerializeAsString()), absl::InfiniteFuture());
      Handle("GetPlacement", call);
      TANDEM_CHECK(status.ParseFromString(call->Wait()->Flatten()));
    }
    return true;
  }
  bool AwaitServing() {
    return Await([](const v1::ReplicaStatus& status) { return status.serving(); });
  }
  bool AwaitInSync(int followers) {
    return Await([&](const v1::ReplicaStatus& status) {
      return status.role() == v1::REPLICA_ROLE_PRIMARY && status.placement().in_sync_size() == followers;
    });
  }
  // Waits for the status with which the process has to end.
  absl::Status AwaitEnd() {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !end_.ok(); };
    EXPECT_TRUE(AwaitFor(&mutex_, absl::Condition(&ended), absl::Minutes(1)));
    return end_;
  }

 private:
  std::atomic<int64_t> suspended_ns_{0};
  MemoryBoard board_;
  Driver driver_;
  absl::Mutex mutex_;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Replica> replica_;
  rpc::Service service_;
  std::unique_ptr<rpc::Server> listening_;
};

v1::TableConfig Counters(uint32_t workers) {
  v1::TableConfig config = TestTable("user", 1, workers, Async(), Sgd(1.0f));
  *config.mutable_initializer() = Zeros();
  return config;
}

PushOf Count(uint32_t worker, uint64_t step) {
  return {.table = "user", .dim = 1, .ids = {kCommonRow, RowOf(worker, step)}, .gradients = {-1, -1}};
}

float Value(CopyProcess& process, uint64_t id) {
  const absl::StatusOr<Rows> rows = process->Pull(0, 0, {{"user", {id}}}, /*read_only=*/true);
  TANDEM_CHECK_MSG(rows.ok(), rows.status().ToString());
  return rows->slices[0][0];
}

// Starts a primary with the table "user".
std::unique_ptr<CopyProcess> StartPrimary(const std::shared_ptr<MemoryDocuments>& documents,
                                          uint32_t workers) {
  auto primary = std::make_unique<CopyProcess>(documents);
  EXPECT_TRUE(primary->AwaitServing());
  TANDEM_EXPECT_OK((*primary)->CreateTable(Counters(workers)));
  return primary;
}

TEST(ReplicaTest, EachPushCountsOnceThoughPrimariesDieOneAfterTheOther) {
  constexpr uint32_t kWorkers = 3;
  constexpr uint64_t kSteps = 400;
  constexpr int kDeaths = 3;
  const auto documents = std::make_shared<MemoryDocuments>();
  std::vector<std::unique_ptr<CopyProcess>> processes;
  processes.push_back(StartPrimary(documents, kWorkers));
  std::atomic<CopyProcess*> primary{processes[0].get()};
  std::atomic<uint64_t> pushed{0};

  std::vector<std::thread> workers;
  for (uint32_t w = 0; w < kWorkers; ++w) {
    workers.emplace_back([&, w] {
      for (uint64_t step = 0; step < kSteps; ++step) {
        absl::Status status;
        do {
          CopyProcess& server = *primary.load();
          status = server->Push({.worker = w, .step = step}, {Count(w, step)}).status();
          if (absl::IsUnavailable(status)) std::this_thread::yield();
        } while (absl::IsUnavailable(status));
        TANDEM_EXPECT_OK(status);
        ++pushed;
      }
    });
  }
  for (int death = 0; death < kDeaths; ++death) {
    processes.push_back(std::make_unique<CopyProcess>(documents));
    CopyProcess& before = *primary.load();
    CopyProcess& after = *processes.back();
    ASSERT_TRUE(before.AwaitInSync(1));
    // Deaths are spread over the pushes.
    while (pushed < kWorkers * kSteps * (death + 1) / (kDeaths + 1)) std::this_thread::yield();
    before.Kill();
    ASSERT_TRUE(after.AwaitServing());
    primary = &after;
  }
  for (std::thread& worker : workers) worker.join();

  CopyProcess& last = *primary.load();
  EXPECT_EQ(last.replica().Status().placement().term(), 1u + kDeaths);
  EXPECT_EQ(last.replica().Status().placement().failovers(), uint64_t{kDeaths});
  EXPECT_EQ(Value(last, kCommonRow), static_cast<float>(kWorkers * kSteps));
  for (uint32_t w = 0; w < kWorkers; ++w) {
    for (uint64_t step = 0; step < kSteps; ++step) {
      ASSERT_EQ(Value(last, RowOf(w, step)), 1.0f) << w << " " << step;
    }
  }
}

TEST(ReplicaTest, OneOfTwoFollowersTakesOverAndTheOtherFollowsIt) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  CopyProcess b(documents), c(documents);
  ASSERT_TRUE(a->AwaitInSync(2));
  TANDEM_ASSERT_OK((*a)->Push({.step = 0}, {Count(0, 0)}));
  a->Kill();
  const auto settled = [](const v1::ReplicaStatus& status) {
    return status.placement().term() == 2 && status.placement().in_sync_size() == 1;
  };
  ASSERT_TRUE(b.Await(settled));
  ASSERT_TRUE(c.Await(settled));
  CopyProcess& next = b.replica().Status().role() == v1::REPLICA_ROLE_PRIMARY ? b : c;
  EXPECT_EQ(Value(next, RowOf(0, 0)), 1.0f);
}

TEST(ReplicaTest, WithTwoRequiredCopiesAPushWaitsForAFollower) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto two = [](ReplicaOptions* options) { options->min_copies = 2; };
  CopyProcess a(documents, two);
  ASSERT_TRUE(a.AwaitServing());
  v1::CreateTableRequest create;
  *create.mutable_config() = Counters(1);
  const auto created = a->Start("CreateTable", Bytes(create.SerializeAsString()));
  CopyProcess b(documents, two);
  ASSERT_TRUE(a.AwaitInSync(1));
  TANDEM_ASSERT_OK(created->Wait().status());
  TANDEM_ASSERT_OK(a->Push({.step = 0}, {Count(0, 0)}));
  b.Kill();
  const auto waiting = a->StartPush({.step = 1}, {Count(0, 1)});
  EXPECT_FALSE(waiting->answered() && waiting->Wait().ok());
  // The dead follower stays the one that could take over until another one has every acknowledged push.
  EXPECT_EQ(a.replica().Status().placement().in_sync_size(), 1);
  CopyProcess c(documents, two);
  ASSERT_TRUE(a.Await([&](const v1::ReplicaStatus& status) {
    return status.serving() && status.placement().in_sync_size() == 1 &&
           status.placement().in_sync(0).id() == c.replica().Status().self().id();
  }));
  TANDEM_EXPECT_OK(a->Push({.step = 1}, {Count(0, 1)}));
  EXPECT_EQ(Value(a, RowOf(0, 1)), 1.0f);
}

TEST(ReplicaTest, AFollowerThatIsRequiredTakesOverThoughItWasSilent) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto two = [](ReplicaOptions* options) { options->min_copies = 2; };
  CopyProcess a(documents, two);
  ASSERT_TRUE(a.AwaitServing());
  CopyProcess b(documents, two);
  ASSERT_TRUE(a.AwaitInSync(1));
  TANDEM_ASSERT_OK(a->CreateTable(Counters(1)));
  TANDEM_ASSERT_OK(a->Push({.step = 0}, {Count(0, 0)}));
  a.Kill();
  ASSERT_TRUE(b.AwaitServing());
  EXPECT_EQ(Value(b, RowOf(0, 0)), 1.0f);
}

TEST(ReplicaTest, ALearnerThatCannotReachALivingPrimaryLooksOn) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  std::atomic<bool> reachable{false};
  std::atomic<int> asked{0};
  CopyProcess b(documents, [&](ReplicaOptions* options) {
    static_cast<MemoryBoard*>(options->board)->SetAlive(a->replica().Status().self().address(), true);
    options->connect = [&](const std::string& address) {
      return rpc::ConnectGrpc(reachable ? address : "127.0.77.9:1");
    };
    options->refuses = [&](const std::string&) {
      ++asked;
      return !reachable;
    };
  });
  const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
  while (asked < 3 && MonotonicNow() < deadline) std::this_thread::yield();
  EXPECT_GE(asked, 3);
  EXPECT_EQ(b.replica().Status().role(), v1::REPLICA_ROLE_LEARNER);
  reachable = true;
  EXPECT_TRUE(a->AwaitInSync(1));
}

TEST(ReplicaTest, AShardWhosePrimaryNeverAnswersIsGivenUp) {
  // A machine that is gone: connections are neither accepted nor refused by a process.
  const ipc::Descriptor silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(silent.get(), 16), 0);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::getsockname(silent.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);

  const auto documents = std::make_shared<MemoryDocuments>();
  v1::ShardPlacement placement, current;
  placement.set_version(1);
  placement.set_term(1);
  placement.mutable_primary()->set_id("gone-0");
  placement.mutable_primary()->set_address(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
  ASSERT_TRUE(documents->Replace(0, 0, placement, &current));
  CopyProcess b(documents, [](ReplicaOptions* options) { options->give_up = absl::Milliseconds(100); });
  const absl::Status end = b.AwaitEnd();
  EXPECT_TRUE(absl::IsDataLoss(end)) << end;
}

TEST(ReplicaTest, TheLinkToADeadLearnerEnds) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  CopyProcess b(documents);
  ASSERT_TRUE(a->AwaitInSync(1));
  b.Kill();
  EXPECT_TRUE(a->Await([](const v1::ReplicaStatus& status) {
    return status.links_size() == 0 && status.placement().in_sync_size() == 0;
  }));
}

TEST(ReplicaTest, AShardWithoutALivingCopyIsLostByName) {
  const auto documents = std::make_shared<MemoryDocuments>();
  StartPrimary(documents, 1).reset();
  CopyProcess b(documents);
  const absl::Status end = b.AwaitEnd();
  EXPECT_TRUE(absl::IsDataLoss(end)) << end;
  EXPECT_NE(end.message().find("checkpoint"), absl::string_view::npos) << end;
}

TEST(ReplicaTest, ACopyOfAnotherShapeIsRefusedByName) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  CopyProcess b(documents, [](ReplicaOptions* options) { options->num_buckets = 64; });
  const absl::Status end = b.AwaitEnd();
  EXPECT_TRUE(absl::IsFailedPrecondition(end)) << end;
  EXPECT_NE(end.message().find("64 buckets"), absl::string_view::npos) << end;
}

TEST(ReplicaTest, ACopyThatCannotHoldTheTablesEndsByName) {
  MemoryDisk disk;
  const auto documents = std::make_shared<MemoryDocuments>();
  CopyProcess a(documents, nullptr, std::make_shared<MemoryStore>(&disk));
  ASSERT_TRUE(a.AwaitServing());
  v1::TableConfig config = Counters(1);
  *config.mutable_eviction() = EvictLru();
  config.set_byte_budget(256 << 10);
  config.set_spill(true);
  TANDEM_ASSERT_OK(a->CreateTable(config));
  CopyProcess b(documents);
  const absl::Status end = b.AwaitEnd();
  EXPECT_TRUE(absl::IsFailedPrecondition(end)) << end;
  EXPECT_NE(end.message().find("--spill-dir"), absl::string_view::npos) << end;
}

TEST(ReplicaTest, RemovedFollowersAreCopiedAnewOnceTheyAreAllowed) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  CopyProcess b(documents);
  ASSERT_TRUE(a->AwaitInSync(1));
  const std::string before = b.replica().Status().self().id();
  TANDEM_ASSERT_OK(a->replica().RemoveFollowers(absl::Minutes(1)));
  EXPECT_EQ(a->replica().Status().placement().in_sync_size(), 0);
  a->replica().AllowFollowers();
  ASSERT_TRUE(a->AwaitInSync(1));
  EXPECT_NE(a->replica().Status().placement().in_sync(0).id(), before);
  const absl::Status follower = b.replica().RemoveFollowers(absl::Minutes(1));
  EXPECT_TRUE(absl::IsUnavailable(follower)) << follower;
}

TEST(ReplicaTest, ACopyThatIsStoppedRefusesToRemoveFollowers) {
  const auto a = StartPrimary(std::make_shared<MemoryDocuments>(), 1);
  a->replica().Stop();
  const absl::Status removed = a->replica().RemoveFollowers(absl::Seconds(10));
  EXPECT_TRUE(absl::IsUnavailable(removed)) << removed;
  EXPECT_EQ(removed.message(), "the server is stopping");
}

TEST(ReplicaTest, ACopyThatIsStoppedNeitherHandsOverNorLeaves) {
  const auto a = StartPrimary(std::make_shared<MemoryDocuments>(), 1);
  a->replica().Stop();
  for (const absl::Status& status :
       {a->replica().HandOver("", absl::Hours(1)), a->replica().Leave(absl::Hours(1))}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(status.message(), "the server is stopping");
  }
}

TEST(ReplicaTest, APrimaryWithoutItsFollowerAndTheStoreServesNothing) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  auto b = std::make_unique<CopyProcess>(documents);
  ASSERT_TRUE(a->AwaitInSync(1));
  a->board().SetReachable(false);
  b->board().SetReachable(false);
  b.reset();
  ASSERT_TRUE(a->Await([](const v1::ReplicaStatus& status) { return !status.serving(); }));
  const absl::Status pushed = (*a)->Push({.step = 0}, {Count(0, 0)}).status();
  EXPECT_TRUE(absl::IsUnavailable(pushed)) << pushed;
  a->board().SetReachable(true);
  ASSERT_TRUE(a->AwaitServing());
  ASSERT_TRUE(a->AwaitInSync(0));
  TANDEM_EXPECT_OK((*a)->Push({.step = 0}, {Count(0, 0)}));
}

TEST(ReplicaTest, APrimaryServesNoMomentLongerThanItsLease) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  auto b = std::make_unique<CopyProcess>(documents);
  ASSERT_TRUE(a->AwaitInSync(1));
  a->board().SetReachable(false);
  b->board().SetReachable(false);
  b.reset();
  // Whatever the follower has answered was sent before now.
  const absl::Time last = MonotonicNow() + ReplicaOptions().lease;
  absl::Status pulled;
  while (pulled.ok()) {
    const absl::Time began = MonotonicNow();
    pulled = (*a)->Pull(0, 0, {{"user", {kCommonRow}}}, /*read_only=*/true).status();
    if (pulled.ok()) {
      ASSERT_LT(began, last);
    }
  }
  EXPECT_TRUE(absl::IsUnavailable(pulled)) << pulled;
  a->board().SetReachable(true);
  ASSERT_TRUE(a->AwaitInSync(0));
  ASSERT_TRUE(a->AwaitServing());
  EXPECT_EQ(Value(*a, kCommonRow), 0.0f);
}

TEST(ReplicaTest, APrimaryWhoseMachineWasSuspendedAnswersNoPullWhenItResumes) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  auto b = std::make_unique<CopyProcess>(documents);
  ASSERT_TRUE(a->AwaitInSync(1));
  a->board().SetReachable(false);
  b->board().SetReachable(false);
  b.reset();
  // The follower may have taken over meanwhile.
  a->Suspend(ReplicaOptions().lease);
  const absl::Status pulled = (*a)->Pull(0, 0, {{"user", {kCommonRow}}}, /*read_only=*/true).status();
  EXPECT_TRUE(absl::IsUnavailable(pulled)) << pulled;
  a->board().SetReachable(true);
  ASSERT_TRUE(a->AwaitInSync(0));
  ASSERT_TRUE(a->AwaitServing());
  EXPECT_EQ(Value(*a, kCommonRow), 0.0f);
}

TEST(ReplicaTest, AFollowerThatAnswersButStoresNothingHoldsPushesUpForAWhileOnly) {
  MemoryDisk disk, hanging;
  absl::Notification goes_on;
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto short_stall = [](ReplicaOptions* options) { options->stall = absl::Milliseconds(300); };
  CopyProcess a(documents, short_stall, std::make_shared<MemoryStore>(&disk));
  ASSERT_TRUE(a.AwaitServing());
  CopyProcess b(documents, short_stall, std::make_shared<MemoryStore>(&hanging));
  ASSERT_TRUE(a.AwaitInSync(1));
  constexpr uint32_t kDim = 1024;
  v1::TableConfig config = TestTable("user", kDim, 1, Async(), Sgd(1.0f));
  *config.mutable_initializer() = Zeros();
  *config.mutable_eviction() = EvictLru();
  config.set_byte_budget(1 << 20);
  config.set_spill(true);
  TANDEM_ASSERT_OK(a->CreateTable(config));
  {
    absl::MutexLock lock(&hanging.mutex);
    hanging.before_put = [&goes_on] { goes_on.WaitForNotification(); };
  }
  // More than a follower stores without applying it (Receiver::Options::max_unapplied_bytes).
  const uint64_t pushes = 24;
  PushOf push{.table = "user", .dim = kDim};
  for (uint64_t id = 0; id < 1024; ++id) push.ids.push_back(id);
  push.gradients.assign(push.ids.size() * kDim, -1.0f);
  for (uint64_t step = 0; step < pushes; ++step) TANDEM_ASSERT_OK(a->Push({.step = step}, {push}));
  ASSERT_TRUE(a.AwaitInSync(0));
  goes_on.Notify();
  ASSERT_TRUE(a.AwaitInSync(1));
  a.Kill();
  ASSERT_TRUE(b.AwaitServing());
  const absl::StatusOr<Rows> rows = b->Pull(0, 0, {{"user", {1023}}}, /*read_only=*/true);
  TANDEM_ASSERT_OK(rows.status());
  EXPECT_EQ(rows->slices[0][0], static_cast<float>(pushes));
}

TEST(ReplicaTest, ARequiredFollowerWhoseLinkHasEndedBeginsAnew) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto two = [](ReplicaOptions* options) {
    options->min_copies = 2;
    options->give_up = absl::Milliseconds(100);
  };
  CopyProcess a(documents, two);
  ASSERT_TRUE(a.AwaitServing());
  CopyProcess b(documents, two);
  ASSERT_TRUE(a.AwaitInSync(1));
  TANDEM_ASSERT_OK(a->CreateTable(Counters(1)));
  const std::string before = b.replica().Status().self().id();
  a->server().data_path()->log()->FailLink(before, absl::DataLossError("a record was damaged on its way"));
  // The document may not drop it, and both live.
  ASSERT_TRUE(a.Await([&](const v1::ReplicaStatus& status) {
    return status.placement().in_sync_size() == 1 && status.placement().in_sync(0).id() != before;
  }));
  TANDEM_EXPECT_OK(a->Push({.step = 0}, {Count(0, 0)}));
  EXPECT_EQ(Value(a, RowOf(0, 0)), 1.0f);
}

TEST(ReplicaTest, ATakeoverWhoseOutcomeIsUnknownIsSettled) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  CopyProcess b(documents);
  ASSERT_TRUE(a->AwaitInSync(1));
  TANDEM_ASSERT_OK((*a)->Push({.step = 0}, {Count(0, 0)}));
  b.board().SetFault(MemoryBoard::Fault::kAnswerLost);
  a->Kill();
  ASSERT_TRUE(b.AwaitServing());
  EXPECT_EQ(b.replica().Status().placement().term(), 2u);
  EXPECT_EQ(Value(b, RowOf(0, 0)), 1.0f);
}

TEST(ReplicaTest, EachPushCountsOnceThoughPrimariesHandOverOneAfterTheOther) {
  constexpr uint32_t kWorkers = 8;
  constexpr int kHandOvers = 4;
  constexpr uint64_t kRows = 500;  // of a worker
  const auto documents = std::make_shared<MemoryDocuments>();
  std::vector<std::unique_ptr<CopyProcess>> processes;
  processes.push_back(StartPrimary(documents, kWorkers));
  std::atomic<CopyProcess*> primary{processes[0].get()};
  std::atomic<bool> stop{false};
  std::array<std::atomic<uint64_t>, kWorkers> steps = {};
  std::vector<std::thread> workers;
  for (uint32_t w = 0; w < kWorkers; ++w) {
    workers.emplace_back([&, w] {
      for (; !stop; ++steps[w]) {
        absl::Status status;
        do {
          status =
              (*primary.load())->Push({.worker = w, .step = steps[w]}, {Count(w, steps[w] % kRows)}).status();
          if (absl::IsUnavailable(status)) std::this_thread::yield();
        } while (absl::IsUnavailable(status));
        TANDEM_EXPECT_OK(status);
      }
    });
  }
  for (int h = 0; h < kHandOvers; ++h) {
    processes.push_back(std::make_unique<CopyProcess>(documents));
    CopyProcess& before = *primary.load();
    CopyProcess& after = *processes.back();
    absl::Status handed;
    bool goes_on = false;
    do {  // the follower may be too slow on a loaded machine
      handed = before.replica().HandOver(after.address(), absl::Minutes(1));
      if (!absl::IsUnavailable(handed)) break;
      // The primary serves again, or has ended, once the document says who has the shard.
      EXPECT_TRUE(before.Await([&](const v1::ReplicaStatus& status) {
        goes_on = status.serving();
        return goes_on || status.role() == v1::REPLICA_ROLE_ENDED;
      }));
    } while (goes_on);
    // The follower serves when the primary says so; the answer may have been lost.
    EXPECT_TRUE(handed.ok() ? after.replica().Status().serving() : after.AwaitServing()) << handed;
    const absl::Status end = before.AwaitEnd();
    EXPECT_TRUE(absl::IsCancelled(end)) << end;
    EXPECT_NE(end.message().find(after.address()), std::string::npos) << end;
    before.Kill();
    primary = &after;
  }
  stop = true;
  for (std::thread& worker : workers) worker.join();
  CopyProcess& last = *primary.load();
  EXPECT_EQ(last.replica().Status().placement().handovers(), uint64_t{kHandOvers});
  EXPECT_EQ(last.replica().Status().placement().failovers(), 0u);
  uint64_t pushes = 0;
  for (uint32_t w = 0; w < kWorkers; ++w) {
    pushes += steps[w];
    for (uint64_t row = 0; row < kRows; ++row) {
      const uint64_t counted = steps[w] / kRows + (row < steps[w] % kRows ? 1 : 0);
      ASSERT_EQ(Value(last, RowOf(w, row)), static_cast<float>(counted)) << w << " " << row;
    }
  }
  // A float counts exactly up to 2^24.
  if (pushes < uint64_t{1} << 24) {
    EXPECT_EQ(Value(last, kCommonRow), static_cast<float>(pushes));
  }
}

TEST(ReplicaTest, APrimaryWhoseFollowerCannotTakeOverGoesOn) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  CopyProcess b(documents);
  ASSERT_TRUE(a->AwaitInSync(1));
  b.board().SetReachable(false);
  const absl::Status handed = a->replica().HandOver("", absl::Minutes(1));
  EXPECT_TRUE(absl::IsUnavailable(handed)) << handed;
  ASSERT_TRUE(a->AwaitServing());
  const std::string before = b.replica().Status().self().id();
  TANDEM_EXPECT_OK((*a)->Push({.step = 0}, {Count(0, 0)}));
  // The follower finds out that it cannot take over any more, and copies the shard again.
  b.board().SetReachable(true);
  ASSERT_TRUE(b.Await([&](const v1::ReplicaStatus& status) {
    return status.self().id() != before && status.placement().in_sync_size() == 1;
  }));
  EXPECT_EQ(a->replica().Status().placement().term(), 1u);
  TANDEM_EXPECT_OK((*a)->Push({.step = 1}, {Count(0, 1)}));
}

// A call whose caller is gone as soon as `gone` says so. `gone` is called on the replica's thread.
class AbandonedCall : public TestCall {
 public:
  AbandonedCall(const google::protobuf::MessageLite& request, std::function<bool()> gone)
      : TestCall(Bytes(request.SerializeAsString()), MonotonicNow() + absl::Hours(1)),
        gone_(std::move(gone)) {}
  bool IsCancelled() const override { return gone_(); }

 private:
  const std::function<bool()> gone_;
};

TEST(ReplicaTest, AHandOverWhoseCallerIsGoneLooksForNoFollowerAnyMore) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  std::atomic<bool> gone{false};
  const auto call = std::make_shared<AbandonedCall>(v1::HandOverRequest(), [&gone] { return gone.load(); });
  a->Handle("HandOver", call);
  // The first hand-over is under way for an hour, since there is no follower.
  EXPECT_TRUE(absl::IsUnavailable(a->replica().HandOver("", absl::ZeroDuration())));
  gone = true;
  const absl::StatusOr<Bytes> answer = call->Wait();
  EXPECT_TRUE(absl::IsCancelled(answer.status())) << answer.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(a->replica().HandOver("", absl::ZeroDuration())));
  EXPECT_TRUE(a->replica().Status().serving());
}

TEST(ReplicaTest, AWaitForTheDocumentEndsWhenItsCallerIsGone) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  std::atomic<bool> gone{false};
  v1::GetPlacementRequest request;
  request.set_wait_version(a->replica().Status().placement().version());
  request.set_wait_ms(9'000);
  const auto call = std::make_shared<AbandonedCall>(request, [&gone] { return gone.load(); });
  a->Handle("GetPlacement", call);
  EXPECT_FALSE(call->answered());
  gone = true;
  const absl::Time told = MonotonicNow();
  TANDEM_EXPECT_OK(call->Wait().status());
  EXPECT_LT(MonotonicNow() - told, absl::Seconds(8));
}

TEST(ReplicaTest, AnAttachWhoseCallerIsGoneEndsNoLink) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  CopyProcess b(documents);
  ASSERT_TRUE(a->AwaitInSync(1));
  const v1::ReplicaStatus before = a->replica().Status();
  v1::AttachRequest request;
  request.mutable_me()->set_id("of a process that has died-1");
  request.mutable_me()->set_address(b.address());
  request.set_num_servers(1);
  request.set_num_buckets(kDefaultBuckets);
  request.set_primary(before.self().id());
  request.set_term(before.placement().term());
  const auto call = std::make_shared<AbandonedCall>(request, [] { return true; });
  a->Handle("Attach", call);
  const absl::StatusOr<Bytes> answer = call->Wait();
  EXPECT_TRUE(absl::IsCancelled(answer.status())) << answer.status();
  TANDEM_EXPECT_OK((*a)->Push({.step = 0}, {Count(0, 0)}));
  EXPECT_EQ(a->replica().Status().placement().version(), before.placement().version());
}

TEST(ReplicaTest, AFollowerIsNotAskedToTakeOverForACallerThatIsGone) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  CopyProcess b(documents);
  ASSERT_TRUE(a->AwaitInSync(1));
  const v1::ReplicaStatus before = a->replica().Status();
  const std::string follower = b.replica().Status().self().id();
  // The caller goes when calls wait for the follower already.
  const auto gone = [&a] { return !a->replica().Status().handing_over_to().empty(); };
  for (const char* method : {"HandOver", "Leave"}) {
    const auto call = std::make_shared<AbandonedCall>(v1::HandOverRequest(), gone);
    a->Handle(method, call);
    const absl::StatusOr<Bytes> answer = call->Wait();
    EXPECT_TRUE(absl::IsCancelled(answer.status())) << method << ": " << answer.status();
    TANDEM_EXPECT_OK((*a)->Push({.step = method[0] == 'H' ? 0u : 1u}, {Count(0, 0)}));
  }
  const v1::ReplicaStatus after = a->replica().Status();
  EXPECT_TRUE(after.serving());
  EXPECT_EQ(after.handing_over_to(), "");
  EXPECT_FALSE(a->replica().left());
  // The follower knows nothing of it: it is in sync all the time, and is not copied anew.
  EXPECT_EQ(after.placement().version(), before.placement().version());
  EXPECT_EQ(b.replica().Status().self().id(), follower);
}

TEST(ReplicaTest, AHandOverWithoutItsFollowerOrToAnotherPrimaryIsRefusedByName) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  const absl::Status alone = a->replica().HandOver("10.0.0.9:1", absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsFailedPrecondition(alone)) << alone;
  EXPECT_NE(alone.message().find("10.0.0.9:1"), std::string::npos) << alone;
  CopyProcess b(documents);
  ASSERT_TRUE(a->AwaitInSync(1));
  const absl::Status follower = b.replica().HandOver("", absl::ZeroDuration());
  EXPECT_TRUE(absl::IsFailedPrecondition(follower)) << follower;
  EXPECT_NE(follower.message().find(a->address()), std::string::npos) << follower;
  EXPECT_TRUE(a->replica().Status().serving());
}

TEST(ReplicaTest, CopiesThatLeaveAreNotInTheDocumentAndTheLastOneMayNotLeave) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  CopyProcess b(documents), c(documents);
  ASSERT_TRUE(a->AwaitInSync(2));
  TANDEM_ASSERT_OK((*a)->Push({.step = 0}, {Count(0, 0)}));
  TANDEM_EXPECT_OK(b.replica().Leave(absl::Minutes(1)));
  EXPECT_TRUE(b.replica().left());
  EXPECT_TRUE(absl::IsCancelled(b.AwaitEnd()));
  EXPECT_EQ(a->replica().Status().placement().in_sync_size(), 1);
  TANDEM_EXPECT_OK(a->replica().Leave(absl::Minutes(1)));
  EXPECT_TRUE(absl::IsCancelled(a->AwaitEnd()));
  EXPECT_TRUE(c.replica().Status().serving());
  EXPECT_EQ(Value(c, RowOf(0, 0)), 1.0f);
  const absl::Status last = c.replica().Leave(absl::Minutes(1));
  EXPECT_TRUE(absl::IsFailedPrecondition(last)) << last;
  EXPECT_FALSE(c.replica().left());
}

}  // namespace
}  // namespace tandem::ps::testing
