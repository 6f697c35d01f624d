// SPDX-License-Identifier: Apache-2.0
#include "replay/selectors/sum_tree.h"

#include <algorithm>

namespace tandem::replay {

// Adds in an order of its own, which the compiler can vectorize and which is the same on every machine.
double SumTree::Node::Sum() const {
  double part[4];
  for (size_t i = 0; i < 4; ++i) part[i] = (child[i] + child[i + 4]) + (child[i + 8] + child[i + 12]);
  return (part[0] + part[2]) + (part[1] + part[3]);
}

void SumTree::Set(uint32_t index, double weight) {
  if (index >= size_) {
    // Doubling keeps the cost of growing small. New nodes are 0, and so are their sums in the levels above;
    // only a level that did not exist has to be computed.
    size_t nodes = std::max<size_t>(index / kFanOut + 1, 2 * size_ / kFanOut);
    size_ = nodes * kFanOut;
    if (levels_.empty()) levels_.emplace_back();
    levels_[0].resize(nodes);
    for (size_t level = 0; nodes > 1; ++level) {
      const size_t children = nodes;
      nodes = (nodes + kFanOut - 1) / kFanOut;
      const bool exists = levels_.size() > level + 1;
      if (!exists) levels_.emplace_back();
      levels_[level + 1].resize(nodes);
      for (size_t i = 0; i < children && !exists; ++i) {
        levels_[level + 1][i / kFanOut].child[i % kFanOut] = levels_[level][i].Sum();
      }
    }
  }
  levels_[0][index / kFanOut].child[index % kFanOut] = weight;
  size_t node = index / kFanOut;
  for (size_t level = 0; level + 1 < levels_.size(); ++level) {
    levels_[level + 1][node / kFanOut].child[node % kFanOut] = levels_[level][node].Sum();
    node /= kFanOut;
  }
  total_ = levels_.back()[0].Sum();
}

uint32_t SumTree::Find(double target) const {
  size_t node = 0;
  for (size_t level = levels_.size(); level-- > 0;) {
    const Node& here = levels_[level][node];
    size_t found = 0;
    for (size_t i = 0; i < kFanOut; ++i) {
      if (here.child[i] <= 0) continue;
      found = i;
      if (target < here.child[i]) break;
      // Rounding can leave `target` above the last child with a weight, which is then the one found.
      target -= here.child[i];
    }
    node = node * kFanOut + found;
  }
  return static_cast<uint32_t>(node);
}

void SumTree::Clear() {
  levels_.clear();
  size_ = 0;
  total_ = 0;
}

}  // namespace tandem::replay
