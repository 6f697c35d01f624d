// SPDX-License-Identifier: Apache-2.0
// How workers shut down: together, when no calls are under way, or at once.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "rpc/remote/agent_functions.h"
#include "rpc/remote/rpc_agent.h"

namespace tandem::rpc::remote {
namespace {
// Pause before workers that could not be asked are asked again, while they are in the directory.
constexpr absl::Duration kRetryInterval = absl::Seconds(1);
constexpr absl::Duration kReasonTimeout = absl::Seconds(1);
// Time for owners to confirm that references are released.
constexpr absl::Duration kReleaseTimeout = absl::Seconds(1);

void AwaitOtherMembers(Directory& directory, const Directory::Members& than, absl::Time deadline) {
  absl::Mutex mutex;
  bool others = false;
  const uint64_t watch = directory.Watch([&](const Directory::Members& members) {
    absl::MutexLock lock(&mutex);
    others = others || members != than;
  });
  {
    absl::MutexLock lock(&mutex);
    (void)AwaitUntil(&mutex, absl::Condition(&others), deadline);
  }
  directory.Unwatch(watch);
}

}  // namespace

void RpcAgent::AddOwnFunctions() {
  const ServeOptions quick = {.run_inline = true};
  functions_.Add(
      kAgentState,
      [this] {
        return AgentState{finishing_.future().ready(), counts_->active(), counts_->started()};
      },
      quick);
  functions_.Add(
      kAwaitShutdown,
      [this] {
        const Promise<AgentState> promise;
        finishing_.future().Then([promise, counts = counts_](const absl::Status& finishing) {
          if (!finishing.ok()) return promise.Set(finishing);
          counts->Idle().Then([promise](const absl::StatusOr<int64_t>& started) {
            if (!started.ok()) return promise.Set(started.status());
            promise.Set(AgentState{true, 0, *started});
          });
        });
        return promise.future();
      },
      quick);
  functions_.Add(
      kDebugRefs, [this] { return references_->DebugRefs(); }, quick);
}

std::string RpcAgent::DescribeBusyWorkers(const std::map<std::string, absl::Status>& others) {
  std::map<std::string, Future<AgentState>> asked;
  for (const auto& [other, why] : others) {
    if (other != name()) asked[other] = RpcAsync(CallTarget(other, {.timeout = kReasonTimeout}), kAgentState);
  }
  std::vector<std::string> busy;
  if (const int64_t active = counts_->active(); active > 0)
    busy.push_back(absl::StrCat(name(), " (", active, " calls under way)"));
  for (const auto& [other, future] : asked) {
    const absl::StatusOr<AgentState> state = future.Wait();
    if (!state.ok()) {
      if (directory_->List().count(other) > 0)
        busy.push_back(absl::StrCat(other, " (", state.status().message(), ")"));
    } else if (!state->finishing) {
      busy.push_back(absl::StrCat(other, " (it has not called Shutdown)"));
    } else if (state->active > 0) {
      busy.push_back(absl::StrCat(other, " (", state->active, " calls under way)"));
    } else {
      busy.push_back(absl::StrCat(other, " (it was done too late)"));
    }
  }
  return busy.empty() ? "they called each other to the end" : absl::StrJoin(busy, ", ");
}

absl::Status RpcAgent::AwaitAllWorkers(absl::Time deadline) {
  // No worker makes calls when none has any under way, except if one was on its way while we asked. Two
  // rounds with the same counts of calls rule that out (Mattern's counting of messages, 1987).
  std::map<std::string, int64_t> before;
  while (true) {
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::Milliseconds(1));
    const Directory::Members members = directory_->List();
    std::map<std::string, Future<AgentState>> asked;
    for (const auto& [other, member] : members) {
      if (other != name()) asked[other] = RpcAsync(CallTarget(other, {.timeout = left}), kAwaitShutdown);
    }
    // A call waits for its callee to register. A worker that leaves now will not register again.
    const uint64_t watch = directory_->Watch([&asked](const Directory::Members& there) {
      for (const auto& [other, future] : asked) {
        if (there.count(other) == 0) future.Cancel();
      }
    });
    std::map<std::string, int64_t> started;
    std::map<std::string, absl::Status> not_done;
    const absl::StatusOr<int64_t> own = counts_->Idle().Wait(left);
    if (own.ok()) {
      started[name()] = *own;
    } else {
      not_done[name()] = own.status();
    }
    for (const auto& [other, future] : asked) {
      const absl::StatusOr<AgentState> state = future.Wait();
      if (state.ok()) {
        started[other] = state->started;
      } else if (directory_->List().count(other) > 0) {  // else it has left
        not_done[other] = state.status();
      }
    }
    directory_->Unwatch(watch);
    if (not_done.empty() && started == before) return absl::OkStatus();
    if (closed_.load()) return absl::CancelledError(absl::StrCat(name(), " was shut down abruptly"));
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(name(), " leaves although others are not done: ", DescribeBusyWorkers(not_done)));
    }
    before = not_done.empty() ? std::move(started) : std::map<std::string, int64_t>();
    // A worker that could not be asked is about to leave the directory, or refuses every call.
    if (!not_done.empty()) {
      AwaitOtherMembers(*directory_, members, std::min(deadline, MonotonicNow() + kRetryInterval));
    }
  }
}

absl::Status RpcAgent::Shutdown(absl::Duration timeout) {
  {
    absl::MutexLock lock(&shutdown_mutex_);
    if (shut_down_) return shutdown_status_;
  }
  finishing_.Set(absl::OkStatus());
  absl::Status waited = AwaitAllWorkers(MonotonicNow() + timeout);
  references_->ReleaseAll();
  (void)references_->AwaitConfirmed(MonotonicNow() + kReleaseTimeout);
  const absl::Status left = ShutdownNow();
  absl::MutexLock lock(&shutdown_mutex_);
  if (waited.ok() || left.ok()) {
    waited.Update(left);
  } else {
    waited = absl::Status(waited.code(), absl::StrCat(waited.message(), "; ", left.message()));
  }
  shutdown_status_ = waited;
  return shutdown_status_;
}

absl::Status RpcAgent::ShutdownNow() {
  {
    absl::MutexLock lock(&shutdown_mutex_);
    if (!shut_down_) {
      shut_down_ = true;
      shutdown_status_ = absl::CancelledError(absl::StrCat(name(), " was shut down abruptly"));
      Leave();
    }
  }
  const absl::Status stopped = executor_->Stop(options_.abrupt_timeout);
  // Functions that have ended start no timers any more. Running timer tasks may still use the executor.
  timers_->Stop();
  return Annotate(stopped, name());
}

void RpcAgent::Leave() {
  if (server_ != nullptr) (void)directory_->Unregister(member_);
  closed_ = true;
  finishing_.Set(absl::CancelledError(absl::StrCat(name(), " has shut down abruptly")));
  std::vector<std::weak_ptr<DirectInvocation>> direct;
  {
    absl::MutexLock direct_lock(&direct_mutex_);
    direct.swap(direct_);
  }
  // Callers learn that there is no response, and running functions see that they are cancelled.
  for (const auto& weak : direct) {
    if (const auto call = weak.lock()) call->Stop();
  }
  streams_->CancelAll();
  if (peers_ != nullptr) peers_->Close();
  if (server_ != nullptr) server_->Shutdown(absl::ZeroDuration());
  references_->Close();
}

}  // namespace tandem::rpc::remote
