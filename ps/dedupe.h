// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_DEDUPE_H_
#define TANDEM_PS_DEDUPE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tandem::ps {

// Deduper finds the distinct ids of a list. An object is reused from call to call, so that a steady state
// allocates nothing. Not thread-safe.
class Deduper {
 public:
  // Tests pass a `first_generation` near the last one.
  explicit Deduper(uint32_t first_generation = 0) : generation_(first_generation) {}

  // Sets `unique` to the distinct ids of `ids`, in order of first appearance, and `index` to the index of
  // each input position's id among them: unique[index[i]] == ids[i].
  void Run(absl::Span<const uint64_t> ids, std::vector<uint64_t>* unique, std::vector<uint32_t>* index);

  // Returns false if `ids` probably have few repeats, so that it costs less to leave them in than to look for
  // them. Looks at evenly spaced ids, four times as many as the square root of their number: if each id
  // appears twice, eight of these repeats are expected among them. Lists of less than kMinToSample ids always
  // give true.
  bool SampleRepeats(absl::Span<const uint64_t> ids);
  static constexpr size_t kMinToSample = 1024;

 private:
  struct Cell {
    uint64_t id;
    uint32_t index;
    uint32_t generation;  // a cell of an earlier run counts as empty, so that no clearing is needed
  };
  // Starts a run of at most `ids` ids and returns the mask of the positions of its cells.
  size_t Begin(size_t ids);

  std::vector<Cell> cells_;
  uint32_t generation_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_DEDUPE_H_
