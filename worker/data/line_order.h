#ifndef TANDEM_WORKER_DATA_LINE_ORDER_H_
#define TANDEM_WORKER_DATA_LINE_ORDER_H_

// The order in which one worker sees its lines of an epoch.
//
// The lines of the split, in file order, pass through a shuffle buffer: it holds the positions of up to
// `shuffle_buffer` lines; each incoming line takes the place of a random one, which leaves. That global order
// is a function of (files, split, seed, epoch, shuffle_buffer) only, and every worker computes all of it;
// only then example i is given to worker i % world_size, as torch's DistributedSampler does. Reading lines
// (by memchr) and hashing them for the split is the price of every worker; parsing is shared.

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "worker/data/dataset.h"
#include "worker/data/line_source.h"
#include "worker/data/split.h"

namespace tandem::worker {

// Not thread-safe. `source` must outlive the object.
class LineOrder {
 public:
  // `options` must be valid (see Dataset::Read). Lines that `rule` gives to another split are passed over.
  LineOrder(const LineSource& source, const SplitRule& rule, const ReadOptions& options);

  // The position of this worker's next line; false at the end. Every worker gets the same number of lines
  // with kPad and kDrop; with kExact they may differ by one. The first call reads until the shuffle buffer is
  // full.
  bool Next(uint64_t* position);

 private:
  bool NextInSplit(uint64_t* position);
  bool NextInOrder(uint64_t* position);

  const SplitRule rule_;
  const ReadOptions options_;
  LineSource::Cursor cursor_;
  CounterRandom random_;
  bool filled_ = false;     // the buffer was filled for the first time
  bool exhausted_ = false;  // no more lines come in
  bool done_ = false;       // nothing more goes out
  std::vector<uint64_t> buffer_;
  std::vector<uint64_t> first_;  // the first world_size lines of the order: what pads the end
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_LINE_ORDER_H_
