// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_NUMBER_H_
#define TANDEM_WORKER_DATA_NUMBER_H_

// Parses numbers and labels as click logs write them.

#include <string>

#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"

namespace tandem::worker {

enum class NumberKind { kNumber, kMissing, kBad };

// Parses a decimal number; surrounding white space is ignored. Returns kMissing for an empty text and for NA,
// NaN, null, NULL, None, \N and ?. Returns kBad for any other text, for infinities and for numbers beyond a
// float's range. `*value` is written only for kNumber.
NumberKind ParseNumber(absl::string_view text, float* value);

// Converts a label field to 0 or 1: by the schema's threshold, or without one from 0, 1 or -1 (-1 means 0).
// Returns false, and a `*reason`, if that is not possible.
bool ParseLabel(const Schema& schema, absl::string_view text, float* label, std::string* reason);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_NUMBER_H_
