#ifndef TANDEM_WORKER_DATA_NUMBER_H_
#define TANDEM_WORKER_DATA_NUMBER_H_

// Numbers and labels as click logs write them.

#include <string>

#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"

namespace tandem::worker {

enum class NumberKind { kNumber, kMissing, kBad };

// A decimal number, surrounded by blanks or not. Missing: nothing, or one of NA, NaN, null, NULL, None, \N,
// ?. Infinities and numbers beyond a float's range are bad. `*value` is written only for kNumber.
NumberKind ParseNumber(absl::string_view text, float* value);

// 0 or 1 from a label field, by the schema's threshold or, without one, from 0, 1 or -1. False: `*reason`
// says why.
bool ParseLabel(const Schema& schema, absl::string_view text, float* label, std::string* reason);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_NUMBER_H_
