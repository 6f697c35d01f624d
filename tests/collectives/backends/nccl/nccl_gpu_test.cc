// SPDX-License-Identifier: Apache-2.0
// Runs on a real GPU; reports itself as skipped if there is none.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/store/file_store.h"
#include "cluster/store/memory_store.h"
#include "collectives/backends/nccl/dlopen_api.h"
#include "collectives/backends/nccl/nccl_backend.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives::nccl {
namespace {

constexpr char kRankVariable[] = "TANDEM_TEST_NCCL_RANK";
constexpr char kStoreVariable[] = "TANDEM_TEST_NCCL_STORE";

BackendOptions OptionsOf(cluster::Store* store, int rank, int world_size) {
  BackendOptions options;
  options.group = "gpu";
  options.rank = rank;
  options.world_size = world_size;
  options.store = store;
  options.peers.resize(world_size);
  options.deadline = absl::Now() + absl::Seconds(60);
  options.timeout = absl::Seconds(60);
  return options;
}

// Returns a sum over the ranks of `count` floats on GPU 0, in place.
Operation SumOf(void* memory, size_t count) {
  Operation sum;
  sum.kind = OpKind::kAllReduce;
  sum.dtype = DType::kF32;
  sum.device = Device::Cuda(0);
  sum.timeout = absl::Seconds(60);
  sum.in = {memory, count};
  sum.out = {memory, count};
  return sum;
}

// Sums over `world_size` ranks on GPU 0, through device memory.
void SumOnGpu(cluster::Store* store, int rank, int world_size) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, NcclBackendFactory().make(OptionsOf(store, rank, world_size)));
  TANDEM_ASSERT_OK_AND_ASSIGN(Apis apis, LoadApis());
  std::vector<float> values(1001, rank + 1.0f);
  void *memory = nullptr, *stream = nullptr;
  const size_t bytes = values.size() * sizeof(float);
  ASSERT_EQ(apis.cuda->Malloc(&memory, bytes), cuda::kCudaSuccess);
  ASSERT_EQ(apis.cuda->StreamCreateNonBlocking(&stream), cuda::kCudaSuccess);
  ASSERT_EQ(apis.cuda->MemcpyAsync(memory, values.data(), bytes, nullptr), cuda::kCudaSuccess);
  Operation sum = SumOf(memory, values.size());
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kPremulSum}) {
    sum.reduce = op;
    sum.factor = 0.5;
    TANDEM_ASSERT_OK(backend->Run(sum));
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(auto work, backend->Enqueue({sum}));
  TANDEM_ASSERT_OK(work->OrderStream(stream));
  TANDEM_ASSERT_OK(work->Wait(absl::Seconds(60)));
  void* event = nullptr;
  ASSERT_EQ(apis.cuda->MemcpyAsync(values.data(), memory, bytes, stream), cuda::kCudaSuccess);
  ASSERT_EQ(apis.cuda->EventCreate(&event), cuda::kCudaSuccess);
  ASSERT_EQ(apis.cuda->EventRecord(event, stream), cuda::kCudaSuccess);
  apis.cuda->Free(memory);  // waits for all that the device has to do
  ASSERT_EQ(apis.cuda->EventQuery(event), cuda::kCudaSuccess);
  // The sum, then two reductions that each multiply it by P / 2.
  const float expected = world_size * (world_size + 1) / 2 * (0.5f * world_size) * (0.5f * world_size);
  EXPECT_EQ(values, std::vector<float>(values.size(), expected));
  apis.cuda->EventDestroy(event);
  apis.cuda->StreamDestroy(stream);
}

class NcclGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status viable = NcclBackendFactory().viable(BackendOptions());
    if (!viable.ok()) GTEST_SKIP() << viable;
  }
};

TEST_F(NcclGpuTest, AWorldOfOneReducesOnItsGpu) {
  cluster::MemoryStore store;
  SumOnGpu(&store, 0, 1);
}

// A backend that is destroyed deregisters the buffers that are left.
TEST_F(NcclGpuTest, BuffersAreRegisteredAndLeft) {
  cluster::MemoryStore store;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, NcclBackendFactory().make(OptionsOf(&store, 0, 1)));
  TANDEM_ASSERT_OK_AND_ASSIGN(Apis apis, LoadApis());
  if (!apis.nccl->has_register()) GTEST_SKIP() << "this NCCL has no ncclCommRegister";
  const std::vector<float> values(1001, 3.0f);
  const size_t bytes = values.size() * sizeof(float);
  void* memory = nullptr;
  ASSERT_EQ(apis.cuda->Malloc(&memory, bytes), cuda::kCudaSuccess);
  ASSERT_EQ(apis.cuda->MemcpyAsync(memory, values.data(), bytes, nullptr), cuda::kCudaSuccess);
  const TensorView buffer(memory, values.size(), DType::kF32, Device::Cuda(0));
  const Operation sum = SumOf(memory, values.size());
  TANDEM_ASSERT_OK(backend->RegisterBuffer(buffer));
  EXPECT_THAT(backend->RegisterBuffer(buffer), testing::StatusIs(absl::StatusCode::kAlreadyExists));
  TANDEM_ASSERT_OK(backend->Run(sum));
  TANDEM_ASSERT_OK(backend->DeregisterBuffer(buffer));
  TANDEM_ASSERT_OK(backend->Run(sum));
  TANDEM_ASSERT_OK(backend->RegisterBuffer(buffer));
  TANDEM_ASSERT_OK(backend->Run(sum));
  backend.reset();
  std::vector<float> read(values.size());
  ASSERT_EQ(apis.cuda->MemcpyAsync(read.data(), memory, bytes, nullptr), cuda::kCudaSuccess);
  apis.cuda->Free(memory);  // waits for all that the device has to do
  EXPECT_EQ(read, values);
}

// NCCL refuses two ranks of one host on one GPU; ranks with distinct NCCL_HOSTID count as ranks of two hosts.
// NCCL reads that variable once in a process, so the ranks are processes, and programs of their own (CUDA
// does not survive fork).
TEST_F(NcclGpuTest, TwoProcessesShareAGpu) {
  if (const char* rank = std::getenv(kRankVariable)) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto store, cluster::FileStore::Open(std::getenv(kStoreVariable)));
    SumOnGpu(store.get(), std::atoi(rank), 2);
    return;
  }
  const std::string path = absl::StrCat(::testing::TempDir(), "/nccl_gpu_test_", getpid());
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string number = absl::StrCat(rank), host = absl::StrCat("tandem-test-", getpid(), "-", rank);
    const pid_t child = fork();
    if (child == 0) {
      setenv(kRankVariable, number.c_str(), 1);
      setenv(kStoreVariable, path.c_str(), 1);
      setenv("NCCL_HOSTID", host.c_str(), 1);
      setenv("NCCL_NET", "Socket", 1);
      setenv("NCCL_SOCKET_IFNAME", "lo", 1);
      setenv("NCCL_MAX_CTAS", "1", 1);
      execl("/proc/self/exe", "nccl_gpu_test", "--gtest_filter=*TwoProcessesShareAGpu", nullptr);
      _exit(127);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  unlink(path.c_str());
}

}  // namespace
}  // namespace tandem::collectives::nccl
