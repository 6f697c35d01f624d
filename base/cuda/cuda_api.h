// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CUDA_CUDA_API_H_
#define TANDEM_BASE_CUDA_CUDA_API_H_

// The part of the CUDA runtime that Tandem uses. It is declared here, so that Tandem compiles without CUDA
// and can be tested without a GPU. abi_check.cc compares the numbers with the real header if a build finds
// one.

#include <cstddef>

namespace tandem::cuda {

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaInvalidResourceHandle = 400;
inline constexpr int kCudaNotReady = 600;
// The legacy default stream was asked about while a stream that synchronises with it is being captured.
inline constexpr int kCudaStreamCaptureImplicit = 906;
// cudaThreadExchangeStreamCaptureMode: the thread's calls never disturb another thread's capture.
inline constexpr int kCaptureModeRelaxed = 2;

// cudaMemoryType.
enum class MemoryKind : int { kUnregistered = 0, kHost = 1, kDevice = 2, kManaged = 3 };

// Streams are cudaStream_t, events cudaEvent_t; results are cudaError_t. Thread-safe, as CUDA is; each thread
// has its own current device.
class CudaApi {
 public:
  virtual ~CudaApi() = default;
  virtual int RuntimeGetVersion(int* version) = 0;  // 12040: CUDA 12.4
  virtual int GetDeviceCount(int* count) = 0;
  virtual int GetDevice(int* device) = 0;
  // Also creates the device's primary context if it has none (CUDA 12 and later).
  virtual int SetDevice(int device) = 0;
  // Returns true if this process has a primary context on `device` (cuDevicePrimaryCtxGetState). Creates
  // none.
  virtual bool HasPrimaryContext(int device) = 0;
  // Returns the thread's last error and forgets it.
  virtual int GetLastError() = 0;
  virtual int StreamCreateNonBlocking(void** stream) = 0;
  virtual int StreamDestroy(void* stream) = 0;
  virtual int StreamWaitEvent(void* stream, void* event) = 0;
  virtual int EventCreate(void** event) = 0;  // without timing
  virtual int EventDestroy(void* event) = 0;
  virtual int EventRecord(void* event, void* stream) = 0;
  virtual int EventQuery(void* event) = 0;
  // Sets *capturing if `stream` is being captured into a CUDA graph.
  virtual int StreamIsCapturing(void* stream, bool* capturing) = 0;
  // Sets the thread's capture mode to *mode, and *mode to the mode before.
  virtual int ExchangeCaptureMode(int* mode) = 0;
  // Returns the kind of memory at `pointer`, and its device if it has one.
  virtual int PointerGetAttributes(const void* pointer, MemoryKind* kind, int* device) = 0;
  virtual int Malloc(void** memory, size_t bytes) = 0;
  virtual int Free(void* memory) = 0;
  // Allocates host memory that is pinned for all devices (cudaHostAllocPortable).
  virtual int HostAlloc(void** memory, size_t bytes) = 0;
  // Frees memory of HostAlloc. May block until the GPUs have carried out all work that the process has queued
  // on them, even if none of it uses the memory.
  virtual int FreeHost(void* memory) = 0;
  // Copies between any two memories, in the stream's order.
  virtual int MemcpyAsync(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual const char* GetErrorString(int error) = 0;
};

}  // namespace tandem::cuda

#endif  // TANDEM_BASE_CUDA_CUDA_API_H_
