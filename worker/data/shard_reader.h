#ifndef TANDEM_WORKER_DATA_SHARD_READER_H_
#define TANDEM_WORKER_DATA_SHARD_READER_H_

// Parses one worker's lines into batches.
//
// Malformed lines are left out, and must not make one worker see fewer batches than another: with kPad and
// kDrop the reader puts its own first good examples again at the end, one for each line left out, so that the
// numbers of batches and of examples are those of the order. With kExact nothing is repeated. A worker counts
// the malformed lines of its own shard only, and holds that count against `max_malformed`.

#include <memory>
#include <string>
#include <vector>

#include "worker/data/dataset.h"
#include "worker/data/line_order.h"
#include "worker/data/line_parser.h"
#include "worker/data/line_source.h"

namespace tandem::worker {

class ShardReader : public BatchReader {
 public:
  // `keep_alive` owns whatever `source` belongs to.
  ShardReader(std::shared_ptr<const void> keep_alive, const LineSource& source, const SplitRule& rule,
              const ReadOptions& options, const Schema& schema, std::unique_ptr<LineParser> parser,
              uint64_t max_malformed);

  absl::StatusOr<bool> Next(Batch* batch) override;
  uint64_t malformed_lines() const override { return malformed_; }

 private:
  // The next line to parse, first of the order, then to make up for malformed ones; false at the end.
  bool NextLine(uint64_t* position);
  absl::Status NoteMalformed(uint64_t position, const std::string& reason);

  const std::shared_ptr<const void> keep_alive_;
  const LineSource& source_;
  const ReadOptions options_;
  const Schema schema_;
  const std::unique_ptr<LineParser> parser_;
  const uint64_t max_malformed_;
  LineOrder order_;
  bool order_done_ = false;
  std::vector<uint64_t> spares_;  // the first good lines
  uint64_t made_up_ = 0;          // how many malformed lines were made up for
  uint64_t malformed_ = 0;
  std::string first_malformed_;  // what was wrong with the first ones
  absl::Status error_;           // what Next returned last, if it failed
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_SHARD_READER_H_
