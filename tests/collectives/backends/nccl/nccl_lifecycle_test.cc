// SPDX-License-Identifier: Apache-2.0
// How groups are made and left, alone and next to other groups of the process.
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "cluster/store/forwarding_store.h"
#include "tests/collectives/backends/nccl/fake_ranks.h"

namespace tandem::collectives::nccl {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NcclLifecycleTest, AGroupThatCannotLeaveIsAbortedAlone) {
  FakeWorld world;
  RunFakeRanks(&world, 1, [&](FakeRank& me) {
    BackendOptions options = me.OptionsOf("leaver");
    options.timeout = absl::Milliseconds(50);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto leaver, MakeFactory(me.runtime, 0).make(options));
    TANDEM_ASSERT_OK_AND_ASSIGN(auto other, me.Make("other"));
    world.HangFinalize(true);
    leaver.reset();
    world.HangFinalize(false);
    std::vector<float> values(10, 1.0f);
    TANDEM_EXPECT_OK(other->Run(Sum(&values)));
  });
  EXPECT_THAT(world.aborted_together(), ElementsAre(1));
}

TEST(NcclLifecycleTest, LeavingIsBoundedIfDestroyHangs) {
  FakeWorld world;
  RunFakeRanks(&world, 1, [&](FakeRank& me) {
    BackendOptions options = me.OptionsOf("g");
    options.timeout = absl::Seconds(3);  // enough to finalize on a busy machine
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, MakeFactory(me.runtime, 0).make(options));
    TANDEM_ASSERT_OK_AND_ASSIGN(auto other, me.Make("other"));
    world.HangDestroy(true);
    backend.reset();  // returns although ncclCommDestroy does not
    EXPECT_EQ(world.communicators(), 2);
    std::vector<float> values(10, 1.0f);
    TANDEM_EXPECT_OK(other->Run(Sum(&values)));
    world.HangDestroy(false);
    while (world.streams() > 1) std::this_thread::yield();  // what was left behind ends
  });
}

TEST(NcclLifecycleTest, AGroupThatCannotBeMadeLeavesOthersAlone) {
  FakeWorld world;
  RunFakeRanks(&world, 2, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto good, me.Make("good"));
    if (me.rank == 0) {  // rank 1 never comes
      EXPECT_THAT(me.Make("bad", absl::Milliseconds(50)).status(),
                  StatusIs(absl::StatusCode::kDeadlineExceeded));
    }
    std::vector<float> values(10, 1.0f);
    TANDEM_EXPECT_OK(good->Run(Sum(&values)));
  });
}

TEST(NcclLifecycleTest, ASplitThatARankMissesEndsAtItsDeadline) {
  FakeWorld world;
  RunFakeRanks(&world, 2, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto parent, me.Make("g"));
    if (me.rank == 1) {  // does not join in, and must not leave
      TANDEM_ASSERT_OK(me.store->Get("over", absl::Seconds(30)));
      return;
    }
    EXPECT_THAT(
        parent->Split(0, 0, me.OptionsOf("part", absl::Milliseconds(50))),
        StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("ncclCommSplit on rank 0 of group 'g'")));
    parent.reset();
    TANDEM_ASSERT_OK(me.store->Set("over", ""));
  });
}

TEST(NcclLifecycleTest, ASplitThatIsNotTakenIsLeft) {
  FakeWorld world;
  RunFakeRanks(&world, 2, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto parent, me.Make("g"));
    TANDEM_ASSERT_OK(parent->Split(0, me.rank, me.OptionsOf("part")).status());
    std::vector<float> values(10, 1.0f);
    TANDEM_EXPECT_OK(parent->Run(Sum(&values)));
  });
  EXPECT_THAT(world.aborted_together(), ::testing::IsEmpty());
}

TEST(NcclLifecycleTest, AnAbortBeforeTheCommunicatorExistsLeaksNone) {
  FakeWorld world;
  cluster::MemoryStore store;
  {
    FakeRank me(&world, &store, 0, 1);
    auto runtime = std::make_shared<Runtime>(
        world.nccl(), world.cuda(),
        Runtime::Options{.watch_interval = absl::Milliseconds(5), .call_timeout = absl::Milliseconds(20)});
    const BackendFactory factory = MakeFactory(runtime, 0);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto first, factory.make(me.OptionsOf("first")));
    // While the second communicator is being made, the first group is aborted, and the abort does not wait.
    world.on_init = [&] {
      first->Abort(absl::AbortedError("enough"));
      while (world.communicators() > 0) std::this_thread::yield();
    };
    EXPECT_THAT(factory.make(me.OptionsOf("second")),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
    EXPECT_EQ(world.communicators(), 0);
  }
  EXPECT_THAT(world.misuse(), ::testing::IsEmpty());
}

TEST(NcclLifecycleTest, ARankMakesAContextOnItsOwnGpuOnly) {
  FakeWorld world;
  cluster::MemoryStore store;
  std::thread([&] {
    FakeRank me(&world, &store, 0, 1);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, MakeFactory(me.runtime, 3).make(me.OptionsOf("g")));
    std::vector<float> values(10, 1.0f);
    Operation sum = Sum(&values);
    sum.device.index = 3;
    TANDEM_EXPECT_OK(backend->Run(sum));
    const TensorView buffer(values.data(), values.size(), DType::kF32, Device::Cuda(3));
    TANDEM_EXPECT_OK(backend->RegisterBuffer(buffer));
    TANDEM_EXPECT_OK(backend->DeregisterBuffer(buffer));
    backend.reset();
    EXPECT_THAT(world.contexts(), ElementsAre(3));
  }).join();
}

TEST(NcclLifecycleTest, AThreadKeepsItsDeviceIfThatHasAContext) {
  FakeWorld world;
  cluster::MemoryStore store;
  std::thread([&] {
    FakeRank me(&world, &store, 0, 1);
    me.runtime->cuda()->SetDevice(1);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, MakeFactory(me.runtime, 3).make(me.OptionsOf("g")));
    int device = -1;
    me.runtime->cuda()->GetDevice(&device);
    EXPECT_EQ(device, 1);
  }).join();
}

// A store whose server is gone: each call blocks until the test releases it.
class SilentStore final : public cluster::ForwardingStore {
 public:
  explicit SilentStore(cluster::Store* base) : cluster::ForwardingStore(base) {}
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    if (!silent) return cluster::ForwardingStore::Get(key, timeout);
    if (!asked.HasBeenNotified()) asked.Notify();
    released.WaitForNotification();
    ++calls;
    return absl::UnavailableError("the store is gone");
  }
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    ++calls;
    return cluster::ForwardingStore::CompareSet(key, expected, desired);
  }
  std::atomic<bool> silent{false};
  std::atomic<int> calls{0};
  absl::Notification asked, released;
};

TEST(NcclLifecycleTest, ASilentStoreDelaysNeitherErrorsNorAborts) {
  FakeWorld world;
  RunFakeRanks(&world, 2, [&](FakeRank& me) {
    BackendOptions options = me.OptionsOf("g");
    SilentStore silent(options.store);
    options.store = &silent;
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, MakeFactory(me.runtime, 0).make(options));
    TANDEM_ASSERT_OK(me.store->Set(absl::StrCat("made", me.rank), ""));
    TANDEM_ASSERT_OK(me.store->Wait({"made0", "made1"}, absl::Seconds(30)));
    if (me.rank == 1) {  // does not join in
      TANDEM_ASSERT_OK(me.store->Get("over", absl::Seconds(30)));
      return;
    }
    silent.silent = true;
    std::vector<float> values(10, 1.0f);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto work, backend->Enqueue({Sum(&values)}));
    silent.asked.WaitForNotification();  // from now on a call of the store blocks
    world.FailAsync(0, Result::kRemoteError);
    EXPECT_THAT(work->Wait(absl::Seconds(30)), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("remote")));
    while (world.communicators() > 1) std::this_thread::yield();  // the abort does not wait either
    silent.released.Notify();
    work.reset();
    backend.reset();
    EXPECT_EQ(silent.calls, 1);  // nothing is written to a store that is known to be gone
    TANDEM_ASSERT_OK(me.store->Set("over", ""));
  });
}

}  // namespace
}  // namespace tandem::collectives::nccl
