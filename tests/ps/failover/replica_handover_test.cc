// SPDX-License-Identifier: Apache-2.0
// Primaries that hand over, and copies that leave their shard.

#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "ps/failover/replica.h"
#include "rpc/channel.h"
#include "rpc/forwarding_channel.h"
#include "tests/ps/failover/copy_process.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::MemoryBoard;
using ::tandem::testing::MemoryDocuments;

// Hands over from `before` to `after`, again while the follower is too slow on a loaded machine. Returns
// false after a failure.
bool HandOver(CopyProcess& before, CopyProcess& after) {
  while (true) {
    const absl::Status handed = before.replica().HandOver(after.address(), absl::Minutes(1));
    EXPECT_TRUE(handed.ok() || absl::IsUnavailable(handed)) << handed;
    if (handed.ok()) return after.replica().Status().serving();
    if (!absl::IsUnavailable(handed)) return false;
    // The primary serves again, or does no more, once the document says who has the shard.
    bool goes_on = false;
    const bool decided = before.Await([&](const v1::ReplicaStatus& status) {
      goes_on = status.serving();
      return goes_on || status.role() != v1::REPLICA_ROLE_PRIMARY;
    });
    if (!decided || !goes_on) return decided && after.AwaitServing();
  }
}

TEST(ReplicaHandOver, EachPushCountsOnceThoughTwoCopiesHandOverToEachOtherAgainAndAgain) {
  constexpr uint32_t kWorkers = 8;
  constexpr int kHandOvers = 10;
  constexpr uint64_t kRows = 500;  // of a worker
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto first = StartPrimary(documents, kWorkers);
  CopyProcess second(documents);
  std::atomic<CopyProcess*> primary{first.get()};
  std::atomic<bool> stop{false};
  // Changes that are no pushes: names get different ranks.
  std::set<uint32_t> ranks;
  uint32_t registered = 0;
  std::thread registers([&] {
    while (!stop) {
      v1::RegisterRequest request;
      request.set_name(absl::StrCat("process ", registered));
      const absl::StatusOr<v1::RegisterResponse> rank =
          (*primary.load())->Call<v1::RegisterResponse>("Register", request);
      if (absl::IsUnavailable(rank.status())) continue;
      if (absl::IsResourceExhausted(rank.status())) return;  // enough
      TANDEM_ASSERT_OK(rank);
      ranks.insert(rank->worker());
      ++registered;
    }
  });
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
  int continued = 0;
  for (int h = 0; h < kHandOvers && !HasFailure(); ++h) {
    CopyProcess& before = *primary.load();
    CopyProcess& after = &before == first.get() ? second : *first;
    EXPECT_TRUE(before.AwaitInSync(1));
    EXPECT_TRUE(HandOver(before, after));
    primary = &after;
    EXPECT_TRUE(after.AwaitInSync(1));
    const v1::ReplicaStatus status = after.replica().Status();
    continued += status.links_size() == 1 && status.links(0).continued() ? 1 : 0;
  }
  stop = true;
  for (std::thread& worker : workers) worker.join();
  registers.join();
  EXPECT_EQ(ranks.size(), registered);
  // An earlier primary that had given a rank too late is copied.
  EXPECT_GT(continued, kHandOvers / 2);
  CopyProcess& last = *primary.load();
  EXPECT_EQ(last.replica().Status().placement().handovers(), uint64_t{kHandOvers});
  EXPECT_EQ(last.replica().Status().placement().failovers(), 0u);
  // The follower has the same: it takes over.
  CopyProcess& follower = &last == first.get() ? second : *first;
  last.Kill();
  ASSERT_TRUE(follower.AwaitServing());
  uint64_t pushes = 0;
  for (uint32_t w = 0; w < kWorkers; ++w) {
    pushes += steps[w];
    for (uint64_t row = 0; row < kRows; ++row) {
      const uint64_t counted = steps[w] / kRows + (row < steps[w] % kRows ? 1 : 0);
      ASSERT_EQ(Value(follower, RowOf(w, row)), static_cast<float>(counted)) << w << " " << row;
    }
  }
  // A float counts exactly up to 2^24.
  if (pushes < uint64_t{1} << 24) {
    EXPECT_EQ(Value(follower, kCommonRow), static_cast<float>(pushes));
  }
}

TEST(ReplicaHandOver, AShardThatWasHandedOverHasTwoCopiesAgainAndSurvivesItsNewPrimary) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto a = StartPrimary(documents, 1);
  CopyProcess b(documents);
  ASSERT_TRUE(a->AwaitInSync(1));
  TANDEM_ASSERT_OK((*a)->Push({.step = 0}, {Count(0, 0)}));
  const std::string before = a->replica().Status().self().id();
  ASSERT_TRUE(HandOver(*a, b));
  ASSERT_TRUE(b.AwaitInSync(1));
  EXPECT_EQ(a->replica().Status().failure(), "");
  const v1::ReplicaStatus status = b.replica().Status();
  EXPECT_TRUE(status.links(0).continued());
  EXPECT_EQ(status.placement().in_sync(0).address(), a->address());
  EXPECT_NE(status.placement().in_sync(0).id(), before);
  EXPECT_FALSE(a->replica().handed_over());
  TANDEM_ASSERT_OK(b->Push({.step = 1}, {Count(0, 1)}));
  b.Kill();
  ASSERT_TRUE(a->AwaitServing());
  EXPECT_EQ(a->replica().Status().placement().failovers(), 1u);
  EXPECT_EQ(Value(*a, kCommonRow), 2.0f);
  TANDEM_EXPECT_OK((*a)->Push({.step = 2}, {Count(0, 2)}));
}

TEST(ReplicaHandOver, WithTwoRequiredCopiesPushesGoOnAfterAHandOver) {
  const auto documents = std::make_shared<MemoryDocuments>();
  const auto two = [](ReplicaOptions* options) { options->min_copies = 2; };
  CopyProcess a(documents, two), b(documents, two);
  CopyProcess* primary = nullptr;
  ASSERT_TRUE(
      a.Await([](const v1::ReplicaStatus& status) { return status.placement().in_sync_size() == 1; }));
  primary = a.replica().Status().role() == v1::REPLICA_ROLE_PRIMARY ? &a : &b;
  CopyProcess& follower = primary == &a ? b : a;
  TANDEM_ASSERT_OK((*primary)->CreateTable(Counters(1)));
  ASSERT_TRUE(HandOver(*primary, follower));
  TANDEM_ASSERT_OK(follower->Push({.step = 0}, {Count(0, 0)}));
  EXPECT_TRUE(follower.replica().Status().links(0).continued());
}

// Loses the answers to one method.
class LossyChannel : public rpc::ForwardingChannel {
 public:
  LossyChannel(std::unique_ptr<rpc::Channel> channel, std::string method)
      : ForwardingChannel(std::move(channel)), method_(std::move(method)) {}
  void CallAsync(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                 Done done) override {
    if (!absl::EndsWith(method, method_)) {
      return ForwardingChannel::CallAsync(method, std::move(request), options, std::move(done));
    }
    ForwardingChannel::CallAsync(method, std::move(request), options,
                                 [done = std::move(done)](const absl::StatusOr<Bytes>&) mutable {
                                   std::move(done)(absl::UnavailableError("the answer was lost"));
                                 });
  }

 private:
  const std::string method_;
};

TEST(ReplicaHandOver, APrimaryToWhichNobodySaysThatItsFollowerServesEndsAndIsToComeBack) {
  const auto documents = std::make_shared<MemoryDocuments>();
  CopyProcess a(documents, [](ReplicaOptions* options) {
    options->connect = [](const std::string& address) -> absl::StatusOr<std::unique_ptr<rpc::Channel>> {
      TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, rpc::ConnectGrpc(address));
      return std::make_unique<LossyChannel>(std::move(channel), "TakeOver");
    };
  });
  ASSERT_TRUE(a.AwaitServing());
  CopyProcess b(documents);
  ASSERT_TRUE(a.AwaitInSync(1));
  const absl::Status handed = a.replica().HandOver("", absl::Minutes(1));
  EXPECT_TRUE(absl::IsUnavailable(handed)) << handed;
  const absl::Status end = a.AwaitEnd();
  EXPECT_TRUE(absl::IsCancelled(end)) << end;
  EXPECT_TRUE(a.replica().handed_over());
  EXPECT_FALSE(a.replica().left());
  EXPECT_TRUE(b.AwaitServing());
}

TEST(ReplicaHandOver, APrimaryWhoseFollowerCannotTakeOverGoesOn) {
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

TEST(ReplicaHandOver, AHandOverWhoseCallerIsGoneLooksForNoFollowerAnyMore) {
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

TEST(ReplicaHandOver, AFollowerIsNotAskedToTakeOverForACallerThatIsGone) {
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

TEST(ReplicaHandOver, AHandOverWithoutItsFollowerOrToAnotherPrimaryIsRefusedByName) {
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

TEST(ReplicaHandOver, CopiesThatLeaveAreNotInTheDocumentAndTheLastOneMayNotLeave) {
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
