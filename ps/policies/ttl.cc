#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ps/policies/eviction_kinds.h"

namespace tandem::ps {
namespace {

// Row versions are 32 bits: ages are known modulo 2^32, and sweeps come often enough below this.
constexpr uint64_t kMaxTtl = uint64_t{1} << 31;

class Ttl : public Eviction {
 public:
  explicit Ttl(uint64_t ttl) : ttl_(ttl) {}
  absl::string_view kind() const override { return "ttl"; }
  bool sweeps() const override { return true; }
  bool Expired(const RowStats& row) const override { return row.age > ttl_; }
  double Priority(const RowStats& row) const override { return -static_cast<double>(row.age); }

 private:
  const uint64_t ttl_;
};

}  // namespace

EvictionOr MakeTtl(const v1::EvictionConfig& config) {
  if (config.ttl() < 1 || config.ttl() > kMaxTtl) {
    return absl::InvalidArgumentError(
        absl::StrCat("eviction.ttl is ", config.ttl(), "; it must be in [1, 2^31] updates"));
  }
  return std::make_unique<Ttl>(config.ttl());
}

}  // namespace tandem::ps
