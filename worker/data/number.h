// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_NUMBER_H_
#define TANDEM_WORKER_DATA_NUMBER_H_

// Parses numbers and labels as click logs write them. Pure functions.

#include <string>

#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"

namespace tandem::worker {

enum class NumberKind { kNumber, kMissing, kNaN, kBad };

// Parses a decimal number, with an exponent or without ("-1.5", "+2e3"); surrounding white space is ignored.
// Returns kMissing for an empty text and for NA, null, NULL, None, \N and ?, and kNaN for NaN and nan.
// Returns kBad for any other text, for infinities, for numbers beyond a float's range and for those too close
// to zero for a double (1e-400). `*value` is written only for kNumber.
NumberKind ParseNumber(absl::string_view text, float* value);

// Converts a label field to 0 or 1. With a threshold in the schema, the label is 1 if the number is at least
// the threshold. Without one the number must be 0, 1 or -1, and -1 means 0. Returns false and sets `*reason`
// if the text is missing, no number or not allowed; `*label` is then unchanged. If the schema says that the
// label is optional, a missing one is NaN.
bool ParseLabel(const Schema& schema, absl::string_view text, float* label, std::string* reason);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_NUMBER_H_
