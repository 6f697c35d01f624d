#include "ps/policies/eviction.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/suggest.h"
#include "ps/policies/eviction_kinds.h"

namespace tandem::ps {
namespace {

struct Entry {
  absl::string_view kind;
  EvictionOr (*make)(const v1::EvictionConfig&);
};

constexpr std::array<Entry, 5> kEntries = {{
    {"none", [](const v1::EvictionConfig&) -> EvictionOr { return std::unique_ptr<Eviction>(); }},
    {"lru", MakeLru},
    {"lfu", MakeLfu},
    {"ttl", MakeTtl},
    {"l2_norm", MakeL2Norm},
}};

constexpr std::array<absl::string_view, kEntries.size()> kKinds = [] {
  std::array<absl::string_view, kEntries.size()> kinds;
  for (size_t i = 0; i < kinds.size(); ++i) kinds[i] = kEntries[i].kind;
  return kinds;
}();

}  // namespace

EvictionOr MakeEviction(const v1::EvictionConfig& config) {
  const absl::string_view kind = config.kind().empty() ? "none" : absl::string_view(config.kind());
  for (const Entry& entry : kEntries) {
    if (entry.kind == kind) return entry.make(config);
  }
  return absl::InvalidArgumentError(absl::StrCat("eviction.kind is '", config.kind(), "', which is unknown",
                                                 DidYouMean(config.kind(), kKinds)));
}

absl::Span<const absl::string_view> EvictionKinds() { return kKinds; }

}  // namespace tandem::ps
