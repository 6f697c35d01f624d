// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_NCCL_LINK_H_
#define TANDEM_COLLECTIVES_BACKENDS_NCCL_LINK_H_

// Link owns one group's communicator and stream, and its error state. All NCCL calls for the group go through
// it.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/backend.h"
#include "collectives/backends/nccl/nccl_api.h"
#include "collectives/backends/nccl/runtime.h"

namespace tandem::collectives::nccl {

// Makes `device` current for a scope.
class DeviceScope {
 public:
  DeviceScope(CudaApi* cuda, int device);
  ~DeviceScope();

 private:
  CudaApi* const cuda_;
  int before_ = -1;
  const int device_;
};

// Thread-safe. Shared by the group's backend, the runtime, and running works.
class Link : public std::enable_shared_from_this<Link> {
 public:
  // Makes a Link. `begin` starts making the communicator. Connect waits until it is ready, and aborts it at
  // the deadline.
  using Begin = std::function<Result(Comm* comm)>;
  static absl::StatusOr<std::shared_ptr<Link>> Connect(std::shared_ptr<Runtime> runtime, int device,
                                                       const BackendOptions& options, absl::string_view call,
                                                       const Begin& begin);
  Link(std::shared_ptr<Runtime> runtime, int device, const BackendOptions& options);

  const std::string& group() const { return group_; }
  int rank() const { return rank_; }
  int device() const { return device_; }
  void* stream() const { return stream_; }
  int* scratch() const { return scratch_; }  // one element of device memory
  Runtime* runtime() const { return runtime_.get(); }
  const std::shared_ptr<Runtime>& shared_runtime() const { return runtime_; }
  Comm comm();  // nullptr once aborted

  // Runs `body`, which calls NCCL, on the device and with the process's execution slot, and waits until the
  // communicator has accepted it. Errors break the group and contain `what`.
  absl::Status Call(absl::string_view what, absl::Time deadline, const std::function<Result(Comm)>& body);

  bool broken() const { return broken_.load(std::memory_order_acquire); }
  absl::Status error();
  // Records the error that broke the group; the first reason stays. Does not abort.
  void MarkBroken(const absl::Status& reason);
  // Aborts this group and all other groups of the process.
  void Break(const absl::Status& reason) { runtime_->AbortAll(this, reason); }

  // Finalises the communicator and frees all resources; after an error, once the communicator is aborted.
  // Bounded by `timeout`.
  void Close(absl::Duration timeout);

  // Called by the runtime's thread.
  bool HasToAbort();
  void AbortCommunicator();  // requires the execution slot
  void SetAborted();
  // Queries NCCL for asynchronous errors, and the store for errors of other ranks; then calls the functions
  // given to OnWatch.
  void Watch();
  // Registers `look`, which runs in each Watch until it returns true.
  void OnWatch(std::function<bool()> look);

  std::atomic<int> works{0};  // number of running works

 private:
  absl::Status AwaitReady(absl::string_view what, absl::Time deadline);
  absl::Status FromNccl(absl::string_view what, Result result);
  absl::Status FromCuda(absl::string_view what, int error);
  absl::Status Allocate();
  void ExchangeErrors();

  const std::shared_ptr<Runtime> runtime_;
  const std::string group_;
  const int rank_, world_size_, device_;
  void* stream_ = nullptr;
  int* scratch_ = nullptr;
  std::atomic<bool> broken_{false};
  absl::Mutex mutex_;
  Comm comm_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<bool()>> looks_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex store_mutex_;
  Store* store_ ABSL_GUARDED_BY(store_mutex_);
  bool error_shared_ ABSL_GUARDED_BY(store_mutex_) = false;
};

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_COLLECTIVES_BACKENDS_NCCL_LINK_H_
