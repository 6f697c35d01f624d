// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_NCCL_NCCL_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_NCCL_NCCL_BACKEND_H_

// The backend "nccl": groups of GPUs, one GPU for each rank.
//
// The build needs nothing of CUDA and links nothing: libnccl and libcudart are loaded when a group is made.
// docs/backends_mpi_nccl.md says what is supported.
//
// Operations are queued on a stream of the group's own, behind the work that the caller has queued on the
// default stream. Work::OrderStream orders other streams behind them. An error, a time-out or Abort aborts
// every NCCL group of the process (runtime.h says why).

#include <memory>

#include "absl/types/optional.h"
#include "collectives/backend.h"
#include "collectives/backends/nccl/cuda_api.h"
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
  void StartPointToPoint(const Operation& operation, Done done) override;
  void Abort(const absl::Status& reason) override;

  // Splits the group as ncclCommSplit does; called by all ranks of this group. `options` are the new group's.
  // A rank of color -1 gets nullptr. Unimplemented if NCCL is older than 2.18; the caller then connects the
  // new group afresh.
  absl::StatusOr<std::unique_ptr<NcclBackend>> Split(int color, int key, const BackendOptions& options);

 private:
  const std::shared_ptr<Link> link_;
  const int world_size_;
  const absl::Duration leave_timeout_;
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
