// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_LINE_ORDER_H_
#define TANDEM_WORKER_DATA_LINE_ORDER_H_

// Determines the order in which one worker reads the lines of an epoch.
//
// The lines of the split pass, in file order, through a shuffle buffer. It holds the positions of up to
// `shuffle_buffer` lines; each incoming line replaces a random one, which is the next line of the order. This
// global order is a function of (files, split, seed, epoch, shuffle_buffer) only, and every worker computes
// all of it. Then example i goes to worker i % world_size, as in torch's DistributedSampler. Parsing is
// divided among the workers. The positions of the split's lines come from a SplitIndex; without one, every
// worker finds all line ends (memchr) and hashes all lines.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/random.h"
#include "worker/data/dataset.h"
#include "worker/data/line_source.h"
#include "worker/data/split.h"
#include "worker/data/split_index.h"

namespace tandem::worker {

// Iterates over the positions of one worker's lines. Not thread-safe. `source` must outlive the object.
class LineOrder {
 public:
  // `options` must be valid (Dataset::Read checks them). Lines that `rule` puts into another split are
  // skipped. `index` has the lines of `source` by `rule`, or is nullptr.
  LineOrder(const LineSource& source, const SplitRule& rule, const ReadOptions& options,
            std::shared_ptr<const SplitIndex> index);

  // Stores the position of this worker's next line; returns false at the end. With kPad and kDrop every
  // worker gets the same number of lines; with kExact the numbers may differ by one. The first call reads
  // until the shuffle buffer is full.
  bool Next(uint64_t* position);

 private:
  bool NextInSplit(uint64_t* position);
  bool NextInOrder(uint64_t* position);

  const SplitRule rule_;
  const ReadOptions options_;
  std::optional<SplitIndex::Cursor> indexed_;  // used instead of cursor_ if there is an index
  LineSource::Cursor cursor_;
  uint64_t lines_ = 0;  // that cursor_ has passed
  CounterRandom random_;
  bool filled_ = false;     // the buffer has been filled for the first time
  bool exhausted_ = false;  // the cursor is at its end
  bool done_ = false;       // Next has returned this worker's last line
  std::vector<uint64_t> buffer_;
  // The first world_size lines of the order; kPad repeats them at the end.
  std::vector<uint64_t> first_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_LINE_ORDER_H_
