// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_SPLIT_H_
#define TANDEM_WORKER_DATA_SPLIT_H_

// Assigns an example to a split, as a function of a seed and either of the text of its line (without the line
// end) or of its position among the examples. SplitBy says what follows from each.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/random.h"
#include "worker/data/dataset.h"

namespace tandem::worker {

// Cuts shares of `valid_fraction` and `test_fraction` out of the training files.
struct SplitRule {
  uint64_t seed = 1;
  double valid_fraction = 0;  // 0 for a split that has files of its own
  double test_fraction = 0;
  SplitBy by = SplitBy::kText;

  bool Cuts() const { return valid_fraction > 0 || test_fraction > 0; }
  // Returns the split of example number `position`, from 0, whose line is `line`. Always kTrain if both
  // fractions are 0.
  Split Of(absl::string_view line, uint64_t position) const {
    return Cuts() ? OfHash(by == SplitBy::kText ? HashBytes(line, seed) : Mix64(seed, position))
                  : Split::kTrain;
  }
  // Returns the split of an example whose text, or position, has the hash `hash`.
  Split OfHash(uint64_t hash) const {
    const double share = static_cast<double>(hash >> 11) * 0x1.0p-53;
    if (share < test_fraction) return Split::kTest;
    return share < test_fraction + valid_fraction ? Split::kValid : Split::kTrain;
  }
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_SPLIT_H_
