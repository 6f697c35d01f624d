// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CHECKPOINT_DIGEST_H_
#define TANDEM_PS_CHECKPOINT_DIGEST_H_

// DigestCheckpoint reduces the contents of a checkpoint to a few numbers, which do not depend on the number
// of servers. Checkpoints with equal digests have the same rows, including optimizer state, and the same
// dense parameters, bit for bit (up to hash collisions). This compares, for example, training on one server
// with training on four. The dense part of a PyTorch program is in files of torch.distributed.checkpoint,
// whose digests depend on the number of ranks and on the version of torch.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::ps {

struct TableDigest {
  std::string table;
  uint64_t rows = 0;
  // The sum, modulo 2^64, of a hash of (id, the row's floats) over all rows of all files. It does not depend
  // on the order of rows or on the files they are in. Versions and update counts are not part of it.
  uint64_t digest = 0;
};

// A file with tensors of torch.distributed.checkpoint.
struct TorchFileDigest {
  std::string name;
  uint64_t bytes = 0;
  uint64_t digest = 0;  // a hash of the file
};

struct CheckpointDigest {
  std::vector<TableDigest> tables;  // in ascending order of name
  uint64_t dense = 0;               // a hash of the file DENSE
  // The list is in ascending order of name. Other files of a PyTorch program are left out: they have names of
  // the run, so that they differ between runs with the same result.
  std::vector<TorchFileDigest> torch;
};

// Reads every file of the checkpoint in `directory`, and those on which they build, one bucket at a time. A
// checkpoint that builds on another has the digest of the complete one with the same rows. Errors name the
// path and are those of ReadManifest, TableChain and ReadDenseState. NotFound: a file that the manifest lists
// is missing.
absl::StatusOr<CheckpointDigest> DigestCheckpoint(const std::string& directory);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_DIGEST_H_
