// SPDX-License-Identifier: Apache-2.0
#include "ps/client/push_handle.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"

namespace tandem::ps {

std::string Describe(absl::Span<const PushOutcome> outcomes) {
  std::string text;
  const auto list = [&](PushOutcome outcome, absl::string_view what) {
    std::vector<size_t> servers;
    for (size_t s = 0; s < outcomes.size(); ++s) {
      if (outcomes[s] == outcome) servers.push_back(s);
    }
    if (servers.empty()) return;
    absl::StrAppend(&text, text.empty() ? "" : ", ", what, servers.size() == 1 ? " server " : " servers ");
    for (size_t i = 0; i < servers.size(); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : i + 1 == servers.size() ? " and " : ", ", servers[i]);
    }
  };
  list(PushOutcome::kApplied, "applied on");
  list(PushOutcome::kRefused, "refused by");
  list(PushOutcome::kUnknown, "unknown on");
  list(PushOutcome::kNotSent, "not sent to");
  return text;
}

absl::Status PushHandle::Retry() {
  absl::Notification finished;
  absl::Status result;
  RetryAsync([&](absl::Status status) {
    result = std::move(status);
    finished.Notify();
  });
  finished.WaitForNotification();  // the calls end at their own deadlines
  return result;
}

}  // namespace tandem::ps
