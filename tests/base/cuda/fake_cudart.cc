// SPDX-License-Identifier: Apache-2.0
// A libcudart.so.13 of GPUs in this process (fake_gpu.h), for programs that load the CUDA runtime themselves:
// TANDEM_CUDA_LIBRARY_PATH names its folder. It exports the functions that base/cuda/load_cuda.cc looks up,
// and functions by which a test reaches the GPUs.

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/base/cuda/fake_gpu.h"

namespace {

tandem::cuda::FakeGpu& Gpu() {
  static auto& gpu = *new tandem::cuda::FakeGpu(2);
  return gpu;
}
tandem::cuda::CudaApi& Api() {
  static auto& api = *new std::shared_ptr<tandem::cuda::CudaApi>(Gpu().api());
  return *api;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cudaRuntimeGetVersion(int* version) { return Api().RuntimeGetVersion(version); }
EXPORT int cudaGetDeviceCount(int* count) { return Api().GetDeviceCount(count); }
EXPORT int cudaGetDevice(int* device) { return Api().GetDevice(device); }
EXPORT int cudaSetDevice(int device) { return Api().SetDevice(device); }
EXPORT int cudaGetLastError() { return Api().GetLastError(); }
EXPORT int cudaStreamCreateWithFlags(void** stream, unsigned) {
  return Api().StreamCreateNonBlocking(stream);
}
EXPORT int cudaStreamDestroy(void* stream) { return Api().StreamDestroy(stream); }
EXPORT int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  return Api().StreamWaitEvent(stream, event);
}
EXPORT int cudaEventCreateWithFlags(void** event, unsigned) { return Api().EventCreate(event); }
EXPORT int cudaEventDestroy(void* event) { return Api().EventDestroy(event); }
EXPORT int cudaEventRecord(void* event, void* stream) { return Api().EventRecord(event, stream); }
EXPORT int cudaEventQuery(void* event) { return Api().EventQuery(event); }
EXPORT int cudaMalloc(void** memory, size_t bytes) { return Api().Malloc(memory, bytes); }
EXPORT int cudaFree(void* memory) { return Api().Free(memory); }
EXPORT int cudaHostAlloc(void** memory, size_t bytes, unsigned) { return Api().HostAlloc(memory, bytes); }
EXPORT int cudaFreeHost(void* memory) { return Api().FreeHost(memory); }
EXPORT int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  return Api().MemcpyAsync(to, from, bytes, stream);
}
EXPORT const char* cudaGetErrorString(int error) { return Api().GetErrorString(error); }
EXPORT int cudaStreamIsCapturing(void* stream, int* status) {
  bool capturing = false;
  const int error = Api().StreamIsCapturing(stream, &capturing);
  *status = capturing ? 1 : 0;
  return error;
}
EXPORT int cudaThreadExchangeStreamCaptureMode(int* mode) { return Api().ExchangeCaptureMode(mode); }
EXPORT int cudaPointerGetAttributes(void* attributes, const void* pointer) {
  tandem::cuda::MemoryKind kind;
  int device = 0;
  const int error = Api().PointerGetAttributes(pointer, &kind, &device);
  const int fields[2] = {static_cast<int>(kind), device};
  std::memcpy(attributes, fields, sizeof(fields));
  return error;
}

// The test's side.
EXPORT float* FakeAllocate(int device, uint64_t floats) { return Gpu().Allocate(device, floats); }
EXPORT void FakeRead(const float* memory, float* values, uint64_t floats) {
  const std::vector<float> read = Gpu().Read(memory, floats);
  std::memcpy(values, read.data(), floats * sizeof(float));
}
EXPORT void FakeWrite(float* memory, const float* values, uint64_t floats) {
  Gpu().Write(memory, std::vector<float>(values, values + floats));
}
EXPORT void* FakeStream(int device) { return Gpu().NewStream(device); }
EXPORT void FakeHold(int hold) { Gpu().Hold(hold != 0); }
EXPORT int FakeCopies() { return Gpu().copies(); }
EXPORT int FakeMisuse() { return static_cast<int>(Gpu().misuse().size()); }
