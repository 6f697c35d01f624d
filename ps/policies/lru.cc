// SPDX-License-Identifier: Apache-2.0
#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

class Lru : public Eviction {
 public:
  absl::string_view kind() const override { return "lru"; }
  double Priority(const RowStats& row) const override { return -static_cast<double>(row.age); }
};

}  // namespace

EvictionKind LruKind() {
  return {.name = "lru",
          .summary = "when `byte_budget` is used up, the rows that were not updated for longest",
          .build = [](const v1::EvictionConfig& config) -> std::unique_ptr<Eviction> {
            return std::make_unique<Lru>();
          }};
}

}  // namespace tandem::ps
