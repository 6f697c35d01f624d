// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_LOG_TAIL_H_
#define TANDEM_PS_FAILOVER_LOG_TAIL_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "base/bytes.h"

namespace tandem::ps {

// The last records of a shard's log, encoded (ps/log/record.h), without gaps. Not thread-safe.
class LogTail {
 public:
  explicit LogTail(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Takes effect with the next Add.
  void SetMaxBytes(uint64_t max_bytes) { max_bytes_ = max_bytes; }
  // Forgets all records. The next one has the position `last` + 1.
  void Restart(uint64_t last);
  // Adds the records from position `first` to `last`, and forgets old ones beyond max_bytes. Records that do
  // not come next replace all others.
  void Add(uint64_t first, uint64_t last, Slice records);
  // Returns whether every record behind `position` is here.
  bool Reaches(uint64_t position) const { return position <= last_ && position + 1 >= first_; }
  // Returns the records behind `from`, up to `to`. Requires Reaches(from), and that a call of Add ended with
  // `to` or that `to` is the last position.
  std::vector<Slice> Between(uint64_t from, uint64_t to) const;

  uint64_t last() const { return last_; }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Piece {
    uint64_t first = 0;
    uint64_t last = 0;
    Slice records;
  };
  uint64_t max_bytes_;
  uint64_t first_ = 1;  // the oldest record that is here, or would be
  uint64_t last_ = 0;
  uint64_t bytes_ = 0;
  std::deque<Piece> pieces_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_LOG_TAIL_H_
