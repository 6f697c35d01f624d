// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PLAN_SIGNALS_H_
#define TANDEM_LAUNCHER_PLAN_SIGNALS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::launcher {

// torchrun's default.
inline constexpr char kDefaultSignals[] = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

// Returns the numbers of the signals in `text`, such as "SIGTERM,USR1" (--signals-to-handle). InvalidArgument
// if a name is unknown, or if a launcher cannot handle the signal.
absl::StatusOr<std::vector<int>> ParseSignals(absl::string_view text);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_SIGNALS_H_
