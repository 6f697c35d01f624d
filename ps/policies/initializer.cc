#include "ps/policies/initializer.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/suggest.h"
#include "ps/policies/initializer_kinds.h"

namespace tandem::ps {
namespace {

struct Entry {
  absl::string_view kind;
  InitializerOr (*make)(const v1::InitializerConfig&);
};

constexpr std::array<Entry, 6> kEntries = {{
    {"zeros", MakeZeros},
    {"constant", MakeConstant},
    {"uniform", MakeUniform},
    {"normal", MakeNormal},
    {"truncated_normal", MakeTruncatedNormal},
    {"xavier", MakeXavier},
}};

constexpr std::array<absl::string_view, kEntries.size()> kKinds = [] {
  std::array<absl::string_view, kEntries.size()> kinds;
  for (size_t i = 0; i < kinds.size(); ++i) kinds[i] = kEntries[i].kind;
  return kinds;
}();

}  // namespace

InitializerOr MakeInitializer(const v1::InitializerConfig& config) {
  for (const Entry& entry : kEntries) {
    if (entry.kind == config.kind()) return entry.make(config);
  }
  return absl::InvalidArgumentError(absl::StrCat("initializer.kind is '", config.kind(),
                                                 "', which is unknown", DidYouMean(config.kind(), kKinds)));
}

absl::Span<const absl::string_view> InitializerKinds() { return kKinds; }

}  // namespace tandem::ps
