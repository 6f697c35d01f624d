// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/etcd/watcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/timed_wait.h"
#include "etcd/rpc.pb.h"

namespace tandem::cluster {
namespace {
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);     // polling interval without a watch
constexpr absl::Duration kPollIntervalWithWatch = absl::Seconds(2);  // polling interval with a watch
constexpr absl::Duration kReopenInterval = absl::Milliseconds(200);  // to establish a watch
}  // namespace

std::string EtcdRangeEnd(std::string prefix) {
  while (!prefix.empty()) {
    if (prefix.back() != '\xff') {
      prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
      return prefix;
    }
    prefix.pop_back();
  }
  return std::string(1, '\0');  // to the end of all keys
}

EtcdWatcher::EtcdWatcher(EtcdClient* client, std::string prefix)
    : client_(client), prefix_(std::move(prefix)) {}

EtcdWatcher::~EtcdWatcher() {
  absl::MutexLock lock(&open_mutex_);
  stream_.reset();
}

EtcdWatcher::Waiter::Waiter(EtcdWatcher* watcher, std::vector<std::string> keys, bool prefix)
    : watcher_(watcher),
      keys_([&keys] {
        std::sort(keys.begin(), keys.end());
        return std::move(keys);
      }()),
      prefix_(prefix) {
  watcher_->EnsureWatch();
  absl::MutexLock lock(&watcher_->mutex_);
  watcher_->waiters_.insert(this);
}

EtcdWatcher::Waiter::~Waiter() {
  absl::MutexLock lock(&watcher_->mutex_);
  watcher_->waiters_.erase(this);
}

void EtcdWatcher::Waiter::Await(absl::Time deadline) {
  watcher_->EnsureWatch();
  absl::MutexLock lock(&watcher_->mutex_);
  const absl::Time look = MonotonicNow() + (watcher_->live_ ? kPollIntervalWithWatch : kPollInterval);
  AwaitUntil(&watcher_->mutex_, absl::Condition(&changed_), std::min(deadline, look));
  changed_ = false;
}

void EtcdWatcher::EnsureWatch() {
  {
    absl::MutexLock lock(&mutex_);
    if (!ended_) return;
  }
  absl::MutexLock open(&open_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    if (!ended_ || MonotonicNow() < next_open_) return;
  }
  next_open_ = MonotonicNow() + kReopenInterval;
  stream_.reset();  // the last object that could call OnEnd
  {
    absl::MutexLock lock(&mutex_);
    ended_ = false;
  }
  auto stream = client_->Watch(
      prefix_, EtcdRangeEnd(prefix_), [this](std::string answer) { OnResponse(answer); },
      [this](absl::Status) { OnEnd(); });
  if (stream.ok()) {
    stream_ = *std::move(stream);
  } else {
    OnEnd();
  }
}

void EtcdWatcher::OnResponse(const std::string& answer) {
  etcdserverpb::WatchResponse response;
  // etcd may cancel the watch although the stream continues: it has restarted, for example, and forgotten the
  // client.
  if (!response.ParseFromString(answer) || response.canceled()) return OnEnd();
  absl::MutexLock lock(&mutex_);
  if (response.created()) {
    live_ = true;
    for (Waiter* waiter : waiters_) waiter->changed_ = true;  // earlier changes may have been missed
  }
  for (const mvccpb::Event& event : response.events()) {
    if (event.type() == mvccpb::Event::DELETE) continue;
    const std::string& key = event.kv().key();
    for (Waiter* waiter : waiters_) {
      const bool hit = waiter->prefix_
                           ? std::any_of(waiter->keys_.begin(), waiter->keys_.end(),
                                         [&](const std::string& p) { return absl::StartsWith(key, p); })
                           : std::binary_search(waiter->keys_.begin(), waiter->keys_.end(), key);
      if (hit) waiter->changed_ = true;
    }
  }
}

void EtcdWatcher::WakeAll() {
  absl::MutexLock lock(&mutex_);
  for (Waiter* waiter : waiters_) waiter->changed_ = true;
}

void EtcdWatcher::OnEnd() {
  absl::MutexLock lock(&mutex_);
  live_ = false;
  ended_ = true;
  for (Waiter* waiter : waiters_) waiter->changed_ = true;
}

}  // namespace tandem::cluster
