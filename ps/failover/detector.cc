// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/detector.h"

#include <algorithm>

namespace tandem::ps {

void Detector::Tick(absl::Time now) {
  const absl::Duration slept = now - last_tick_;
  if (last_tick_ != absl::InfinitePast() && slept > kLate) {
    // Messages that were handled since the sleep, but before this call, are not moved past it.
    primary_heard_ = std::min(primary_heard_ + slept, now);
    for (auto& [id, link] : links_) link.heard = std::min(link.heard + slept, now);
  }
  last_tick_ = now;
}

void Detector::FollowerHeard(const std::string& id, absl::Time sent) {
  const auto found = links_.find(id);
  if (found == links_.end()) return;
  found->second.sent = std::max(found->second.sent, sent);
  found->second.heard = std::max(found->second.heard, sent);
}

void Detector::ReportSilenceAgain(const std::string& id) {
  const auto found = links_.find(id);
  if (found != links_.end()) found->second.silent = false;
}

Detector::Changes Detector::TakeChanges(absl::Time now) {
  Changes changes;
  for (auto& [id, link] : links_) {
    const bool silent = now - link.heard >= silence_;
    if (silent == link.silent) continue;
    link.silent = silent;
    (silent ? changes.silent : changes.heard).push_back(id);
  }
  return changes;
}

std::vector<std::string> Detector::Quiet(absl::Duration quiet, absl::Time now) const {
  std::vector<std::string> ids;
  for (const auto& [id, link] : links_) {
    if (now - link.heard >= quiet) ids.push_back(id);
  }
  return ids;
}

bool Detector::HoldsLease(const std::vector<std::string>& ids, absl::Time now) const {
  return std::all_of(ids.begin(), ids.end(), [&](const std::string& id) {
    const auto found = links_.find(id);
    return found != links_.end() && now - found->second.sent < lease_;
  });
}

}  // namespace tandem::ps
