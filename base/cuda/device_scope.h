// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CUDA_DEVICE_SCOPE_H_
#define TANDEM_BASE_CUDA_DEVICE_SCOPE_H_

#include "absl/time/time.h"
#include "base/cuda/cuda_api.h"

namespace tandem::cuda {

// Makes `device` current for a scope. At the end it restores the device before, but only if the process has a
// context there: cudaSetDevice would create one, and every rank of a host would occupy memory of GPU 0. Calls
// in the scope do not disturb CUDA graphs that other threads capture.
class DeviceScope {
 public:
  DeviceScope(CudaApi* cuda, int device);
  DeviceScope(const DeviceScope&) = delete;
  ~DeviceScope();

 private:
  CudaApi* const cuda_;
  int before_ = -1;
  int capture_mode_;
  const int device_;
};

// Asks about events for a scope, in one thread. The questions do not disturb CUDA graphs that other threads
// capture, and leave no cudaErrorNotReady as the thread's last error: a program that looks for errors of its
// own kernels must not find it.
class EventQueries {
 public:
  explicit EventQueries(CudaApi* cuda);
  EventQueries(const EventQueries&) = delete;
  ~EventQueries();
  // Returns what cudaEventQuery returns.
  int Query(void* event);

 private:
  CudaApi* const cuda_;
  int capture_mode_;
  bool not_ready_ = false;  // whether a question has left cudaErrorNotReady
};

// Waits between polls of a device: yields at first, then sleeps for a sixteenth of the time waited so far.
class PollPause {
 public:
  void Wait();

 private:
  absl::Time begin_ = absl::InfinitePast();
};

}  // namespace tandem::cuda

#endif  // TANDEM_BASE_CUDA_DEVICE_SCOPE_H_
