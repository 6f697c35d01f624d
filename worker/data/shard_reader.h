// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_SHARD_READER_H_
#define TANDEM_WORKER_DATA_SHARD_READER_H_

// Parses one worker's lines into batches.
//
// A malformed line is skipped. Skipping must not make one worker see fewer batches than another: with kPad
// and kDrop the reader repeats its own first good examples at the end, one for each line skipped. The numbers
// of batches and of examples are then those of the order. With kExact nothing is repeated. A reader counts
// the malformed lines of its own shard only and compares that count with `max_malformed`.

#include <memory>
#include <string>
#include <vector>

#include "worker/data/dataset.h"
#include "worker/data/line_order.h"
#include "worker/data/line_parser.h"
#include "worker/data/line_source.h"

namespace tandem::worker {

// The BatchReader of a Dataset. Not thread-safe.
class ShardReader : public BatchReader {
 public:
  // `keep_alive` owns `source` (directly or not).
  // `index`: as for LineOrder. `parsers`: one for each of the source's headers.
  ShardReader(std::shared_ptr<const void> keep_alive, const LineSource& source, const SplitRule& rule,
              std::shared_ptr<const SplitIndex> index, const ReadOptions& options, const Schema& schema,
              std::vector<std::unique_ptr<LineParser>> parsers, uint64_t max_malformed);

  absl::StatusOr<bool> Next(Batch* batch) override;
  uint64_t malformed_lines() const override { return malformed_; }

 private:
  // Stores the position of the next line to parse: first those of the order, then replacements for malformed
  // ones. Returns false at the end.
  bool NextLine(uint64_t* position);
  // Counts and logs a malformed line. DataLoss if there are more than max_malformed_.
  absl::Status RecordMalformed(uint64_t position, const std::string& reason);

  const std::shared_ptr<const void> keep_alive_;
  const LineSource& source_;
  const ReadOptions options_;
  const Schema schema_;
  const std::vector<std::unique_ptr<LineParser>> parsers_;
  const uint64_t max_malformed_;
  LineOrder order_;
  bool order_done_ = false;
  std::vector<uint64_t> replacements_;  // positions of the first good lines
  uint64_t replaced_ = 0;               // number of malformed lines replaced so far
  uint64_t malformed_ = 0;
  std::string first_malformed_;  // messages of the first malformed lines
  absl::Status error_;           // the error that Next returned, if it failed
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_SHARD_READER_H_
