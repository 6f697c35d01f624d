// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_SPLIT_INDEX_H_
#define TANDEM_WORKER_DATA_SPLIT_INDEX_H_

// The positions of the lines of each split, in file order. With an index, a reader of a split
// need not find and hash all lines of the files again.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker/data/dataset.h"

namespace tandem::worker {

// Positions in one to three bytes a line, as differences to the line before of the same split. Filled by one
// thread; afterwards immutable and thread-safe.
class SplitIndex {
 public:
  // Adds a line. Its position is greater than that of every line before.
  void Add(Split split, uint64_t position);
  // Memory of the positions in bytes.
  uint64_t bytes() const;

  // Iterates over the positions of a split. Not thread-safe. Shares the ownership of the index.
  class Cursor {
   public:
    Cursor(std::shared_ptr<const SplitIndex> index, Split split);
    // Stores the next position. Returns false at the end and leaves the argument unchanged.
    bool Next(uint64_t* position);

   private:
    std::shared_ptr<const SplitIndex> index_;
    const uint8_t* at_;
    const uint8_t* end_;
    uint64_t position_ = 0;
  };

 private:
  struct Lines {
    std::vector<uint8_t> differences;  // base 128, the low digit first; the high bit says that more follow
    uint64_t last = 0;
  };
  std::array<Lines, 3> splits_;  // by Split
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_SPLIT_INDEX_H_
