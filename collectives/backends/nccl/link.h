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
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/cuda/device_scope.h"
#include "collectives/backend.h"
#include "collectives/backends/nccl/nccl_api.h"
#include "collectives/backends/nccl/runtime.h"

namespace tandem::collectives::nccl {

// Thread-safe. Shared by the group's backend, the runtime, and running works.
class Link : public std::enable_shared_from_this<Link> {
 public:
  // Makes a Link. `begin` starts making the communicator, which NCCL may store into *comm at any time until
  // the communicator is ready. Connect waits until then, and aborts the communicator at the deadline.
  using Begin = std::function<Result(Comm* comm)>;
  static absl::StatusOr<std::shared_ptr<Link>> Connect(std::shared_ptr<Runtime> runtime, int device,
                                                       const BackendOptions& options, absl::string_view call,
                                                       const Begin& begin);
  Link(std::shared_ptr<Runtime> runtime, int device, const BackendOptions& options);
  ~Link();

  const std::string& group() const { return group_; }
  int rank() const { return rank_; }
  int device() const { return device_; }
  void* stream() const { return stream_; }
  int* scratch() const { return scratch_; }  // one element of device memory
  Runtime* runtime() const { return runtime_.get(); }
  const std::shared_ptr<Runtime>& shared_runtime() const { return runtime_; }
  Comm comm();  // nullptr once aborted

  // Runs `body`, which calls NCCL, with the process's execution slot, and waits until the communicator has
  // accepted it. The link's device must be current. Errors break the group and contain what().
  absl::Status Call(absl::FunctionRef<std::string()> what, absl::Time deadline,
                    absl::FunctionRef<Result(Comm)> body);
  // Runs `body`, which calls NCCL, in the same way, but for calls that concern this rank alone: an error
  // leaves the group as it is.
  absl::Status LocalCall(absl::string_view what, absl::Time deadline, absl::FunctionRef<Result(Comm)> body);
  // Splits the communicator (ncclCommSplit) once all operations of this group are done. Returns nullptr for a
  // negative color. Errors break the group.
  absl::StatusOr<Comm> SplitCommunicator(int color, int key, const Config& config, absl::Time deadline);

  // A cudaEvent_t, which returns to the link's pool when its last handle is dropped. Each holder of a handle
  // also keeps the link.
  using Event = std::shared_ptr<void>;
  // Returns an event of the pool, or a new one; nullptr, setting *cuda_error, if none can be made. The link's
  // device must be current.
  Event TakeEvent(int* cuda_error);
  // Returns the event after the last operation of the stream, nullptr before the first one, and replaces it.
  Event ExchangeLast(Event done);

  bool broken() const { return broken_.load(std::memory_order_acquire); }
  absl::Status error();
  // Records the error that broke the group; the first reason stays. Does not abort.
  void MarkBroken(const absl::Status& reason);
  // Aborts this group and all other groups of the process.
  void Break(const absl::Status& reason) { runtime_->AbortAll(this, reason); }

  // Lends the store through which ranks exchange errors, until Close.
  void SetStore(cluster::Store* store);
  // Finalises the communicator and frees all resources; after an error, once the communicator is aborted. If
  // the communicator does not leave within `timeout`, it alone is aborted. Blocks for at most `timeout` and
  // the few seconds that an abort may take; what then still runs in NCCL ends, or hangs, in a thread of its
  // own.
  void Close(absl::Duration timeout);

  // Called by the runtime's threads.
  bool HasToAbort();
  void AbortCommunicator();  // requires the execution slot
  void SetAborted();
  // Queries NCCL for asynchronous errors.
  void Watch();
  // Tells the other ranks this rank's error, or asks for theirs, through the store. Blocks for about a second
  // if the store does not respond, and then leaves it alone for a while.
  void ExchangeErrors();

  std::atomic<int> works{0};  // number of running works

 private:
  absl::Status AwaitReady(absl::FunctionRef<std::string()> what, absl::Time deadline);
  absl::Status AwaitIdle(absl::Time deadline);
  absl::Status FromNccl(absl::string_view what, Result result);
  absl::Status FromCuda(absl::string_view what, int error);
  absl::Status Allocate();
  // Breaks the group unless it is broken, and returns its error.
  absl::Status Fail(const absl::Status& status);
  // Returns memory for a communicator into which NCCL may write as long as the link exists.
  Comm* AllocateComm();
  void SetCommunicator(Comm comm);
  absl::Status Finalize(absl::Time deadline);
  void Free();

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
  std::vector<std::unique_ptr<Comm>> allocated_comms_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> free_events_ ABSL_GUARDED_BY(mutex_);
  Event last_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex store_mutex_;
  cluster::Store* store_ ABSL_GUARDED_BY(store_mutex_);
  absl::Time store_silent_until_ ABSL_GUARDED_BY(store_mutex_) = absl::InfinitePast();
  bool error_shared_ ABSL_GUARDED_BY(store_mutex_) = false;
};

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_COLLECTIVES_BACKENDS_NCCL_LINK_H_
