// SPDX-License-Identifier: Apache-2.0
#include "base/cuda/find_gpu.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/cuda/fake_gpu.h"

namespace tandem::cuda {
namespace {

TEST(FindGpuTest, FindsTheGpuOfAnAddressAndMakesNoContextOnAnother) {
  FakeGpu gpu(3);
  const auto cuda = gpu.api();
  float* const memory = gpu.Allocate(2, 4);
  float host = 0;
  // The program uses GPU 1. A thread that has chosen no GPU has GPU 0.
  std::thread([&] { cuda->SetDevice(1); }).join();
  std::thread([&] {
    EXPECT_EQ(FindGpu(cuda.get(), memory), 2);
    EXPECT_EQ(FindGpu(cuda.get(), &host), std::nullopt);
    gpu.Fail("cudaPointerGetAttributes");
    EXPECT_EQ(FindGpu(cuda.get(), memory), std::nullopt);
    EXPECT_EQ(cuda->GetLastError(), kCudaSuccess);
  }).join();
  EXPECT_THAT(gpu.contexts(), ::testing::ElementsAre(1));
}

TEST(FindGpuTest, AsksOnTheCurrentGpuIfNoneHasAContext) {
  FakeGpu gpu;
  float* const memory = gpu.Allocate(1, 4);
  std::thread([&] { EXPECT_EQ(FindGpu(gpu.api().get(), memory), 1); }).join();
}

}  // namespace
}  // namespace tandem::cuda
