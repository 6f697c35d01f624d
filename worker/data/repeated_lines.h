// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_REPEATED_LINES_H_
#define TANDEM_WORKER_DATA_REPEATED_LINES_H_

// Estimates how many lines repeat the text of another line, in bounded memory.

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "base/random.h"

namespace tandem::worker {

// Counts the lines whose hash is below a threshold, by hash. Whenever these hashes are too many, the
// threshold is halved. What remains is a sample of the distinct texts, with all lines of each (distinct
// sampling; Gibbons, VLDB 2001). Exact up to kMaxTexts distinct texts. Not thread-safe.
class RepeatedLines {
 public:
  static constexpr size_t kMaxTexts = 1 << 15;

  // Adds a line, of which `hash` is a hash of its text.
  void Add(uint64_t hash) {
    hash = Mix64(hash);  // what decides a line's split must not decide whether it is sampled
    if (hash > threshold_) return;
    ++lines_of_[hash];
    ++lines_;
    if (lines_of_.size() > kMaxTexts) Shrink();
  }
  // Returns 1 - distinct texts / lines, of the sample. 0 if no line was added.
  double Share() const;

 private:
  void Shrink();

  uint64_t threshold_ = ~uint64_t{0};
  uint64_t lines_ = 0;  // sum of lines_of_
  absl::flat_hash_map<uint64_t, uint64_t> lines_of_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_REPEATED_LINES_H_
