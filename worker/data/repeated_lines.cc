// SPDX-License-Identifier: Apache-2.0
#include "worker/data/repeated_lines.h"

namespace tandem::worker {

double RepeatedLines::Share() const {
  if (lines_ == 0) return 0;
  return 1 - static_cast<double>(lines_of_.size()) / static_cast<double>(lines_);
}

void RepeatedLines::Shrink() {
  threshold_ /= 2;
  for (auto entry = lines_of_.begin(); entry != lines_of_.end();) {
    if (entry->first <= threshold_) {
      ++entry;
    } else {
      lines_ -= entry->second;
      lines_of_.erase(entry++);
    }
  }
}

}  // namespace tandem::worker
