// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_CHECKPOINT_CHAIN_H_
#define TANDEM_WORKER_TRAINER_CHECKPOINT_CHAIN_H_

// CheckpointChain decides which checkpoints of a run hold only what has changed since the one before
// (ps/checkpoint/chain.h). A complete one is saved in these cases:
//
//   - It is the first of a process of rank 0, because servers know no moment before.
//   - `checkpoint.deltas` others were saved in a row.
//   - The others since the last complete one have half its size.
//   - The checkpoint before is not there any more.

#include <cstdint>
#include <string>

#include "ps/client/client.h"
#include "tandem/v1/checkpoint.pb.h"

namespace tandem::worker {

// Used by rank 0 only; not thread-safe.
class CheckpointChain {
 public:
  // `directory` is checkpoint.dir. `deltas` 0: all checkpoints are complete.
  CheckpointChain(std::string directory, int deltas)
      : directory_(std::move(directory)), most_deltas_(deltas) {}

  // Returns how the servers save the checkpoint of `step`. Reads the manifest of the one before.
  ps::SaveOptions OptionsFor(uint64_t step) const;
  // Notes that the checkpoint `path` was committed with this manifest.
  void Committed(const std::string& path, const v1::CheckpointManifest& manifest);

 private:
  const std::string directory_;
  const int most_deltas_;
  std::string last_;  // name of the last committed checkpoint; empty: none
  int deltas_ = 0;    // since the last complete one
  uint64_t complete_bytes_ = 0;
  uint64_t delta_bytes_ = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_CHECKPOINT_CHAIN_H_
