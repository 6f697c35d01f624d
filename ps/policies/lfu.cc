// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

// Rows with the fewest updates leave first; among equals, those that were not updated for longest.
class Lfu : public Eviction {
 public:
  absl::string_view kind() const override { return "lfu"; }
  bool needs_count() const override { return true; }
  double Priority(const RowStats& row) const override {
    // The result is exact, because a count has 32 bits and an age 20, which is less than the 53 bits of a
    // double.
    constexpr uint64_t kAges = uint64_t{1} << 20;
    return static_cast<double>(row.count) * static_cast<double>(kAges) -
           static_cast<double>(std::min(row.age, kAges - 1));
  }
};

}  // namespace

EvictionKind LfuKind() {
  return {.name = "lfu",
          .summary =
              "when `byte_budget` is used up, the rows with the fewest updates; among equals, those that "
              "were not updated for longest",
          .build = [](const v1::EvictionConfig& config) -> std::unique_ptr<Eviction> {
            return std::make_unique<Lfu>();
          }};
}

}  // namespace tandem::ps
