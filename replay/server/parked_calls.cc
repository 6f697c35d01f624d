// SPDX-License-Identifier: Apache-2.0
#include "replay/server/parked_calls.h"

#include <algorithm>
#include <utility>

namespace tandem::replay {

std::shared_ptr<ParkedCalls::Entry> ParkedCalls::NewEntry() {
  auto entry = std::make_shared<Entry>();
  entry->owner = this;
  entry->timer = timers_.NewTicket();
  return entry;
}

bool ParkedCalls::Park(const std::shared_ptr<Entry>& entry, const rpc::ServerCall& call, uint64_t bytes,
                       std::function<void()> expire) {
  if (entry->parked.exchange(true)) return true;
  if (bytes_.fetch_add(bytes) + bytes > max_bytes_) {
    bytes_ -= bytes;
    return false;
  }
  ++calls_;
  entry->bytes = bytes;
  const absl::Time now = clock_->Now();
  const absl::Duration left = std::min(call.deadline() - now, max_wait_);
  const absl::Time end = now + left - std::clamp(left / 10, absl::Milliseconds(5), absl::Seconds(1));
  timers_.Defer(entry->timer, end, [expire = std::move(expire)](rpc::DeferredCalls::Reason) { expire(); });
  entry->counted = true;
  if (entry->over) entry->Over();  // it ended meanwhile
  return true;
}

void ParkedCalls::Entry::Over() {
  over = true;
  if (!counted.exchange(false)) return;
  owner->timers_.Resume(timer);
  --owner->calls_;
  owner->bytes_ -= bytes;
}

}  // namespace tandem::replay
