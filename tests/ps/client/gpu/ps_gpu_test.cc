// SPDX-License-Identifier: Apache-2.0
// Pulls into and pushes from the memory of a real GPU; reports itself as skipped if there is none.

#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/cuda/load_cuda.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::cuda::kCudaSuccess;

constexpr uint32_t kDim = 64;

// An array of floats on GPU 0.
class DeviceArray {
 public:
  DeviceArray(cuda::CudaApi* cuda, size_t floats) : cuda_(cuda), floats_(floats) {
    void* memory = nullptr;
    EXPECT_EQ(cuda_->Malloc(&memory, floats * sizeof(float)), kCudaSuccess);
    data_ = static_cast<float*>(memory);
  }
  ~DeviceArray() { cuda_->Free(data_); }
  float* data() const { return data_; }
  // These wait for all work of the default stream: memory of std::vector is not pinned.
  std::vector<float> Read() const {
    std::vector<float> values(floats_);
    EXPECT_EQ(cuda_->MemcpyAsync(values.data(), data_, floats_ * sizeof(float), nullptr), kCudaSuccess);
    Wait(nullptr);
    return values;
  }
  void Write(const std::vector<float>& values) {
    EXPECT_EQ(cuda_->MemcpyAsync(data_, values.data(), floats_ * sizeof(float), nullptr), kCudaSuccess);
    Wait(nullptr);
  }
  void Wait(void* stream) const {
    void* event = nullptr;
    ASSERT_EQ(cuda_->EventCreate(&event), kCudaSuccess);
    ASSERT_EQ(cuda_->EventRecord(event, stream), kCudaSuccess);
    const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
    int state;
    while ((state = cuda_->EventQuery(event)) == cuda::kCudaNotReady && MonotonicNow() < deadline) {
      absl::SleepFor(absl::Microseconds(50));
    }
    EXPECT_EQ(state, kCudaSuccess);
    cuda_->EventDestroy(event);
  }

 private:
  cuda::CudaApi* const cuda_;
  const size_t floats_;
  float* data_ = nullptr;
};

class PsGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<cuda::Loaded<cuda::CudaApi>> loaded = cuda::LoadCuda();
    if (!loaded.ok()) GTEST_SKIP() << loaded.status();
    int count = 0;
    const int error = loaded->api->GetDeviceCount(&count);
    if (error != kCudaSuccess || count == 0) {
      GTEST_SKIP() << "no CUDA device: " << loaded->api->GetErrorString(error);
    }
    cuda_ = std::move(loaded->api);
    ASSERT_EQ(cuda_->SetDevice(0), kCudaSuccess);
  }
  std::unique_ptr<Client> Connect(uint64_t pinned_bytes) {
    absl::StatusOr<std::unique_ptr<Client>> client =
        Client::Connect(cluster_.Channels(), {.pinned_bytes = pinned_bytes});
    TANDEM_EXPECT_OK(client);
    for (const char* name : {"on_gpu", "model"}) {
      v1::TableConfig config = EmbeddingTable(name, kDim, Sgd(1.0f), Uniform(-1, 1));
      config.set_seed(7);
      *config.mutable_update_mode() = Async();
      config.set_num_workers(1);
      TANDEM_EXPECT_OK((*client)->CreateTable(config));
    }
    return *std::move(client);
  }
  static std::vector<PullPart> Pulls(const std::vector<uint64_t>& ids, float* host, float* gpu,
                                     std::optional<void*> stream) {
    return {{.table = "model", .ids = ids, .rows = host},
            {.table = "on_gpu", .ids = ids, .rows = gpu, .device = Device::Cuda(0), .stream = stream}};
  }
  static std::vector<PushPart> Pushes(const std::vector<uint64_t>& ids, const float* host, const float* gpu,
                                      std::optional<void*> stream) {
    return {{.table = "model", .ids = ids, .gradients = host},
            {.table = "on_gpu", .ids = ids, .gradients = gpu, .device = Device::Cuda(0), .stream = stream}};
  }

  std::shared_ptr<cuda::CudaApi> cuda_;
  testing::PsCluster cluster_{2};
};

// The model: the same calls with arrays in host memory, on a table that begins with the same rows. The small
// pinned memory makes the larger calls go through it in pieces.
TEST_F(PsGpuTest, PartsOnTheGpuDoWhatPartsInHostMemoryDo) {
  const std::unique_ptr<Client> client = Connect(256 << 10);
  void* stream = nullptr;
  ASSERT_EQ(cuda_->StreamCreateNonBlocking(&stream), kCudaSuccess);
  CounterRandom random(11, 0);
  for (uint64_t step = 0; step < 20; ++step) {
    std::vector<uint64_t> ids(1 + random.Below(step % 2 == 0 ? 200 : 8000));
    for (uint64_t& id : ids) id = random.Below(5000);
    const std::optional<void*> of_program = step % 4 < 2 ? std::optional<void*>(stream) : std::nullopt;
    std::vector<float> host(ids.size() * kDim);
    DeviceArray array(cuda_.get(), host.size());
    TANDEM_ASSERT_OK(client->Pull(step, false, Pulls(ids, host.data(), array.data(), of_program)));
    if (of_program.has_value()) array.Wait(stream);
    ASSERT_EQ(array.Read(), host) << "step " << step;
    for (float& g : host) g = static_cast<float>(random.Below(16)) / 8 - 1;
    array.Write(host);
    TANDEM_ASSERT_OK(client->Push(step, Pushes(ids, host.data(), array.data(), of_program)));
  }
  cuda_->StreamDestroy(stream);
}

TEST_F(PsGpuTest, CallsAreOrderedBetweenTheWorkOfTheirStream) {
  const std::unique_ptr<Client> client = Connect(64 << 20);
  std::vector<uint64_t> ids(4096);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  const size_t floats = ids.size() * kDim, many = size_t{64} << 20;
  DeviceArray big(cuda_.get(), many), other(cuda_.get(), many), rows(cuda_.get(), floats),
      copy(cuda_.get(), floats), gradients(cuda_.get(), floats);
  void* stream = nullptr;
  ASSERT_EQ(cuda_->StreamCreateNonBlocking(&stream), kCudaSuccess);
  std::vector<float> host(floats);
  TANDEM_ASSERT_OK(client->Pull(0, false, {{.table = "model", .ids = ids, .rows = host.data()}}));
  rows.Write(std::vector<float>(floats, 9.0f));
  gradients.Write(std::vector<float>(floats, 100.0f));
  // Work of some ms, after which the old rows are read.
  const auto work = [&] {
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(cuda_->MemcpyAsync(other.data(), big.data(), many * sizeof(float), stream), kCudaSuccess);
    }
  };
  work();
  ASSERT_EQ(cuda_->MemcpyAsync(copy.data(), rows.data(), floats * sizeof(float), stream), kCudaSuccess);
  std::vector<float> again(floats);
  TANDEM_ASSERT_OK(client->Pull(0, false, Pulls(ids, again.data(), rows.data(), stream)));
  // The gradients are the pulled rows, which the stream copies after other work.
  work();
  ASSERT_EQ(cuda_->MemcpyAsync(gradients.data(), rows.data(), floats * sizeof(float), stream), kCudaSuccess);
  TANDEM_ASSERT_OK(client->Push(0, Pushes(ids, host.data(), gradients.data(), stream)));
  EXPECT_EQ(copy.Read(), std::vector<float>(floats, 9.0f));
  EXPECT_EQ(rows.Read(), host);
  TANDEM_ASSERT_OK(client->Pull(1, false, Pulls(ids, again.data(), rows.data(), std::nullopt)));
  EXPECT_EQ(again, std::vector<float>(floats, 0.0f));
  EXPECT_EQ(rows.Read(), again);
  cuda_->StreamDestroy(stream);
}

// Prints what the way to the GPU costs beside that of host memory. A figure, not a limit.
TEST_F(PsGpuTest, PullsAndPushesAreMeasured) {
  const std::unique_ptr<Client> client = Connect(64 << 20);
  std::vector<uint64_t> ids(4096);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  const size_t floats = ids.size() * kDim;
  DeviceArray array(cuda_.get(), floats);
  array.Write(std::vector<float>(floats, 0.0f));
  std::vector<float> host(floats);
  const auto measure = [&](const char* what, auto call) {
    constexpr int kCalls = 300;
    for (int i = 0; i < 20; ++i) TANDEM_ASSERT_OK(call());
    const absl::Time begin = MonotonicNow();
    for (int i = 0; i < kCalls; ++i) TANDEM_ASSERT_OK(call());
    std::printf("%s of %zu ids of dim %u: %.1f us\n", what, ids.size(), kDim,
                absl::ToDoubleMicroseconds(MonotonicNow() - begin) / kCalls);
  };
  uint64_t step = 0;
  measure("pull into host memory", [&] {
    return client->Pull(step, false, {{.table = "model", .ids = ids, .rows = host.data()}}).status();
  });
  measure("pull into GPU memory", [&] {
    return client
        ->Pull(step, false, {{.table = "model", .ids = ids, .rows = array.data(), .device = Device::Cuda(0)}})
        .status();
  });
  std::fill(host.begin(), host.end(), 0.0f);
  array.Write(host);
  measure("push from host memory", [&] {
    return client->Push(++step, {{.table = "model", .ids = ids, .gradients = host.data(), .repeats = false}});
  });
  measure("push from GPU memory", [&] {
    PushPart part{.table = "model", .ids = ids, .gradients = array.data(), .repeats = false};
    part.device = Device::Cuda(0);
    return client->Push(++step, {part});
  });
}

}  // namespace
}  // namespace tandem::ps
