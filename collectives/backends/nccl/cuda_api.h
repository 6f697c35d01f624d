// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_NCCL_CUDA_API_H_
#define TANDEM_COLLECTIVES_BACKENDS_NCCL_CUDA_API_H_

// The part of the CUDA runtime that the backend uses; see nccl_api.h.

#include <cstddef>

namespace tandem::collectives::nccl {

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaNotReady = 600;

// Streams are cudaStream_t, events cudaEvent_t; results are cudaError_t. Thread-safe, as CUDA is; each thread
// has its own current device.
class CudaApi {
 public:
  virtual ~CudaApi() = default;
  virtual int GetDeviceCount(int* count) = 0;
  virtual int GetDevice(int* device) = 0;
  virtual int SetDevice(int device) = 0;
  virtual int StreamCreateNonBlocking(void** stream) = 0;
  virtual int StreamDestroy(void* stream) = 0;
  virtual int StreamWaitEvent(void* stream, void* event) = 0;
  virtual int EventCreate(void** event) = 0;  // without timing
  virtual int EventDestroy(void* event) = 0;
  virtual int EventRecord(void* event, void* stream) = 0;
  virtual int EventQuery(void* event) = 0;
  virtual int Malloc(void** memory, size_t bytes) = 0;
  virtual int Free(void* memory) = 0;
  // Copies between any two memories, in the stream's order.
  virtual int MemcpyAsync(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual const char* GetErrorString(int error) = 0;
};

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_COLLECTIVES_BACKENDS_NCCL_CUDA_API_H_
