// SPDX-License-Identifier: Apache-2.0
// Copies of a shard that decide their roles themselves, over gRPC and a board in memory.

#include "ps/failover/replica.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ipc/descriptor.h"
#include "gtest/gtest.h"
#include "ps/failover/data_path.h"
#include "ps/shard_map.h"
#include "tests/ps/failover/copy_process.h"
#include "tests/ps/storage/spill/memory_tier.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::MemoryBoard;
using ::tandem::testing::MemoryDocuments;

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

}  // namespace
}  // namespace tandem::ps::testing
