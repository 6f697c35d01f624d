// SPDX-License-Identifier: Apache-2.0
#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

// Rows with the smallest embeddings leave first: they contribute least to the output of a model.
class L2Norm : public Eviction {
 public:
  absl::string_view kind() const override { return "l2_norm"; }
  bool needs_norm() const override { return true; }
  double Priority(const RowStats& row) const override { return row.squared_norm; }
};

}  // namespace

EvictionKind L2NormKind() {
  return {.name = "l2_norm",
          .summary = "when `byte_budget` is used up, the rows of the smallest L2 norm",
          .build = [](const v1::EvictionConfig& config) -> std::unique_ptr<Eviction> {
            return std::make_unique<L2Norm>();
          }};
}

}  // namespace tandem::ps
