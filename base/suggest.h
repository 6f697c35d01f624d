// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_SUGGEST_H_
#define TANDEM_BASE_SUGGEST_H_

// Builds the "did you mean" part of errors about unknown names.

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem {

// Returns the entry of `known` of which `name` is most likely a misspelling. Returns "" if none is close,
// that is, if more than a third of the letters would have to change. Two swapped adjacent letters count as
// one change.
absl::string_view ClosestName(absl::string_view name, absl::Span<const absl::string_view> known);

// Returns " (did you mean 'adagrad'? known: sgd, adagrad)", without the question if no name is close.
std::string DidYouMean(absl::string_view name, absl::Span<const absl::string_view> known);

}  // namespace tandem

#endif  // TANDEM_BASE_SUGGEST_H_
