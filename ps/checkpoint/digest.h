// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CHECKPOINT_DIGEST_H_
#define TANDEM_PS_CHECKPOINT_DIGEST_H_

// DigestCheckpoint reduces the contents of a checkpoint to a few numbers, which do not depend on the number
// of servers. Checkpoints with equal digests have the same rows, including optimizer state, and the same
// dense parameters, bit for bit (up to hash collisions). This compares, for example, training on one server
// with training on four.

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

struct CheckpointDigest {
  std::vector<TableDigest> tables;  // in ascending order of name
  uint64_t dense = 0;               // a hash of the file DENSE
};

// Reads every file of the checkpoint in `directory`, table files one bucket at a time. Errors name the path
// and are those of ReadManifest, TableFileReader and ReadDenseState. NotFound: a file that the manifest lists
// is missing.
absl::StatusOr<CheckpointDigest> DigestCheckpoint(const std::string& directory);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_DIGEST_H_
