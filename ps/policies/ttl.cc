// SPDX-License-Identifier: Apache-2.0
#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

// Row versions have 32 bits, so ages are known modulo 2^32. Up to this limit, sweeps are frequent enough to
// tell.
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

EvictionKind TtlKind() {
  return {.name = "ttl",
          .summary =
              "rows that were not updated for `ttl` updates of the table, looked for in one of the 256 "
              "buckets an update; with a `byte_budget`, also as `lru`",
          .fields = {MessageField<&v1::EvictionConfig::ttl, &v1::EvictionConfig::set_ttl>(
              {.name = "ttl",
               .help = "updates of the table",
               .range = Between(1, kMaxTtl),
               .default_value = 0,
               .allowed = " updates",
               .missing = "after how many updates without one of its own a row leaves"})},
          .build = [](const v1::EvictionConfig& config) -> std::unique_ptr<Eviction> {
            return std::make_unique<Ttl>(config.ttl());
          }};
}

}  // namespace tandem::ps
