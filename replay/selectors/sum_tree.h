// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SELECTORS_SUM_TREE_H_
#define TANDEM_REPLAY_SELECTORS_SUM_TREE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::replay {

// An array of weights and the sums over them: a tree in which each node has 16 children, which fill two cache
// lines. Five levels hold a million weights. Setting a weight recomputes the sums above it from their
// children, so that sums do not drift however many updates there are. Not thread-safe.
class SumTree {
 public:
  static constexpr size_t kFanOut = 16;

  // Sets a weight, which must be finite and not negative. The array grows as needed; new weights are 0.
  void Set(uint32_t index, double weight);
  // Returns a weight; 0 if it has never been set.
  double Get(uint32_t index) const {
    return index < size_ ? levels_[0][index / kFanOut].child[index % kFanOut] : 0;
  }
  // Fetches the leaf of a weight into the cache.
  void Prefetch(uint32_t index) const {
    if (index >= size_) return;
    const auto* const leaf = reinterpret_cast<const char*>(&levels_[0][index / kFanOut]);
    __builtin_prefetch(leaf, 1);
    __builtin_prefetch(leaf + 64, 1);
  }
  // Returns the sum of all weights.
  double total() const { return levels_.empty() ? 0 : total_; }
  // Returns the index at which the running sum of the weights first exceeds `target`, which should be in
  // [0, total()). total() must be above 0. Never returns an index with weight 0, however sums are rounded.
  uint32_t Find(double target) const;
  void Clear();

 private:
  struct alignas(64) Node {
    double child[kFanOut] = {};
    double Sum() const;
  };
  // The nodes of levels_[0] have the weights. Child i of a node of levels_[k + 1] is the sum of a node of
  // levels_[k]. The last level has one node.
  std::vector<std::vector<Node>> levels_;
  size_t size_ = 0;  // number of weights in levels_[0]
  double total_ = 0;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SELECTORS_SUM_TREE_H_
