// SPDX-License-Identifier: Apache-2.0
// Process groups with one backend for CPU tensors and NCCL for GPU tensors.
#include <thread>
#include <vector>

#include "collectives/process_group.h"
#include "tests/collectives/backends/nccl/fake_ranks.h"

namespace tandem::collectives::nccl {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct GroupRank {
  int rank;
  cluster::MemoryStore* store;
  std::shared_ptr<Runtime> runtime;
  std::unique_ptr<ProcessGroup> group;
};

TensorView GpuView(std::vector<float>* values) {
  return TensorView(values->data(), values->size(), DType::kF32, Device::Cuda(0));
}

// Runs `body` on ranks that are threads, in a group "cpu:auto,cuda:nccl".
void RunGroup(FakeWorld* world, int world_size, const std::function<void(GroupRank&)>& body,
              DebugLevel debug = DebugLevel::kOff) {
  cluster::MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      GroupRank me{rank, &store};
      me.runtime = std::make_shared<Runtime>(world->nccl(), world->cuda(),
                                             Runtime::Options{.watch_interval = absl::Milliseconds(5)});
      ProcessGroupOptions options;
      options.backend = "cpu:auto,cuda:nccl";
      options.rank = rank;
      options.world_size = world_size;
      options.timeout = absl::Seconds(30);
      options.debug = debug;
      options.interface_address = "127.0.0.1";
      options.extra_backends = {MakeFactory(me.runtime, 0)};
      TANDEM_ASSERT_OK_AND_ASSIGN(me.group, InitProcessGroup(&store, options));
      body(me);
      me.group.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world->communicators(), 0);
  EXPECT_THAT(world->misuse(), ::testing::IsEmpty());
}

TEST(NcclGroupTest, TensorsOfBothDevicesTakeTheirOwnBackend) {
  FakeWorld world;
  RunGroup(&world, 2, [&](GroupRank& me) {
    EXPECT_EQ(me.group->backend(Device::Cuda(0)), "nccl");
    EXPECT_NE(me.group->backend(Device::Cpu()), "nccl");
    std::vector<float> gpu(5, 1.0f), cpu(5, 2.0f);
    const Work on_gpu = me.group->AllReduce(GpuView(&gpu), {.async = true});
    const Work on_cpu = me.group->AllReduce(absl::MakeSpan(cpu), {.async = true});
    TANDEM_ASSERT_OK(on_cpu.Wait());
    TANDEM_ASSERT_OK(on_gpu.Wait());
    EXPECT_EQ(gpu, std::vector<float>(5, 2.0f));
    EXPECT_EQ(cpu, std::vector<float>(5, 4.0f));
    EXPECT_THAT(me.group->AllReduceCoalesced({GpuView(&gpu), absl::MakeSpan(cpu)}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one kind of device")));
    TANDEM_EXPECT_OK(me.group->Barrier().Wait());
  });
}

TEST(NcclGroupTest, ACoalescedCallIsOneGroupOfNccl) {
  FakeWorld world;
  RunGroup(&world, 1, [&](GroupRank& me) {
    std::vector<float> a(3, 1.0f), b(5, 2.0f), c(7, 3.0f);
    TANDEM_ASSERT_OK(me.group
                         ->AllReduceCoalesced({GpuView(&a), GpuView(&b), GpuView(&c)},
                                              {.op = ReduceOp::kPremulSum, .factor = 2})
                         .Wait());
    EXPECT_EQ(world.groups(), 1);
    EXPECT_EQ(c, std::vector<float>(7, 6.0f));
    TANDEM_ASSERT_OK(me.group->BroadcastCoalesced({GpuView(&a), GpuView(&b)}, {.async = true}).Wait());
    EXPECT_EQ(world.groups(), 2);
  });
}

TEST(NcclGroupTest, SubgroupsAreSplitFromTheGroupsCommunicator) {
  FakeWorld world;
  RunGroup(&world, 3, [&](GroupRank& me) {
    std::vector<float> values(4, 1.0f + me.rank);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto pair, me.group->NewGroup({2, 0}));
    ASSERT_EQ(pair == nullptr, me.rank == 1);
    if (pair != nullptr) {
      EXPECT_EQ(pair->rank(), me.rank == 2 ? 0 : 1);
      TANDEM_ASSERT_OK(pair->Broadcast(GpuView(&values)).Wait());  // from rank 0 of the pair
      EXPECT_EQ(values[0], 3.0f);
      std::vector<float> cpu(2, 1.0f);
      TANDEM_ASSERT_OK(pair->AllReduce(absl::MakeSpan(cpu)).Wait());
      EXPECT_EQ(cpu[0], 2.0f);
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(auto single, me.group->NewSubgroups(1));
    TANDEM_ASSERT_OK(single->AllReduce(GpuView(&values)).Wait());
    TANDEM_ASSERT_OK_AND_ASSIGN(auto colored, me.group->Split(me.rank == 0 ? -1 : 7, -me.rank));
    ASSERT_EQ(colored == nullptr, me.rank == 0);
    if (colored != nullptr) {
      std::vector<float> ones(4, 1.0f);
      TANDEM_ASSERT_OK(colored->AllReduce(GpuView(&ones)).Wait());
      EXPECT_EQ(ones[3], 2.0f);
      TANDEM_ASSERT_OK_AND_ASSIGN(auto again, colored->NewGroup({1, 0}));  // a subgroup of a subgroup
      TANDEM_ASSERT_OK(again->AllReduce(GpuView(&ones)).Wait());
      EXPECT_EQ(ones[3], 4.0f);
    }
  });
  EXPECT_EQ(world.splits(), 4);
}

TEST(NcclGroupTest, SubgroupsOfACheckedGroupAreSplitAndChecked) {
  FakeWorld world;
  auto body = [&](GroupRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto pair, me.group->NewGroup({1, 0}));
    std::vector<float> ones(4 + me.rank, 1.0f);
    EXPECT_THAT(pair->AllReduce(GpuView(&ones)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ranks of group")));
  };
  RunGroup(&world, 2, body, DebugLevel::kDetail);
  EXPECT_EQ(world.splits(), 1);
}

TEST(NcclGroupTest, SubgroupsConnectAfreshIfNcclHasNoSplit) {
  FakeWorld world;
  world.has_split = false;
  RunGroup(&world, 3, [&](GroupRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto pair, me.group->NewGroup({2, 0}));
    if (pair == nullptr) return;
    std::vector<float> ones(4, 1.0f);
    TANDEM_ASSERT_OK(pair->AllReduce(GpuView(&ones)).Wait());
    EXPECT_EQ(ones[3], 2.0f);
  });
  EXPECT_EQ(world.splits(), 0);
}

TEST(NcclGroupTest, DestroyWaitsForItsOperationsAndAbortsNoOtherGroup) {
  FakeWorld world;
  RunGroup(&world, 1, [&](GroupRank& me) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto other, me.group->NewGroup({0}));
    std::vector<float> values(4, 1.0f);
    const auto producer = world.QueueKernel(nullptr);
    const Work work = other->AllReduce(GpuView(&values), {.async = true});
    std::thread destroyer([&] { other->Destroy(); });
    while (other->is_initialized()) std::this_thread::yield();
    // Longer than the 2 s after which a CPU backend is aborted: GPU work may be queued for any time.
    EXPECT_THAT(work.Wait(absl::Milliseconds(2500)), StatusIs(absl::StatusCode::kDeadlineExceeded));
    world.Finish(producer);
    destroyer.join();
    TANDEM_EXPECT_OK(work.Wait());
    TANDEM_EXPECT_OK(me.group->AllReduce(GpuView(&values)).Wait());
  });
  EXPECT_THAT(world.aborted_together(), ::testing::IsEmpty());
}

TEST(NcclGroupTest, CallsTakeTheStreamThatProducesTheirTensors) {
  FakeWorld world;
  RunGroup(&world, 2, [&](GroupRank& me) {
    void* stream;
    me.runtime->cuda()->StreamCreateNonBlocking(&stream);
    std::vector<float> values(4, 1.0f), two(2), received(4);
    std::vector<Work> works;
    const auto producer = world.QueueKernel(stream);
    works.push_back(me.group->AllReduce(GpuView(&values), {.async = true, .stream = stream}));
    works.push_back(me.group->Broadcast(GpuView(&values), {.async = true, .stream = stream}));
    works.push_back(
        me.group->ReduceScatter(GpuView(&values), GpuView(&two), {.async = true, .stream = stream}));
    works.push_back(
        me.group->AllReduceCoalesced({GpuView(&values), GpuView(&two)}, {.async = true, .stream = stream}));
    works.push_back(me.rank == 0 ? me.group->Isend(GpuView(&values), 1, {.stream = stream})
                                 : me.group->Irecv(GpuView(&received), 0, {.stream = stream}));
    for (const Work& work : works) EXPECT_FALSE(work.IsCompleted());
    world.Finish(producer);
    for (const Work& work : works) TANDEM_EXPECT_OK(work.Wait());
    me.runtime->cuda()->StreamDestroy(stream);
  });
}

// A backend for GPU tensors that records the time-outs of its operations.
class TimeoutRecorder final : public Backend {
 public:
  explicit TimeoutRecorder(std::vector<absl::Duration>* timeouts) : timeouts_(timeouts) {}
  absl::string_view name() const override { return "recorder"; }
  absl::Status Supports(const Operation&) const override { return absl::OkStatus(); }
  absl::Status Run(const Operation& operation) override {
    timeouts_->push_back(operation.timeout);
    return absl::OkStatus();
  }
  void StartPointToPoint(const Operation&, Done done) override { done(0); }
  void Abort(const absl::Status&) override {}

 private:
  std::vector<absl::Duration>* const timeouts_;
};

TEST(NcclGroupTest, OperationsOnGpusHaveTheTimeoutOfTorch) {
  std::vector<absl::Duration> timeouts;
  BackendFactory factory;
  factory.name = "recorder";
  factory.device = Device::Kind::kCuda;
  factory.make = [&](const BackendOptions&) -> absl::StatusOr<std::unique_ptr<Backend>> {
    return std::make_unique<TimeoutRecorder>(&timeouts);
  };
  ProcessGroupOptions options;
  options.backend = "cpu:auto,cuda:recorder";
  options.rank = 0;
  options.world_size = 1;
  options.extra_backends = {factory};
  std::vector<float> values(4, 1.0f);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto group, InitProcessGroup(nullptr, options));
  TANDEM_EXPECT_OK(group->AllReduce(GpuView(&values)).Wait());
  TANDEM_EXPECT_OK(group->AllReduce(GpuView(&values), {.timeout = absl::Seconds(7)}).Wait());
  options.cuda_timeout = absl::Seconds(90);
  TANDEM_ASSERT_OK_AND_ASSIGN(group, InitProcessGroup(nullptr, options));
  TANDEM_EXPECT_OK(group->AllReduce(GpuView(&values)).Wait());
  EXPECT_THAT(timeouts, ElementsAre(absl::Minutes(10), absl::Seconds(7), absl::Seconds(90)));
}

TEST(NcclGroupTest, RegisteredBuffersServeOperationsUntilTheyAreDeregistered) {
  FakeWorld world;
  RunGroup(&world, 2, [&](GroupRank& me) {
    std::vector<float> values(10, 1.0f), other(10, 1.0f);
    TANDEM_ASSERT_OK(me.group->RegisterBuffer(GpuView(&values)));
    TANDEM_ASSERT_OK(me.group->RegisterBuffer(GpuView(&other)));
    EXPECT_THAT(me.group->RegisterBuffer(GpuView(&values)), StatusIs(absl::StatusCode::kAlreadyExists));
    TANDEM_ASSERT_OK(me.group->AllReduce(GpuView(&values)).Wait());
    EXPECT_EQ(values, std::vector<float>(10, 2.0f));
    TANDEM_ASSERT_OK(me.group->Barrier().Wait());
    EXPECT_EQ(world.registered(), 4);
    TANDEM_ASSERT_OK(me.group->Barrier().Wait());
    TANDEM_ASSERT_OK(me.group->DeregisterBuffer(GpuView(&values)));
    EXPECT_THAT(me.group->DeregisterBuffer(GpuView(&values)), StatusIs(absl::StatusCode::kNotFound));
    TANDEM_ASSERT_OK(me.group->Barrier().Wait());
    EXPECT_EQ(world.registered(), 2);  // the others go with the group
    TANDEM_ASSERT_OK(me.group->Barrier().Wait());
    TANDEM_ASSERT_OK(me.group->RegisterBuffer(GpuView(&values)));
    TANDEM_ASSERT_OK(me.group->Barrier().Wait());
  });
}

TEST(NcclGroupTest, BuffersThatCannotBeRegisteredAreRefusedByNameAndTheGroupGoesOn) {
  FakeWorld world;
  RunGroup(
      &world, 2,
      [&](GroupRank& me) {
        std::vector<float> values(10, 1.0f), host(10, 1.0f), none;
        world.SetMemory(host.data(), cuda::MemoryKind::kUnregistered, -2);
        EXPECT_THAT(me.group->RegisterBuffer(absl::MakeSpan(values)),
                    StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("does not register buffers")));
        EXPECT_THAT(
            me.group->RegisterBuffer(GpuView(&host)),
            StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the buffer is ordinary host memory")));
        EXPECT_THAT(me.group->RegisterBuffer(GpuView(&none)),
                    StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
        TensorView elsewhere = GpuView(&values);
        elsewhere.device.index = 3;
        EXPECT_THAT(me.group->RegisterBuffer(elsewhere),
                    StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("GPU 3")));
        TANDEM_EXPECT_OK(me.group->AllReduce(GpuView(&values)).Wait());
      },
      DebugLevel::kDetail);
}

TEST(NcclGroupTest, ALibraryWithoutRegistrationAndOneThatRefusesAreNamed) {
  FakeWorld old, refusing;
  old.has_register = false;
  refusing.fail_register = true;
  for (FakeWorld* world : {&old, &refusing}) {
    RunGroup(world, 1, [&](GroupRank& me) {
      std::vector<float> values(10, 1.0f);
      const absl::Status status = me.group->RegisterBuffer(GpuView(&values));
      if (world == &old) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("2.19 or later")));
      } else {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ncclCommRegister")));
      }
      EXPECT_THAT(me.group->DeregisterBuffer(GpuView(&values)), StatusIs(absl::StatusCode::kNotFound));
      TANDEM_EXPECT_OK(me.group->AllReduce(GpuView(&values)).Wait());
      me.group->Destroy();
      EXPECT_THAT(me.group->RegisterBuffer(GpuView(&values)), StatusIs(absl::StatusCode::kAborted));
    });
  }
}

}  // namespace
}  // namespace tandem::collectives::nccl
