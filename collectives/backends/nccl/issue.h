// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_NCCL_ISSUE_H_
#define TANDEM_COLLECTIVES_BACKENDS_NCCL_ISSUE_H_

// Translates operations into calls of NCCL.

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/cuda/cuda_api.h"
#include "collectives/backends/nccl/nccl_api.h"
#include "collectives/operation.h"

namespace tandem::collectives::nccl {

// Returns OK, or Unimplemented naming what NCCL cannot do: bitwise reductions, averages of integers (NCCL
// does not specify the rounding), tags, receives from any rank.
absl::Status CheckSupported(const Operation& operation);

// Issues batches of operations on one stream of a communicator.
struct Issuer {
  NcclApi* nccl;
  cuda::CudaApi* cuda;
  Comm comm;
  void* stream;
  int* scratch;  // one int of device memory, for barriers
  int rank, world_size;

  // Queues all of `operations` on the stream, as one group of NCCL. Ranks may order them differently only as
  // far as NCCL allows. kInProgress means that the caller must wait. *cuda_error is set if a copy failed.
  Result Issue(absl::Span<const Operation> operations, int* cuda_error);

 private:
  Result IssueOne(const Operation& operation, RedOp op);
  Result CopyOwnParts(const Operation& operation, int* cuda_error);
};

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_COLLECTIVES_BACKENDS_NCCL_ISSUE_H_
