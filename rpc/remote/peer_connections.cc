// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/peer_connections.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"

namespace tandem::rpc::remote {

std::shared_ptr<Channel> PeerConnection::channel() const {
  absl::MutexLock lock(&mutex_);
  return channel_;
}

absl::Status PeerConnection::gone() const {
  absl::MutexLock lock(&mutex_);
  return gone_;
}

uint64_t PeerConnection::Begin(std::stop_source stop) {
  absl::MutexLock lock(&mutex_);
  if (!gone_.ok()) return 0;
  calls_.emplace(++last_, std::move(stop));
  return last_;
}

void PeerConnection::End(uint64_t number) {
  std::stop_source freed(std::nostopstate);
  absl::MutexLock lock(&mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end()) return;
  freed = std::move(found->second);
  calls_.erase(found);
}

std::shared_ptr<Channel> PeerConnection::Go(absl::Status why) {
  absl::flat_hash_map<uint64_t, std::stop_source> calls;
  std::shared_ptr<Channel> channel;
  {
    absl::MutexLock lock(&mutex_);
    if (gone_.ok()) gone_ = std::move(why);
    calls.swap(calls_);
    channel = std::move(channel_);
  }
  for (auto& [number, stop] : calls) stop.request_stop();
  return channel;
}

PeerConnections::PeerConnections(ConnectOptions options, Directory* directory, TimerQueue* timers)
    : options_(std::move(options)), directory_(directory), timers_(timers) {
  {
    absl::MutexLock lock(&existence_->mutex);
    existence_->object = this;
  }
  watch_ = directory_->Watch([this](const Directory::Members& members) { OnMembers(members); });
}

std::shared_ptr<PeerConnection> PeerConnections::Find(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = peers_.find(name);
  return found == peers_.end() ? nullptr : found->second;
}

void PeerConnections::With(const std::string& name, absl::Time deadline, std::stop_token stop, Go go) {
  if (std::shared_ptr<PeerConnection> peer = Find(name)) {
    std::move(go)(std::move(peer));
    return;
  }
  auto waiting = std::make_shared<Waiting>();
  waiting->name = name;
  waiting->go = std::move(go);
  waiting->begin = MonotonicNow();
  bool closed;
  std::shared_ptr<PeerConnection> peer;
  {
    absl::MutexLock lock(&mutex_);
    closed = closed_;
    if (const auto found = peers_.find(name); found != peers_.end()) peer = found->second;
    if (!closed && peer == nullptr) {
      waiting_.push_back(waiting);
      waiting->timer = timers_->Schedule(deadline, [this, waiting] {
        const std::string within = absl::FormatDuration(MonotonicNow() - waiting->begin);
        std::string why;
        {
          absl::MutexLock lock(&mutex_);
          const auto member = members_.find(waiting->name);
          why = member == members_.end()
                    ? absl::StrCat("it has not registered within ", within, "; there: ", NamesOf(members_))
                    : absl::StrCat("it has registered at ", member->second.address,
                                   ", but no connection to it was made within ", within);
        }
        Finish(waiting, absl::DeadlineExceededError(why));
      });
      if (const auto member = members_.find(name); member != members_.end()) Connect(member->second);
    }
  }
  if (closed || peer != nullptr) {
    std::move(waiting->go)(closed ? absl::StatusOr<std::shared_ptr<PeerConnection>>(
                                        absl::CancelledError("this worker has shut down"))
                                  : absl::StatusOr<std::shared_ptr<PeerConnection>>(std::move(peer)));
    return;
  }
  if (stop.stop_possible()) {
    // The call may end at any moment: the last owner of `waiting` destroys the callback.
    waiting->on_stop.emplace(stop, [existence = existence_, weak = std::weak_ptr(waiting)] {
      const std::shared_ptr<Waiting> alive = weak.lock();
      if (alive == nullptr) return;
      {
        absl::MutexLock lock(&existence->mutex);
        if (existence->object == nullptr || !existence->object->Take(alive)) return;
      }
      std::move(alive->go)(absl::CancelledError("the call was cancelled before its callee had registered"));
    });
  }
}

bool PeerConnections::Take(const std::shared_ptr<Waiting>& waiting) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = std::find(waiting_.begin(), waiting_.end(), waiting);
    if (found == waiting_.end()) return false;
    waiting_.erase(found);
  }
  if (waiting->timer.has_value()) timers_->Cancel(*waiting->timer);
  return true;
}

void PeerConnections::Finish(const std::shared_ptr<Waiting>& waiting,
                             absl::StatusOr<std::shared_ptr<PeerConnection>> peer) {
  if (Take(waiting)) std::move(waiting->go)(std::move(peer));
}

void PeerConnections::Connect(const Member& member) {
  const auto [connecting, added] = connecting_.try_emplace(member.name, member.incarnation);
  if (!added && connecting->second == member.incarnation) return;
  connecting->second = member.incarnation;
  Spawn([this, member] {
    absl::StatusOr<std::unique_ptr<Channel>> channel = rpc::Connect(member.address, options_);
    std::vector<std::shared_ptr<Waiting>> ready;
    absl::StatusOr<std::shared_ptr<PeerConnection>> peer = absl::UnknownError("not connected");
    if (!channel.ok()) peer = channel.status();
    std::shared_ptr<Channel> unused;
    {
      absl::MutexLock lock(&mutex_);
      if (const auto connecting = connecting_.find(member.name);
          connecting != connecting_.end() && connecting->second == member.incarnation) {
        connecting_.erase(connecting);
      }
      const auto now = members_.find(member.name);
      if (closed_ || now == members_.end() || now->second.incarnation != member.incarnation) {
        // The worker has left already; callers go on waiting for it.
        if (channel.ok()) unused = *std::move(channel);
      } else {
        if (channel.ok()) {
          peer = std::make_shared<PeerConnection>(member, *std::move(channel));
          peers_[member.name] = *peer;
        }
        for (const auto& waiting : waiting_) {
          if (waiting->name == member.name) ready.push_back(waiting);
        }
      }
    }
    for (const auto& waiting : ready) Finish(waiting, peer);
  });
}

void PeerConnections::OnMembers(const Directory::Members& members) {
  std::vector<std::shared_ptr<PeerConnection>> gone;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    members_ = members;
    for (auto entry = peers_.begin(); entry != peers_.end();) {
      const auto now = members.find(entry->first);
      if (now != members.end() && now->second.incarnation == entry->second->member().incarnation) {
        ++entry;
        continue;
      }
      gone.push_back(entry->second);
      peers_.erase(entry++);
    }
    for (const auto& waiting : waiting_) {
      if (const auto member = members.find(waiting->name); member != members.end()) Connect(member->second);
    }
  }
  for (const std::shared_ptr<PeerConnection>& peer : gone) {
    // This thread must not run it: calls that end run code of the application, which may use the directory.
    const auto go = [peer] {
      (void)peer->Go(
          absl::UnavailableError("it has left, or was silent for longer than its lease and counts as dead"));
    };
    bool closed;
    {
      absl::MutexLock lock(&mutex_);
      closed = closed_;
      if (!closed) Spawn(go);
    }
    if (closed) go();
  }
}

void PeerConnections::Spawn(absl::AnyInvocable<void() &&> task) {
  ++threads_;
  std::thread([this, task = std::move(task)]() mutable {
    std::move(task)();
    task = nullptr;
    absl::MutexLock lock(&mutex_);
    --threads_;
  }).detach();
}

void PeerConnections::Close() {
  std::vector<std::shared_ptr<Waiting>> waiting;
  absl::flat_hash_map<std::string, std::shared_ptr<PeerConnection>> peers;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    closed_ = true;
    waiting.assign(waiting_.begin(), waiting_.end());
    peers.swap(peers_);
  }
  directory_->Unwatch(watch_);
  for (const auto& each : waiting) Finish(each, absl::CancelledError("this worker has shut down"));
  for (const auto& [name, peer] : peers) peer->Go(absl::CancelledError("this worker has shut down"));
  {
    absl::MutexLock lock(&existence_->mutex);
    existence_->object = nullptr;
  }
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return threads_ == 0; };
  mutex_.Await(absl::Condition(&none));
}

}  // namespace tandem::rpc::remote
