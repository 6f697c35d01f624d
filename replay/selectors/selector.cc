// SPDX-License-Identifier: Apache-2.0
#include "replay/selectors/selector.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "replay/selectors/heap.h"
#include "replay/selectors/ordered.h"
#include "replay/selectors/prioritized.h"
#include "replay/selectors/uniform.h"

namespace tandem::replay {
namespace {

constexpr SelectorKind kKinds[] = {SelectorKind::kFifo,        SelectorKind::kLifo,   SelectorKind::kUniform,
                                   SelectorKind::kPrioritized, SelectorKind::kLowest, SelectorKind::kHighest};
constexpr double kMaxExponent = 16;
// A table has at most 2^32 slots, so the sum of all weights stays below 2^1023.
constexpr double kMaxWeight = 0x1p990;

}  // namespace

absl::string_view Name(SelectorKind kind) {
  switch (kind) {
    case SelectorKind::kFifo:
      return "fifo";
    case SelectorKind::kLifo:
      return "lifo";
    case SelectorKind::kUniform:
      return "uniform";
    case SelectorKind::kPrioritized:
      return "prioritized";
    case SelectorKind::kLowest:
      return "lowest";
    case SelectorKind::kHighest:
      return "highest";
  }
  return "unknown selector";
}

absl::StatusOr<SelectorKind> ParseSelector(absl::string_view name) {
  std::vector<std::string> names;
  for (const SelectorKind kind : kKinds) {
    if (Name(kind) == name) return kind;
    names.emplace_back(Name(kind));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no selector; there are ", absl::StrJoin(names, ", ")));
}

absl::Status CheckSelector(const SelectorOptions& options) {
  if (Name(options.kind) == "unknown selector") {
    return absl::InvalidArgumentError(absl::StrCat("unknown selector ", static_cast<int>(options.kind)));
  }
  if (!(options.exponent >= 0 && options.exponent <= kMaxExponent)) {
    return absl::InvalidArgumentError(absl::StrCat("the exponent of selector ", Name(options.kind), " is ",
                                                   options.exponent, "; it must be in [0, ", kMaxExponent,
                                                   "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckPriority(const SelectorOptions& options, double priority) {
  if (!std::isfinite(priority) || priority < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("priority ", priority, "; it must be finite and not negative"));
  }
  // priority^exponent is at most max(1, priority) if the exponent is at most 1; pow is slow.
  if (options.exponent <= 1 && priority <= kMaxWeight) return absl::OkStatus();
  if (options.kind == SelectorKind::kPrioritized &&
      !(PriorityWeight(priority, options.exponent) <= kMaxWeight)) {
    return absl::InvalidArgumentError(absl::StrCat("priority ", priority, " to the power of ",
                                                   options.exponent,
                                                   " exceeds 2^990; scale the priorities down"));
  }
  return absl::OkStatus();
}

std::unique_ptr<Selector> MakeSelector(const SelectorOptions& options) {
  switch (options.kind) {
    case SelectorKind::kFifo:
      return std::make_unique<OrderedSelector>(/*oldest=*/true);
    case SelectorKind::kLifo:
      return std::make_unique<OrderedSelector>(/*oldest=*/false);
    case SelectorKind::kUniform:
      return std::make_unique<UniformSelector>();
    case SelectorKind::kPrioritized:
      return std::make_unique<PrioritizedSelector>(options.exponent);
    case SelectorKind::kLowest:
      return std::make_unique<HeapSelector>(/*lowest=*/true);
    case SelectorKind::kHighest:
      return std::make_unique<HeapSelector>(/*lowest=*/false);
  }
  return std::make_unique<UniformSelector>();
}

}  // namespace tandem::replay
