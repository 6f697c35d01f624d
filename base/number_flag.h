// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_NUMBER_FLAG_H_
#define TANDEM_BASE_NUMBER_FLAG_H_

// Limits the numbers that a command-line flag accepts.

#include "base/config_field.h"

namespace CLI {
class Option;
}

namespace tandem {

// Makes the parser refuse values of `option` that are not in `range`: "--workers: 0 is not a number of at
// least 1". `--help` shows the range. Returns `option`. Unlike CLI11's own ranges, this prints limits as
// FormatLimit does.
CLI::Option* LimitTo(const Range& range, CLI::Option* option);

}  // namespace tandem

#endif  // TANDEM_BASE_NUMBER_FLAG_H_
