// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_NCCL_NCCL_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_NCCL_NCCL_BACKEND_H_

// The backend "nccl": groups of GPUs, one GPU for each rank.
//
// The build needs nothing of CUDA and links nothing: libnccl and libcudart are loaded when a group is made.
// docs/backends_mpi_nccl.md says what is supported.
//
// Operations are queued on a stream of the group's own, behind the work that the caller has queued on
// Operation::stream. Work::OrderStream orders other streams behind them. An error, a time-out or Abort aborts
// every NCCL group of the process (runtime.h says why). Leaving a group never does.

#include <map>
#include <memory>

#include "absl/types/optional.h"
#include "base/cuda/cuda_api.h"
#include "collectives/backend.h"
#include "collectives/backends/nccl/link.h"
#include "collectives/backends/nccl/nccl_api.h"
#include "collectives/backends/nccl/runtime.h"

namespace tandem::collectives {

namespace nccl {

// See Backend. Enqueue may be called by one thread at a time, the other methods by any.
class NcclBackend final : public Backend {
 public:
  NcclBackend(std::shared_ptr<Link> link, const BackendOptions& options);
  ~NcclBackend() override;
  absl::string_view name() const override { return "nccl"; }
  absl::Status Supports(const Operation& operation) const override;
  absl::Status Run(const Operation& operation) override;
  absl::StatusOr<std::shared_ptr<DeviceWork>> Enqueue(absl::Span<const Operation> operations) override;
  // Unimplemented: a process group issues messages with Enqueue.
  void StartPointToPoint(const Operation& operation, Done done) override;
  absl::StatusOr<int> RunPointToPoint(const Operation& operation) override;
  void Abort(const absl::Status& reason) override;
  // Unimplemented before NCCL 2.19.
  absl::Status RegisterBuffer(TensorView buffer) override;
  absl::Status DeregisterBuffer(TensorView buffer) override;
  // True from NCCL 2.18 on. Without it, subgroups connect afresh.
  bool CanSplit() const override;
  absl::StatusOr<BackendFactory> Split(int color, int key, const BackendOptions& options) override;

 private:
  // Checks what can be refused without breaking the group.
  absl::Status Check(absl::Span<const Operation> operations) const;

  const std::shared_ptr<Link> link_;
  const int world_size_;
  const absl::Duration timeout_;
  std::map<void*, void*>
      registered_;  // by its beginning: NCCL's handle of a buffer; used in the group's order
};

// Returns a factory whose groups use `device`; without a device, it chooses as NcclBackendFactory says.
BackendFactory MakeFactory(std::shared_ptr<Runtime> runtime, absl::optional<int> device);

}  // namespace nccl

// Returns the factory of "nccl", for any number of ranks, including one. The GPU is the current device of the
// thread that makes the group, as set by cudaSetDevice. If that is 0, it is the GPU that LOCAL_RANK names, if
// there is one. Errors of `viable`: FailedPrecondition "libnccl.so.2 not found", "no CUDA device", "NCCL
// 2.10.3 is too old".
BackendFactory NcclBackendFactory();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKENDS_NCCL_NCCL_BACKEND_H_
