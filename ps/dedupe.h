#ifndef TANDEM_PS_DEDUPE_H_
#define TANDEM_PS_DEDUPE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tandem::ps {

// The distinct ids of `ids`, in order of first appearance, and for each input position the index of its id
// among them: unique[index[i]] == ids[i]. Reused from call to call so that a steady state allocates nothing.
// Not thread-safe.
class Deduper {
 public:
  // Tests start near the last generation.
  explicit Deduper(uint32_t first_generation = 0) : generation_(first_generation) {}

  void Run(absl::Span<const uint64_t> ids, std::vector<uint64_t>* unique, std::vector<uint32_t>* index);

 private:
  struct Cell {
    uint64_t id;
    uint32_t index;
    uint32_t generation;  // cells of earlier runs are empty ones: no clearing between runs
  };
  std::vector<Cell> cells_;
  uint32_t generation_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_DEDUPE_H_
