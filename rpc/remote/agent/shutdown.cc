// How workers end: together, when nobody calls anybody any more, or at once.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "rpc/remote/agent/agent.h"
#include "rpc/remote/agent/agent_functions.h"

namespace tandem::rpc::remote {
namespace {
constexpr absl::Duration kFirstPause = absl::Milliseconds(2);
constexpr absl::Duration kLongestPause = absl::Milliseconds(100);
constexpr absl::Duration kAskTimeout = absl::Seconds(2);
constexpr absl::Duration kFarewell = absl::Seconds(1);  // for owners to hear of references that are given up
}  // namespace

void Agent::AddOwnFunctions() {
  const ServeOptions quick = {.run_inline = true};
  functions_.Add(
      kAgentState,
      [this] {
        return AgentState{finishing_.load(), counts_->active.load(), counts_->started.load()};
      },
      quick);
  functions_.Add(
      kDebugRefs, [this] { return references_->DebugRefs(); }, quick);
}

absl::Status Agent::WaitUntilAllAreDone(absl::Time deadline) {
  // Nobody makes a call when all have none under way, unless one was on its way while we asked around: two
  // rounds of questions with the same counts of calls rule that out (Mattern's counting of messages, 1987).
  std::map<std::string, int64_t> before;
  absl::Duration pause = kFirstPause;
  std::vector<std::string> busy;
  while (absl::Now() < deadline) {
    std::map<std::string, Future<AgentState>> asked;
    for (const auto& [other, member] : directory_->List()) {
      if (other != name()) asked[other] = RpcAsync(To(other, {.timeout = kAskTimeout}), kAgentState);
    }
    std::map<std::string, int64_t> started = {{name(), counts_->started.load()}};
    busy.clear();
    if (counts_->active.load() > 0)
      busy.push_back(absl::StrCat(name(), " (", counts_->active.load(), " calls under way)"));
    for (const auto& [other, future] : asked) {
      const absl::StatusOr<AgentState> state = future.Wait();
      if (!state.ok()) {
        if (directory_->List().count(other) > 0)
          busy.push_back(absl::StrCat(other, " (", state.status().message(), ")"));
        continue;  // else it has left
      }
      started[other] = state->started;
      if (!state->finishing) {
        busy.push_back(absl::StrCat(other, " (it has not called Shutdown)"));
      } else if (state->active > 0) {
        busy.push_back(absl::StrCat(other, " (", state->active, " calls under way)"));
      }
    }
    if (busy.empty() && started == before) return absl::OkStatus();
    before = busy.empty() ? started : std::map<std::string, int64_t>();
    absl::SleepFor(std::min(pause, std::max(deadline - absl::Now(), absl::ZeroDuration())));
    pause = std::min(2 * pause, kLongestPause);
  }
  return absl::DeadlineExceededError(
      absl::StrCat(name(), " leaves although others are not done: ", absl::StrJoin(busy, ", ")));
}

absl::Status Agent::Shutdown(absl::Duration timeout) {
  {
    absl::MutexLock lock(&shutdown_mutex_);
    if (shut_down_) return shutdown_status_;
  }
  finishing_ = true;
  absl::Status waited = WaitUntilAllAreDone(absl::Now() + timeout);
  references_->ReleaseAll();
  (void)references_->AwaitConfirmed(absl::Now() + kFarewell);
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

absl::Status Agent::ShutdownNow() {
  {
    absl::MutexLock lock(&shutdown_mutex_);
    if (!shut_down_) {
      shut_down_ = true;
      shutdown_status_ = absl::CancelledError(absl::StrCat(name(), " was shut down abruptly"));
      Leave();
    }
  }
  const absl::Status stopped = executor_->Stop(options_.abrupt_timeout);
  timers_->Stop();  // functions that end set none any more, and its tasks may still look at it
  return Annotate(stopped, name());
}

void Agent::Leave() {
  if (server_ != nullptr) (void)directory_->Unregister(member_);
  closed_ = true;
  std::vector<std::weak_ptr<DirectInvocation>> direct;
  {
    absl::MutexLock direct_lock(&direct_mutex_);
    direct.swap(direct_);
  }
  // Whoever waits for a call hears that there is no answer, and functions that run see that they are
  // cancelled.
  for (const auto& weak : direct) {
    if (const auto call = weak.lock()) call->Stop();
  }
  streams_->CancelAll();
  if (peers_ != nullptr) peers_->Close();
  if (server_ != nullptr) server_->Shutdown(absl::ZeroDuration());
  references_->Close();
}

}  // namespace tandem::rpc::remote
