#ifndef TANDEM_COLLECTIVES_BACKENDS_NCCL_ISSUE_H_
#define TANDEM_COLLECTIVES_BACKENDS_NCCL_ISSUE_H_

// Operations as calls of NCCL.

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/backends/nccl/cuda_api.h"
#include "collectives/backends/nccl/nccl_api.h"
#include "collectives/operation.h"

namespace tandem::collectives::nccl {

// Unimplemented naming what NCCL cannot do: bitwise reductions, averages of integers (it does not say how it
// rounds), tags, receives from any rank.
absl::Status CheckSupported(const Operation& operation);

// What a batch is issued with.
struct Issuer {
  NcclApi* nccl;
  CudaApi* cuda;
  Comm comm;
  void* stream;
  int* scratch;  // one int of device memory, for barriers
  int rank, world_size;

  // Queues all of `operations` on the stream, as one group of NCCL: they may be in any order on different
  // ranks only as far as NCCL allows. kInProgress: to be awaited. *cuda_error is set when a copy failed.
  Result Issue(absl::Span<const Operation> operations, int* cuda_error);

 private:
  Result IssueOne(const Operation& operation, RedOp op);
  Result CopyOwnParts(const Operation& operation, int* cuda_error);
};

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_COLLECTIVES_BACKENDS_NCCL_ISSUE_H_
