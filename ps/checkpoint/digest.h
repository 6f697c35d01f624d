#ifndef TANDEM_PS_CHECKPOINT_DIGEST_H_
#define TANDEM_PS_CHECKPOINT_DIGEST_H_

// What a checkpoint holds, in a few numbers that do not depend on how its tables were spread over servers.
// Two checkpoints with equal digests hold the same rows, optimizer state included, and the same dense
// parameters, bit for bit; so "trained on one server" and "trained on four" can be compared.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::ps {

struct TableDigest {
  std::string table;
  uint64_t rows = 0;
  // The sum, modulo 2^64, over all rows of all files of a hash of (id, the row's bytes): independent of their
  // order and of the files they lie in.
  uint64_t digest = 0;
};

struct CheckpointDigest {
  std::vector<TableDigest> tables;  // by name
  uint64_t dense = 0;               // a hash of the file DENSE
};

// Reads every file of the checkpoint in `directory` once, a bucket at a time. Errors are those of
// ReadManifest, TableFileReader and ReadDenseState, naming paths; NotFound when a file that the manifest
// lists is missing.
absl::StatusOr<CheckpointDigest> DigestCheckpoint(const std::string& directory);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_DIGEST_H_
