// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/cuda/load_cuda.h"
#include "collectives/backends/nccl/dlopen_api.h"
#include "tests/collectives/backends/nccl/fake_ranks.h"

namespace tandem::collectives::nccl {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;

TEST(NcclFaultsTest, ACommunicatorThatIsNeverReadyEndsAtTheDeadline) {
  FakeWorld world;
  world.hang_init = true;
  RunFakeRanks(&world, 2, [&](FakeRank& me) {
    EXPECT_THAT(me.Make("g", absl::Seconds(2)).status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("ncclCommInitRankConfig"), HasSubstr("group 'g'"))));
  });
}

TEST(NcclFaultsTest, ARankZeroThatDoesNotComeIsNamed) {
  FakeWorld world;
  RunFakeRanks(&world, 2, [&](FakeRank& me) {
    if (me.rank == 0) return;
    EXPECT_THAT(me.Make("g", absl::Milliseconds(100)).status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0 did not come")));
  });
}

TEST(NcclFaultsTest, AnAbortEndsAGroupThatIsBeingMade) {
  FakeWorld world;
  cluster::MemoryStore store;
  {
    FakeRank alone(&world, &store, 0, 1), both(&world, &store, 0, 2);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto first, alone.Make("first"));
    // A second group of the same process, whose rank 1 never comes.
    std::thread maker([&] {
      EXPECT_THAT(
          MakeFactory(alone.runtime, 0).make(both.OptionsOf("second")).status(),
          StatusIs(absl::StatusCode::kAborted, AllOf(HasSubstr("group 'first'"), HasSubstr("enough"))));
    });
    while (world.communicators() < 2) std::this_thread::yield();
    first->Abort(absl::AbortedError("enough"));
    maker.join();
  }
  EXPECT_EQ(world.communicators(), 0);
  EXPECT_THAT(world.aborted_together(), Contains(2));
  EXPECT_THAT(world.misuse(), ::testing::IsEmpty());
}

TEST(NcclFaultsTest, AnOperationThatARankMissesTimesOutAndThatRankIsTold) {
  FakeWorld world;
  RunFakeRanks(&world, 2, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    TANDEM_ASSERT_OK_AND_ASSIGN(auto other, me.Make("other"));
    std::vector<float> values(10, 1.0f);
    if (me.rank == 0) {
      EXPECT_THAT(backend->Run(Sum(&values, absl::Milliseconds(100))),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("all_reduce #0")));
      EXPECT_THAT(backend->Run(Sum(&values)), StatusIs(absl::StatusCode::kDeadlineExceeded));
      EXPECT_THAT(other->Run(Sum(&values)),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("group 'g'")));
      // Another thread makes the aborts; until then rank 1 could still complete the operation.
      while (world.communicators() > 2) std::this_thread::yield();
      TANDEM_ASSERT_OK(me.store->Set("timed out", ""));
    } else {
      TANDEM_ASSERT_OK(me.store->Get("timed out", absl::Seconds(30)));
      // Long before its own time-out.
      EXPECT_THAT(backend->Run(Sum(&values)),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0 of group")));
    }
  });
  EXPECT_THAT(world.aborted_together(), Contains(2));  // both groups of a process at once
}

TEST(NcclFaultsTest, AnAsynchronousErrorBreaksTheGroupAndTellsTheOthers) {
  FakeWorld world;
  RunFakeRanks(&world, 2, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    std::vector<float> values(10, 1.0f);
    TANDEM_ASSERT_OK(backend->Run(Sum(&values)));
    // The error of rank 0 would end the operation of a rank that is still in it.
    TANDEM_ASSERT_OK(me.store->Set(absl::StrCat("summed/", me.rank), ""));
    TANDEM_ASSERT_OK(me.store->Wait({"summed/0", "summed/1"}, absl::Seconds(30)));
    if (me.rank == 0) {
      world.FailAsync(0, Result::kRemoteError);
      // The watching thread alone detects the error.
      absl::Status status;
      for (const absl::Time end = absl::Now() + absl::Seconds(30); status.ok() && absl::Now() < end;) {
        status = backend->Enqueue({}).status();
      }
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kUnavailable,
                           AllOf(HasSubstr("rank 0"), HasSubstr("remote process"), HasSubstr("the cable"))));
    } else {
      // This call waits for rank 0, which does not come.
      EXPECT_THAT(backend->Run(Sum(&values)), StatusIs(absl::StatusCode::kUnavailable,
                                                       AllOf(HasSubstr("rank 0"), HasSubstr("the cable"))));
    }
  });
}

TEST(NcclFaultsTest, AnAbortFromAnotherThreadEndsWaits) {
  FakeWorld world;
  RunFakeRanks(&world, 2, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    if (me.rank == 1) {  // does not join in, and must not leave
      TANDEM_ASSERT_OK(me.store->Get("over", absl::Seconds(30)));
      return;
    }
    std::vector<float> values(10, 1.0f);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto work, backend->Enqueue({Sum(&values)}));
    std::thread aborter([&] { backend->Abort(absl::AbortedError("enough")); });
    EXPECT_THAT(work->Wait(absl::Seconds(30)), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
    aborter.join();
    backend->Abort(absl::AbortedError("again"));
    EXPECT_THAT(work->IsDone(), StatusIs(absl::StatusCode::kAborted));
    EXPECT_THAT(work->OrderStream(nullptr), StatusIs(absl::StatusCode::kAborted));
    TANDEM_ASSERT_OK(me.store->Set("over", ""));
    backend.reset();
    EXPECT_THAT(work->IsDone(), StatusIs(absl::StatusCode::kAborted));  // it outlives the group
  });
}

TEST(NcclFaultsTest, WhatIsMissingIsNamed) {
  BackendOptions options;
  FakeWorld old, none, ok;
  old.version = 21003;
  none.devices = 0;
  auto viable = [&](FakeWorld* world) {
    return MakeFactory(std::make_shared<Runtime>(world->nccl(), world->cuda()), absl::nullopt)
        .viable(options);
  };
  EXPECT_THAT(viable(&old),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("NCCL 2.10.3 is too old")));
  EXPECT_THAT(viable(&none), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no CUDA device")));
  TANDEM_EXPECT_OK(viable(&ok));
  EXPECT_THAT(
      LoadNccl({"libnccl-that-nobody-has.so.2"}),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("libnccl-that-nobody-has.so.2 not found")));
  EXPECT_THAT(LoadNccl({"libm.so.6"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no function ncclGetVersion")));
  EXPECT_THAT(cuda::LoadCuda({"libm.so.6"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no function cudaGetDeviceCount")));
}

TEST(NcclFaultsTest, AnOldSplitIsUnimplementedAndAnotherGpuIsRefused) {
  FakeWorld world;
  world.has_split = false;
  RunFakeRanks(&world, 1, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    EXPECT_FALSE(backend->CanSplit());
    EXPECT_THAT(backend->Split(0, 0, me.OptionsOf("part")),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("2.18")));
    std::vector<float> values(10, 1.0f);
    Operation o = Sum(&values);
    o.device.index = 3;
    EXPECT_THAT(backend->Run(o), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("GPU 3")));
    TANDEM_EXPECT_OK(backend->Run(Sum(&values)));  // nothing is broken
  });
}

TEST(NcclFaultsTest, EachLibraryIsGivenTheConfigurationThatItKnows) {
  EXPECT_EQ(ConfigFor(21403).size, 24u);
  EXPECT_EQ(ConfigFor(21403).version, 21400u);
  EXPECT_EQ(ConfigFor(21713).size, 40u);
  EXPECT_EQ(ConfigFor(22809).size, 48u);
  EXPECT_EQ(ConfigFor(22809).version, 21800u);
}

TEST(NcclFaultsTest, TheRealLibraryWithoutAGpuSaysSo) {
  auto apis = LoadApis();
  if (!apis.ok()) GTEST_SKIP() << apis.status();
  int version = 0, devices = 0;
  EXPECT_EQ(apis->nccl->GetVersion(&version), Result::kSuccess);
  EXPECT_GE(version, kOldestVersion);
  if (apis->cuda->GetDeviceCount(&devices) == cuda::kCudaSuccess)
    GTEST_SKIP() << "there are " << devices << " GPUs";
  EXPECT_THAT(NcclBackendFactory().viable(BackendOptions()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no CUDA device")));
}

}  // namespace
}  // namespace tandem::collectives::nccl
