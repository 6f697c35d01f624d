// SPDX-License-Identifier: Apache-2.0
#include "ps/policies/eviction.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

EvictionKind NoneKind() {
  return {.name = "none", .summary = "no row leaves", .build = [](const v1::EvictionConfig&) {
            return std::unique_ptr<Eviction>();
          }};
}

// "lru, lfu or ttl"
std::string JoinWithOr(const std::vector<absl::string_view>& names) {
  return absl::StrCat(absl::StrJoin(names.begin(), names.end() - 1, ", "), " or ", names.back());
}

}  // namespace

// Each is defined in the source file of its kind.
EvictionKind LruKind();
EvictionKind LfuKind();
EvictionKind L2NormKind();
EvictionKind TtlKind();

const EvictionRegistry& Evictions() {
  static const auto* const registry =
      new EvictionRegistry("eviction", {NoneKind(), LruKind(), LfuKind(), L2NormKind(), TtlKind()});
  return *registry;
}

absl::StatusOr<std::unique_ptr<Eviction>> MakeEviction(const v1::EvictionConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(const EvictionKind* const kind,
                          Evictions().Get(config.kind().empty() ? absl::string_view("none") : config.kind()));
  TANDEM_RETURN_IF_ERROR(Evictions().Validate(*kind, config));
  return kind->build(config);
}

absl::Span<const absl::string_view> EvictionKinds() { return Evictions().names(); }

bool EvictsForBudget(absl::string_view kind) {
  const EvictionKind* const found = Evictions().Find(kind);
  if (found == nullptr) return false;
  const std::unique_ptr<Eviction> eviction = found->build(Evictions().Default(kind));
  return eviction != nullptr && !eviction->sweeps();
}

std::string EvictionKindsText(bool for_budget_only) {
  std::vector<absl::string_view> names;
  for (const absl::string_view kind : EvictionKinds()) {
    if (kind != "none" && (!for_budget_only || EvictsForBudget(kind))) names.push_back(kind);
  }
  return JoinWithOr(names);
}

}  // namespace tandem::ps
