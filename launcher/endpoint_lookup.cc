// SPDX-License-Identifier: Apache-2.0
#include "launcher/endpoint_lookup.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status.h"
#include "rpc/address.h"

namespace tandem::launcher {
namespace {

constexpr absl::Duration kFirstLookAgain = absl::Milliseconds(50), kLastLookAgain = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::string> FindLocalAddress(const std::string& endpoint, absl::Duration timeout,
                                             const EndpointLookup& lookup) {
  const std::vector<std::string> addresses = absl::StrSplit(endpoint, ',', absl::SkipWhitespace());
  for (const std::string& address : addresses) {
    TANDEM_RETURN_IF_ERROR(Annotate(rpc::ParseAddress(address).status(), "--rdzv-endpoint"));
  }
  const absl::Time deadline = MonotonicNow() + timeout;
  bool said = false;
  for (absl::Duration pause = kFirstLookAgain;; pause = std::min(2 * pause, kLastLookAgain)) {
    absl::Status problem = absl::InvalidArgumentError("--rdzv-endpoint names no host");
    for (const std::string& address : addresses) {
      absl::StatusOr<std::string> found = lookup.find(address);
      if (found.ok()) return found;
      problem = found.status();
    }
    if (!absl::IsUnavailable(problem)) return problem;
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) {
      return absl::UnavailableError(absl::StrCat(
          problem.message(), ", for ", absl::FormatDuration(timeout), ": --rdzv-endpoint ", endpoint,
          " must be the name or address of the host at which the nodes meet; `getent hosts NAME` shows what "
          "this machine knows; --rdzv-conf join_timeout=SECONDS waits longer"));
    }
    if (!said) {
      said = true;
      lookup.say(absl::StrCat(problem.message(), "; looking again for ", absl::FormatDuration(timeout),
                              ", because it may not have started yet"));
    }
    if (!lookup.pause(std::min(pause, left))) {
      return absl::CancelledError(absl::StrCat("stopped while looking for ", endpoint));
    }
  }
}

}  // namespace tandem::launcher
