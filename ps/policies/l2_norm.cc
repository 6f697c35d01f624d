#include "ps/policies/eviction_kinds.h"

namespace tandem::ps {
namespace {

// The smallest embeddings: those that add least to what a model computes.
class L2Norm : public Eviction {
 public:
  absl::string_view kind() const override { return "l2_norm"; }
  bool needs_norm() const override { return true; }
  double Priority(const RowStats& row) const override { return row.squared_norm; }
};

}  // namespace

EvictionOr MakeL2Norm(const v1::EvictionConfig& config) { return std::make_unique<L2Norm>(); }

}  // namespace tandem::ps
