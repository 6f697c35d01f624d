// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CHECKPOINT_EXPORT_H_
#define TANDEM_PS_CHECKPOINT_EXPORT_H_

// Writes a checkpoint's tables and dense parameters in formats that other programs read.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/v1/checkpoint.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

enum class ExportFormat {
  kNpy,  // NAME.ids.npy: uint64 [rows]; NAME.rows.npy: float32 [rows, dim]
  kCsv,  // NAME.csv: id,v0,v1,...
};

struct ExportOptions {
  ExportFormat format = ExportFormat::kNpy;
  // True: optimizer state is written too, as NAME.state.npy, float32 [rows, state], or columns s0,s1,... of
  // the CSV file, and the arrays `optimizer_state` (float32) and `optimizer_steps` (uint64) of dense.npz.
  bool optimizer_state = false;
};

struct ExportedTable {
  std::string name;
  uint64_t rows = 0;
  uint32_t dim = 0;
  uint32_t state = 0;  // floats of optimizer state of a row, written or not
  v1::TableConfig config;
  std::vector<std::string> files;
};

struct Exported {
  v1::CheckpointManifest manifest;
  std::vector<ExportedTable> tables;  // in ascending order of name
  std::vector<std::string> blocks;    // names of the arrays of dense.npz
};

// Writes the tables of the checkpoint `checkpoint` and its dense parameters (dense.npz, one float32 array for
// each block, running averages included) to the directory `to`, which is created if necessary. Rows are in
// order of bucket and then of id, so the files do not depend on the number of servers. Embeddings of any row
// type are written as float32, which represents them exactly. Files that exist are replaced, each when it is
// complete.
//
// Blocks on the disk; uses little memory besides the dense parameters. Errors name the path: those of
// ReadManifest, TableFileReader and ReadDenseState, and those of the files.
absl::StatusOr<Exported> ExportCheckpoint(const std::string& checkpoint, const std::string& to,
                                          const ExportOptions& options);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_EXPORT_H_
