// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_SIZES_H_
#define TANDEM_BENCH_HARNESS_SIZES_H_

// Parses message sizes on a command line.

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::bench {

// Parses lists such as "8,1K,64M" and ranges "from:to:factor", and returns the sizes in the given order.
// "8:64M:4" is 8, 32, 128, ... up to 64M; the default factor is 2. K, M and G are powers of 1024.
// InvalidArgument names the part that is wrong.
absl::StatusOr<std::vector<size_t>> ParseSizes(absl::string_view text);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_SIZES_H_
