// SPDX-License-Identifier: Apache-2.0
#include "collectives/elastic/launcher_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/join.h"
#include "rpc/channel.h"

namespace tandem::collectives {

absl::StatusOr<std::unique_ptr<LauncherClient>> LauncherClient::Connect(const std::string& address,
                                                                        std::string process) {
  absl::StatusOr<std::unique_ptr<rpc::Channel>> channel = cluster::ConnectStore(address);
  if (!channel.ok()) return Annotate(channel.status(), "TANDEM_AGENT");
  return std::unique_ptr<LauncherClient>(new LauncherClient(*std::move(channel), std::move(process)));
}

absl::StatusOr<std::string> LauncherClient::AwaitOver(int64_t number, absl::Duration timeout) {
  return store_.Get(OverKey(number), timeout);
}

absl::StatusOr<Assignment> LauncherClient::AwaitAssignment(int64_t number, absl::Time deadline) {
  const absl::Time start = MonotonicNow();
  while (true) {
    // Skip rounds that began and ended while this process was busy; their assignments may be deleted already.
    while (store_.Get(OverKey(number), absl::ZeroDuration()).ok()) ++number;
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::ZeroDuration());
    // An assignment ends this call at once. The short timeout bounds how late the end of the job is noticed.
    absl::StatusOr<std::string> text =
        store_.Get(AssignmentKey(number, process_), std::min(left, absl::Milliseconds(500)));
    if (text.ok()) return Assignment::FromText(*text);
    if (!absl::IsDeadlineExceeded(text.status())) {
      return Annotate(text.status(), absl::StrCat(process_, ": its launcher does not answer"));
    }
    absl::StatusOr<std::string> closed = store_.Get(kClosedKey, absl::ZeroDuration());
    if (closed.ok()) return absl::FailedPreconditionError(absl::StrCat("the job is over: ", *closed));
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(process_, " was given no place in another round within ",
                       absl::FormatDuration(absl::Trunc(deadline - start, absl::Milliseconds(1)))));
    }
  }
}

absl::Status LauncherClient::ReportPeerFailure(int64_t number, absl::string_view reason) {
  return store_.Push(kPeerFailureQueue, absl::StrCat(number, "\n", process_, "\n", reason));
}

}  // namespace tandem::collectives
