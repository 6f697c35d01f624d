// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_NCCL_RUNTIME_H_
#define TANDEM_COLLECTIVES_BACKENDS_NCCL_RUNTIME_H_

// Runtime is the state that all NCCL groups of a process share: the execution slot, a thread that watches
// their communicators and aborts them, and a thread that exchanges errors with other ranks through the
// stores. The first thread never waits for a store.
//
// Aborting one group aborts all NCCL groups of the process, in one ncclGroup. Kernels of one group may be
// queued on the GPU behind kernels of another that wait for a dead peer, so aborting them one by one can
// block forever (NVIDIA/nccl#1013). A group that merely leaves has no queued kernels: its communicator is
// aborted alone if it does not leave in time.

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/cuda/cuda_api.h"
#include "collectives/backends/nccl/nccl_api.h"

namespace tandem::collectives::nccl {

class Link;

// Thread-safe. Shared by the links of its groups.
class Runtime {
 public:
  struct Options {
    absl::Duration watch_interval = absl::Milliseconds(100);
    // A call of NCCL that holds the slot longer is considered hung; aborts then do not wait for the slot.
    absl::Duration call_timeout = absl::Seconds(2);
  };
  Runtime(std::shared_ptr<NcclApi> nccl, std::shared_ptr<cuda::CudaApi> cuda, const Options& options);
  Runtime(std::shared_ptr<NcclApi> nccl, std::shared_ptr<cuda::CudaApi> cuda)
      : Runtime(std::move(nccl), std::move(cuda), Options()) {}
  ~Runtime();

  NcclApi* nccl() const { return nccl_.get(); }
  cuda::CudaApi* cuda() const { return cuda_.get(); }

  // Takes the execution slot. Only the thread that has it may call NCCL; non-blocking communicators keep the
  // calls short. Returns false at `deadline`, which means that a call hangs.
  bool TakeSlot(absl::Time deadline);
  void ReleaseSlot();

  void Add(std::shared_ptr<Link> link);
  // Removes a link. Blocks while one of the threads uses it.
  void Remove(Link* link);
  // Breaks all links, `origin` with `reason`, and lets the watching thread abort them. Does not block.
  void AbortAll(Link* origin, const absl::Status& reason);
  // Breaks `link` alone with `reason`, and lets the watching thread abort it. Does not block. Requires that
  // no kernel of the link is queued.
  void AbortOne(Link* link, const absl::Status& reason);
  // Lets the watching thread look at the links now.
  void Wake();

 private:
  void Watch();
  void Exchange();
  std::vector<std::shared_ptr<Link>> links();

  const std::shared_ptr<NcclApi> nccl_;
  const std::shared_ptr<cuda::CudaApi> cuda_;
  const Options options_;
  absl::Mutex slot_mutex_;
  bool slot_free_ ABSL_GUARDED_BY(slot_mutex_) = true;
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  const Link* exchanging_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the link whose store is being asked
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Mutex watch_mutex_;  // held while links are watched; acquired before mutex_, or without it
  std::thread watch_thread_, exchange_thread_;
};

// Holds the execution slot for a scope.
class ExecutionSlot {
 public:
  ExecutionSlot(Runtime* runtime, absl::Time deadline)
      : runtime_(runtime->TakeSlot(deadline) ? runtime : nullptr) {}
  ExecutionSlot(const ExecutionSlot&) = delete;
  ~ExecutionSlot() {
    if (runtime_ != nullptr) runtime_->ReleaseSlot();
  }
  bool taken() const { return runtime_ != nullptr; }

 private:
  Runtime* const runtime_;
};

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_COLLECTIVES_BACKENDS_NCCL_RUNTIME_H_
