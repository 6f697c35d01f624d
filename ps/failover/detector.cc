// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/detector.h"

#include <algorithm>

namespace tandem::ps {

void Detector::Tick(absl::Time now) {
  const absl::Duration slept = now - last_tick_;
  if (last_tick_ != absl::InfinitePast() && slept > kLate) {
    // Messages that were handled since the sleep, but before this call, are not moved past it.
    primary_heard_ = std::min(primary_heard_ + slept, now);
    for (auto& [id, link] : links_) {
      link.heard = std::min(link.heard + slept, now);
      link.moved = std::min(link.moved + slept, now);
      if (link.dead != absl::InfiniteFuture()) link.dead = std::min(link.dead + slept, now);
    }
  }
  last_tick_ = now;
}

void Detector::FollowerHeard(const std::string& id, const ClockReading& sent) {
  const auto found = links_.find(id);
  if (found == links_.end()) return;
  found->second.lease_from = std::max(found->second.lease_from, sent.boot);
  found->second.heard = std::max(found->second.heard, sent.monotonic);
}

void Detector::FollowerStored(const std::string& id, uint64_t position, uint64_t last, absl::Time now) {
  const auto found = links_.find(id);
  if (found == links_.end()) return;
  Link& link = found->second;
  const bool has_all = position >= link.last;
  if (has_all || position != link.position) link.moved = now;
  link.stalled = link.stalled ? !has_all : now - link.moved >= stall_;
  link.position = position;
  link.last = last;
}

void Detector::TakeForDead(const std::string& id, absl::Time time) {
  const auto found = links_.find(id);
  if (found == links_.end()) return;
  found->second.dead = time;
  found->second.silent = true;
}

void Detector::ReportSilenceAgain(const std::string& id, absl::Time now) {
  const auto found = links_.find(id);
  if (found == links_.end()) return;
  found->second.silent = found->second.stalled = false;
  found->second.moved = now;
}

Detector::Changes Detector::TakeChanges(absl::Time now) {
  Changes changes;
  for (auto& [id, link] : links_) {
    const bool silent = link.stalled || link.heard <= link.dead || now - link.heard >= silence_;
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

absl::Time Detector::LeaseEnd(const std::vector<std::string>& ids) const {
  absl::Time end = absl::InfiniteFuture();
  for (const std::string& id : ids) {
    const auto found = links_.find(id);
    end = std::min(end, found == links_.end() ? absl::InfinitePast() : found->second.lease_from + lease_);
  }
  return end;
}

}  // namespace tandem::ps
