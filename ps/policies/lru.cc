#include "ps/policies/eviction_kinds.h"

namespace tandem::ps {
namespace {

class Lru : public Eviction {
 public:
  absl::string_view kind() const override { return "lru"; }
  double Priority(const RowStats& row) const override { return -static_cast<double>(row.age); }
};

}  // namespace

EvictionOr MakeLru(const v1::EvictionConfig& config) { return std::make_unique<Lru>(); }

}  // namespace tandem::ps
