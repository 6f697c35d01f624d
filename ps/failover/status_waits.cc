// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/status_waits.h"

#include <utility>
#include <vector>

namespace tandem::ps {

StatusWaits::Known StatusWaits::known() const {
  absl::MutexLock lock(&mutex_);
  return known_;
}

bool StatusWaits::IsOver(const Waiting& waiting, absl::Time now) const {
  const Wait& wait = waiting.wait;
  return stopped_ || now >= wait.deadline || known_.placement.version != wait.version ||
         known_.role != waiting.role || (!wait.linked.empty() && !known_.linked.contains(wait.linked)) ||
         (now != absl::InfinitePast() && wait.gone && wait.gone());
}

void StatusWaits::Answer(absl::Time now) {
  std::vector<std::function<void()>> replies;
  {
    absl::MutexLock lock(&mutex_);
    for (auto at = waits_.begin(); at != waits_.end();) {
      if (!IsOver(*at, now)) {
        ++at;
        continue;
      }
      replies.push_back(std::move(at->wait.reply));
      at = waits_.erase(at);
    }
  }
  for (const auto& reply : replies) reply();
}

bool StatusWaits::Publish(Known known) {
  {
    absl::MutexLock lock(&mutex_);
    if (known == known_) return false;
    known_ = std::move(known);
  }
  Answer(absl::InfinitePast());
  return true;
}

void StatusWaits::Await(Wait wait) {
  {
    absl::MutexLock lock(&mutex_);
    Waiting waiting{.wait = std::move(wait), .role = known_.role};
    if (!IsOver(waiting, absl::InfinitePast())) {
      waits_.push_back(std::move(waiting));
      return;
    }
    wait = std::move(waiting.wait);
  }
  wait.reply();
}

void StatusWaits::Expire(absl::Time now) { Answer(now); }

void StatusWaits::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  Answer(absl::InfinitePast());
}

}  // namespace tandem::ps
