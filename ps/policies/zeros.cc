#include <algorithm>

#include "ps/policies/initializer_kinds.h"

namespace tandem::ps {
namespace {

class ZerosInitializer : public Initializer {
 public:
  absl::string_view kind() const override { return "zeros"; }
  void Fill(uint64_t seed, uint64_t id, float* row, size_t dim) const override {
    std::fill_n(row, dim, 0.0f);
  }
};

}  // namespace

InitializerOr MakeZeros(const v1::InitializerConfig& config) { return std::make_unique<ZerosInitializer>(); }

}  // namespace tandem::ps
