// SPDX-License-Identifier: Apache-2.0
// Tests that processes of an old epoch are refused.

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/environment.h"
#include "cluster/membership/job_monitor.h"
#include "cluster/store/fenced_store.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/store_server.h"
#include "collectives/process_group.h"
#include "rpc/security/epoch_gate.h"
#include "tests/cluster/rendezvous/cuttable_store.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_key.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

ProcessGroupOptions At(int64_t epoch, int rank, int world_size) {
  ProcessGroupOptions options;
  options.epoch = epoch;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = absl::Seconds(30);
  return options;
}

TEST(EpochTest, AnOldEpochIsRefusedByNameAndANewOneGoesOn) {
  cluster::MemoryStore store;
  TANDEM_ASSERT_OK(cluster::EnterEpoch(&store, 5, "worker/0"));
  TANDEM_ASSERT_OK(cluster::EnterEpoch(&store, 5, "worker/1"));
  EXPECT_THAT(cluster::EnterEpoch(&store, 4, "worker/3"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("worker/3 belongs to epoch 4; the job is at epoch 5")));
  TANDEM_ASSERT_OK(cluster::EnterEpoch(&store, 6, "worker/0"));
  TANDEM_ASSERT_OK(store.Set("job/epoch", "many"));
  EXPECT_THAT(cluster::EnterEpoch(&store, 6, "worker/0"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("many")));
}

TEST(EpochTest, AGroupOfAnOldEpochFailsAtOnce) {
  cluster::MemoryStore store;
  TANDEM_ASSERT_OK(cluster::EnterEpoch(&store, 5, "launcher"));
  const absl::Time start = absl::Now();
  EXPECT_THAT(InitProcessGroup(&store, At(4, 3, 4)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("worker/3 belongs to epoch 4"), HasSubstr("epoch 5"))));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(EpochTest, AGroupThatWaitsForPeersHearsThatItsEpochIsOver) {
  cluster::MemoryStore store;
  const absl::Time start = absl::Now();
  std::thread waits([&] {
    EXPECT_THAT(InitProcessGroup(&store, At(4, 0, 2)).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the job is at epoch 5")));
  });
  TANDEM_ASSERT_OK(store.Wait({"job/epoch"}, absl::Seconds(20)));
  TANDEM_ASSERT_OK(cluster::EnterEpoch(&store, 5, "launcher"));
  waits.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

TEST(EpochTest, AWaitEndsWhenItIsNoLongerWanted) {
  cluster::MemoryStore store;
  ProcessGroupOptions options = At(0, 0, 2);
  options.should_continue = [] { return absl::AbortedError("epoch 7 is over: node b has left"); };
  EXPECT_THAT(InitProcessGroup(&store, options).status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("node b has left")));
}

TEST(EpochTest, NothingIsChangedForARoundThatIsNoLongerWanted) {
  cluster::MemoryStore memory;
  bool wanted = true;
  cluster::FencedStore fenced(std::make_shared<cluster::CuttableStore>(&memory), 4, "worker/0", [&] {
    return wanted ? absl::OkStatus() : absl::AbortedError("epoch 4 is over");
  });
  TANDEM_EXPECT_OK(fenced.Set("a", "1"));
  wanted = false;
  EXPECT_THAT(fenced.Set("a", "2"), StatusIs(absl::StatusCode::kAborted, HasSubstr("epoch 4 is over")));
  EXPECT_EQ(memory.Get("a", absl::ZeroDuration()).value(), "1");
}

TEST(EpochTest, AStoreThatDidNotAnswerIsNotAskedAgainWhereItsRoundMayBeOver) {
  cluster::MemoryStore memory;
  const auto base = std::make_shared<cluster::CuttableStore>(&memory);
  cluster::FencedStore fenced(base, 4, "worker/0", [] { return absl::OkStatus(); });
  cluster::FencedStore alone(base, 4, "worker/0", nullptr);
  base->Cut();
  for (cluster::FencedStore* store : {&fenced, &alone})
    EXPECT_THAT(store->Set("a", "1"), StatusIs(absl::StatusCode::kUnavailable));
  base->Mend();
  EXPECT_THAT(fenced.Set("a", "2"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not asked again")));
  TANDEM_EXPECT_OK(alone.Set("a", "3"));
}

TEST(EpochTest, TheStoreOfALaterRoundDoesNotTakeAProcessOfAnEarlierOneForAMember) {
  const auto gate = std::make_shared<rpc::EpochGate>(
      tandem::testing::WithTestKey({.run_id = "job7", .member = "the store"}));
  const auto server = cluster::StoreServer::Start("127.0.0.1:0", Clock::Real(), gate).value();
  cluster::Environment env;
  env.store = absl::StrCat("127.0.0.1:", server->port());
  env.run_id = "job7";
  env.rank = 3;
  env.world_size = 4;
  env.epoch = 4;
  gate->Enter(4);
  const auto old = cluster::OpenStore(env, absl::Seconds(30)).value();
  TANDEM_EXPECT_OK(old->store()->Set("k", "here"));
  gate->Enter(5);
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("worker/3 belongs to epoch 4; the job is at epoch 5, says the store"));
  EXPECT_THAT(old->store()->Set("k", "elsewhere"), refused);
  EXPECT_THAT(cluster::OpenStore(env, absl::Seconds(30)).status(), refused);
  EXPECT_THAT(
      cluster::JobMonitor::Start(old->channel(), {.member = "worker/3"}, [](const cluster::JobState&) {})
          .status(),
      refused);
  EXPECT_EQ(server->store()->Get("k", absl::ZeroDuration()).value(), "here");
  EXPECT_TRUE(server->membership()->Members().empty());
}

TEST(EpochTest, EpochsOfOneStoreDoNotMeet) {
  cluster::MemoryStore store;
  for (int64_t epoch = 1; epoch <= 2; ++epoch) {
    std::unique_ptr<ProcessGroup> groups[2];
    std::thread other([&] { groups[1] = InitProcessGroup(&store, At(epoch, 1, 2)).value(); });
    groups[0] = InitProcessGroup(&store, At(epoch, 0, 2)).value();
    other.join();
    std::thread leaves([&] { groups[1].reset(); });
    groups[0].reset();
    leaves.join();
  }
}

}  // namespace
}  // namespace tandem::collectives
