#ifndef TANDEM_BASE_SUGGEST_H_
#define TANDEM_BASE_SUGGEST_H_

// "Did you mean": what an error about an unknown name should offer.

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem {

// The entry of `known` that `name` is most likely a misspelling of, or "" when none is near (more than a
// third of its letters would have to change). Swapped neighbours count as one change.
absl::string_view ClosestName(absl::string_view name, absl::Span<const absl::string_view> known);

// " (did you mean 'adagrad'? known: sgd, adagrad)", or without the question when nothing is near.
std::string DidYouMean(absl::string_view name, absl::Span<const absl::string_view> known);

}  // namespace tandem

#endif  // TANDEM_BASE_SUGGEST_H_
