// SPDX-License-Identifier: Apache-2.0
#include "launcher/round_monitor.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "base/timed_wait.h"

namespace tandem::launcher {

using cluster::Rendezvous;
using cluster::RendezvousEvent;
using cluster::Round;

namespace {

// How long Unwatch blocks while etcd does not answer.
constexpr absl::Duration kEndMoment = absl::Milliseconds(200);

}  // namespace

RoundMonitor::RoundMonitor(cluster::Rendezvous* rendezvous,
                           std::function<absl::Status(const std::function<bool()>& stop)> prepare,
                           FindMembers find_members)
    : rendezvous_(rendezvous),
      prepare_(std::move(prepare)),
      find_members_(std::move(find_members)),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  waiter_ = std::thread([this] { Wait(); });
  teller_ = std::thread([this] { Deliver(); });
}

RoundMonitor::~RoundMonitor() {
  Abandon(/*failed=*/false, "the launcher ends");
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  teller_.join();
  // Leave ends a running Join or WaitForEvent. It is repeated, because one may be about to begin. Its error
  // is ignored: the launcher ends anyway.
  bool ended = false;
  while (!ended) {
    rendezvous_->Leave().IgnoreError();
    absl::MutexLock lock(&mutex_);
    ended = AwaitFor(&mutex_, absl::Condition(&waiter_ended_), absl::Milliseconds(100));
  }
  waiter_.join();
  for (const std::unique_ptr<Watcher>& watcher : watchers_) JoinThreads(*watcher);
}

void RoundMonitor::JoinThreads(Watcher& watcher) {
  watcher.watching.join();
  watcher.ending.join();
}

void RoundMonitor::Post(AgentEvent news) {
  {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(news));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(event_.get(), &one, sizeof(one));
}

std::vector<AgentEvent> RoundMonitor::Take() {
  uint64_t count;
  [[maybe_unused]] const ssize_t ignored = ::read(event_.get(), &count, sizeof(count));
  absl::MutexLock lock(&mutex_);
  return std::exchange(events_, {});
}

void RoundMonitor::Join(const cluster::Node& node) {
  absl::MutexLock lock(&mutex_);
  to_join_ = node;
}

void RoundMonitor::Tell(std::function<absl::Status(cluster::Rendezvous&)> call) {
  absl::MutexLock lock(&mutex_);
  to_tell_.push_back(std::move(call));
}

void RoundMonitor::Leave() {
  {
    absl::MutexLock lock(&mutex_);
    left_ = true;
  }
  Tell([](cluster::Rendezvous& rendezvous) { return rendezvous.Leave(); });
}

void RoundMonitor::Wait() {
  bool prepared = false;
  const auto stop = [this] {
    absl::MutexLock lock(&mutex_);
    return stopping_ || left_;
  };
  while (true) {
    cluster::Node node;
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || to_join_.has_value();
      };
      mutex_.Await(absl::Condition(&ready));
      waiter_ended_ = stopping_;
      if (stopping_) return;
      node = *std::exchange(to_join_, std::nullopt);
    }
    absl::StatusOr<Round> round = absl::UnavailableError("the launcher has left before it could join");
    while (absl::IsUnavailable(round.status())) {
      const absl::Status reached = prepared ? absl::OkStatus() : prepare_(stop);
      if (stop()) break;
      round = reached.ok() ? rendezvous_->Join(node) : reached;
      prepared = reached.ok() && !absl::IsUnavailable(round.status());
      if (!reached.ok()) break;
    }
    AgentEvent begun{.kind = AgentEvent::Kind::kRound, .status = round.status()};
    while (begun.status.ok() && find_members_ != nullptr) {
      absl::StatusOr<std::shared_ptr<cluster::Membership>> members = find_members_(*round);
      if (members.ok()) {
        begun.membership = *std::move(members);
        break;
      }
      if (absl::IsUnavailable(members.status()) && !stop()) {
        LogWarning(absl::StrCat("waiting for the store of the round: ", members.status().message()));
        continue;
      }
      begun.status = members.status();
      round = members.status();
    }
    if (!round.ok()) {
      Post(std::move(begun));
      continue;
    }
    const int64_t epoch = round->epoch;
    begun.round = *std::move(round);
    Post(std::move(begun));
    absl::StatusOr<RendezvousEvent> event = rendezvous_->WaitForEvent(epoch, absl::InfiniteFuture());
    while (event.ok() && event->kind == RendezvousEvent::Kind::kNodes) {
      AgentEvent changed{.kind = AgentEvent::Kind::kNodes, .epoch = epoch};
      changed.event = *std::move(event);
      Post(std::move(changed));
      event = rendezvous_->WaitForEvent(epoch, absl::InfiniteFuture());
    }
    AgentEvent over{.kind = AgentEvent::Kind::kRoundOver, .status = event.status(), .epoch = epoch};
    if (event.ok()) over.event = *std::move(event);
    Post(std::move(over));
  }
}

void RoundMonitor::Deliver() {
  while (true) {
    std::function<absl::Status(cluster::Rendezvous&)> call;
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !to_tell_.empty(); };
      mutex_.Await(absl::Condition(&ready));
      if (to_tell_.empty()) return;  // only now: calls queued before the end still run
      call = std::move(to_tell_.front());
      to_tell_.pop_front();
    }
    if (absl::Status told = call(*rendezvous_); !told.ok())
      Post({.kind = AgentEvent::Kind::kTold, .status = told});
  }
}

void RoundMonitor::Watch(std::shared_ptr<cluster::Membership> membership, int64_t epoch) {
  std::erase_if(watchers_, [](const std::unique_ptr<Watcher>& old) {
    if (old->ended) JoinThreads(*old);
    return old->ended.load();
  });
  Watcher* const watcher = watchers_.emplace_back(std::make_unique<Watcher>()).get();
  watcher->membership = std::move(membership);
  watcher->watching = std::thread([this, watcher, epoch] {
    const cluster::JobState state = watcher->membership->WaitUntilEnded(absl::InfiniteFuture());
    Post({.kind = AgentEvent::Kind::kJobState, .state = state, .epoch = epoch});
    absl::MutexLock lock(&mutex_);
    watcher->ended = true;
  });
  watches_ = true;
}

void RoundMonitor::Unwatch(bool failed, const std::string& reason) {
  EndWatch([failed, reason](cluster::Membership& members) {
    (void)members.End(failed ? "tandem run" : "", failed, reason);
  });
}

void RoundMonitor::Abandon(bool failed, const std::string& reason) {
  EndWatch([failed, reason](cluster::Membership& members) {
    members.Abandon(failed ? "tandem run" : "", failed, reason);
  });
}

void RoundMonitor::EndWatch(std::function<void(cluster::Membership&)> end) {
  if (!std::exchange(watches_, false)) return;
  Watcher* const watcher = watchers_.back().get();
  watcher->ending = std::thread([watcher, end = std::move(end)] { end(*watcher->membership); });
  absl::MutexLock lock(&mutex_);
  const auto ended = [watcher] { return watcher->ended.load(); };
  (void)AwaitFor(&mutex_, absl::Condition(&ended), kEndMoment);
}

void RoundMonitor::Look(std::shared_ptr<cluster::Membership> membership, int64_t epoch) {
  Tell([this, membership = std::move(membership), epoch](Rendezvous&) {
    absl::StatusOr<cluster::MembershipView> view = membership->Look();
    AgentEvent event{.kind = AgentEvent::Kind::kMembers, .status = view.status(), .epoch = epoch};
    if (view.ok()) event.members = std::move(view->members);
    Post(std::move(event));
    return absl::OkStatus();
  });
}

}  // namespace tandem::launcher
