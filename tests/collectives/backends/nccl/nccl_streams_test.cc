// SPDX-License-Identifier: Apache-2.0
// How operations use CUDA: streams, events, memory, graphs, time-outs.
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tests/collectives/backends/nccl/fake_ranks.h"

namespace tandem::collectives::nccl {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

void* const kLegacy = reinterpret_cast<void*>(1);     // cudaStreamLegacy
void* const kPerThread = reinterpret_cast<void*>(2);  // cudaStreamPerThread

Operation SumAfter(void* stream, std::vector<float>* values) {
  Operation o = Sum(values);
  o.stream = stream;
  return o;
}

bool Done(DeviceWork& work) {
  const absl::StatusOr<bool> done = work.IsDone();
  TANDEM_EXPECT_OK(done.status());
  return done.ok() && *done;
}

TEST(NcclStreamsTest, AnOperationRunsAfterTheStreamThatProducesItsBuffers) {
  FakeWorld world;
  RunFakeRanks(&world, 1, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    cuda::CudaApi* const cuda = me.runtime->cuda();
    void *own, *other;
    cuda->StreamCreateNonBlocking(&own);
    cuda->StreamCreateNonBlocking(&other);
    const auto unrelated = world.QueueKernel(other);
    struct Case {
      void *producer, *given;
    };
    // The legacy default stream, which is the default, also waits for per-thread default streams.
    for (const Case& c : {Case{own, own}, Case{nullptr, nullptr}, Case{kLegacy, nullptr},
                          Case{kPerThread, kPerThread}, Case{kPerThread, nullptr}}) {
      std::vector<float> values(10, 1.0f);
      const auto producer = world.QueueKernel(c.producer);
      TANDEM_ASSERT_OK_AND_ASSIGN(auto work, backend->Enqueue({SumAfter(c.given, &values)}));
      EXPECT_FALSE(Done(*work));
      EXPECT_EQ(cuda->GetLastError(), cuda::kCudaSuccess);  // the question leaves no error behind
      world.Finish(producer);
      EXPECT_TRUE(Done(*work));
    }
    world.Finish(unrelated);
    cuda->StreamDestroy(own);
    cuda->StreamDestroy(other);
  });
}

TEST(NcclStreamsTest, ABatchWaitsForEachStreamOfItsOperations) {
  FakeWorld world;
  RunFakeRanks(&world, 1, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    std::vector<float> a(10, 1.0f), b(10, 1.0f);
    const auto first = world.QueueKernel(kLegacy), second = world.QueueKernel(kPerThread);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto work,
                                backend->Enqueue({SumAfter(kLegacy, &a), SumAfter(kPerThread, &b)}));
    world.Finish(first);
    EXPECT_FALSE(Done(*work));
    world.Finish(second);
    EXPECT_TRUE(Done(*work));
  });
}

TEST(NcclStreamsTest, TheTimeoutCountsFromTheStartAndNotFromTheCall) {
  FakeWorld world;
  cluster::MemoryStore store;
  const auto producer = world.QueueKernel(kPerThread);
  std::thread waiter([&] {
    FakeRank me(&world, &store, 0, 1);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("late"));
    std::vector<float> values(10, 1.0f);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto work, backend->Enqueue({SumAfter(kPerThread, &values)}));
    TANDEM_EXPECT_OK(store.Set("issued", ""));
    TANDEM_EXPECT_OK(work->Wait(absl::Milliseconds(100)));
  });
  TANDEM_ASSERT_OK(store.Get("issued", absl::Seconds(30)));
  {
    // One of two ranks does not come. The first operation has to wait for as long as this takes.
    FakeRank me(&world, &store, 0, 2), absent(&world, &store, 1, 2);
    std::unique_ptr<Backend> other;
    std::thread maker([&] { other = *absent.Make("pair"); });
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("pair"));
    maker.join();
    std::vector<float> values(10, 1.0f);
    Operation sum = SumAfter(kLegacy, &values);
    void* own;
    me.runtime->cuda()->StreamCreateNonBlocking(&own);
    sum.stream = own;
    sum.timeout = absl::Milliseconds(300);
    EXPECT_THAT(backend->Run(sum), StatusIs(absl::StatusCode::kDeadlineExceeded));
    me.runtime->cuda()->StreamDestroy(own);
  }
  world.Finish(producer);
  waiter.join();
  EXPECT_THAT(world.misuse(), ::testing::IsEmpty());
}

TEST(NcclStreamsTest, OperationsReuseTheirEvents) {
  FakeWorld world;
  RunFakeRanks(&world, 1, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    std::vector<float> values(10, 1.0f);
    for (int i = 0; i < 3; ++i) TANDEM_ASSERT_OK(backend->Run(Sum(&values)));
    const int made = world.events_created();
    for (int i = 0; i < 100; ++i) TANDEM_ASSERT_OK(backend->Run(Sum(&values)));
    EXPECT_EQ(world.events_created(), made);
  });
}

TEST(NcclStreamsTest, ABlockingOperationMakesFewCallsOfCuda) {
  FakeWorld world;
  RunFakeRanks(&world, 1, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    std::vector<float> values(10, 1.0f);
    for (int i = 0; i < 3; ++i) TANDEM_ASSERT_OK(backend->Run(Sum(&values)));
    world.TakeCudaCalls();
    constexpr int kOperations = 100;
    for (int i = 0; i < kOperations; ++i) TANDEM_ASSERT_OK(backend->Run(Sum(&values)));
    const std::map<std::string, int> expected = {
        {"PointerGetAttributes", 1},
        {"StreamIsCapturing", 1},  // the checks
        {"GetDevice", 1},
        {"ExchangeCaptureMode", 4},  // two scopes
        {"EventRecord", 2},
        {"StreamWaitEvent", 1},
        {"EventQuery", 1},
    };
    for (const auto& [call, count] : world.TakeCudaCalls()) {
      const auto found = expected.find(call);
      EXPECT_EQ(count, found == expected.end() ? 0 : found->second * kOperations) << call;
    }
  });
}

TEST(NcclStreamsTest, AWaitAsksOneQuestionAPoll) {
  FakeWorld world;
  RunFakeRanks(&world, 1, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    std::vector<float> values(10, 1.0f);
    const auto producer = world.QueueKernel(kPerThread);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto work, backend->Enqueue({SumAfter(kPerThread, &values)}));
    world.TakeCudaCalls();
    std::thread finisher([&] {
      int asked = 0;
      const absl::Time deadline = MonotonicNow() + absl::Seconds(30);
      while (asked < 20 && MonotonicNow() < deadline) asked += world.TakeCudaCalls()["EventQuery"];
      world.TakeCudaCalls();
      world.Finish(producer);
    });
    TANDEM_EXPECT_OK(work->Wait(absl::Seconds(30)));
    finisher.join();
    const std::map<std::string, int> calls = world.TakeCudaCalls();
    for (const auto& [call, count] : calls) {
      if (call == "EventQuery") continue;
      EXPECT_LE(count, 2) << call;
    }
    EXPECT_EQ(me.runtime->cuda()->GetLastError(), cuda::kCudaSuccess);
  });
}

TEST(NcclStreamsTest, MemoryThatIsNotOfThisGpuIsRefused) {
  FakeWorld world;
  RunFakeRanks(&world, 1, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    std::vector<float> host(10, 1.0f), elsewhere(10, 1.0f), managed(10, 1.0f), pinned(10, 1.0f);
    world.SetMemory(host.data(), cuda::MemoryKind::kUnregistered, -2);
    world.SetMemory(elsewhere.data(), cuda::MemoryKind::kDevice, 5);
    world.SetMemory(managed.data(), cuda::MemoryKind::kManaged, 5);
    world.SetMemory(pinned.data(), cuda::MemoryKind::kHost, 5);
    EXPECT_THAT(backend->Run(Sum(&host)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ordinary host memory")));
    Operation into_host = Sum(&managed);
    into_host.out = {host.data(), host.size()};
    EXPECT_THAT(backend->Run(into_host),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the output")));
    EXPECT_THAT(backend->Run(Sum(&elsewhere)),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("GPU 5"), HasSubstr("GPU 0"))));
    Operation gather = OnGpu(OpKind::kAllGather, DType::kF32);
    const Part out{host.data(), host.size()};
    gather.in = {managed.data(), managed.size()};
    gather.outs = absl::MakeConstSpan(&out, 1);
    EXPECT_THAT(backend->Run(gather),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a part of the output")));
    TANDEM_EXPECT_OK(backend->Run(Sum(&managed)));
    TANDEM_EXPECT_OK(backend->Run(Sum(&pinned)));  // nothing is broken
  });
}

TEST(NcclStreamsTest, ACaptureIntoAGraphIsRefusedAndNotDisturbed) {
  FakeWorld world;
  RunFakeRanks(&world, 1, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    std::vector<float> values(10, 1.0f);
    const auto producer = world.QueueKernel(nullptr);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto work, backend->Enqueue({Sum(&values)}));
    world.Capture(kPerThread, true);
    for (void* stream : {kPerThread, kLegacy}) {
      EXPECT_THAT(backend->Run(SumAfter(stream, &values)),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           AllOf(HasSubstr("all_reduce"), HasSubstr("CUDA graph"), HasSubstr("group 'g'"))));
      EXPECT_EQ(me.runtime->cuda()->GetLastError(), cuda::kCudaSuccess);
    }
    EXPECT_FALSE(Done(*work));
    world.Capture(kPerThread, false);
    world.Finish(producer);
    TANDEM_EXPECT_OK(work->Wait(absl::Seconds(30)));
    TANDEM_EXPECT_OK(backend->Run(SumAfter(kPerThread, &values)));
  });
}

TEST(NcclStreamsTest, ASplitThatWaitsForAnOperationDisturbsNoCapture) {
  FakeWorld world;
  RunFakeRanks(&world, 1, [&](FakeRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, me.Make("g"));
    std::vector<float> values(10, 1.0f);
    const auto producer = world.QueueKernel(nullptr);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto work, backend->Enqueue({Sum(&values)}));
    world.Capture(kPerThread, true);
    EXPECT_THAT(backend->Split(0, 0, me.OptionsOf("part", absl::Milliseconds(50))),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("still runs")));
    EXPECT_EQ(me.runtime->cuda()->GetLastError(), cuda::kCudaSuccess);
    world.Capture(kPerThread, false);
    world.Finish(producer);
  });
}

}  // namespace
}  // namespace tandem::collectives::nccl
