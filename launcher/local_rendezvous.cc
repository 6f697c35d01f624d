// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_rendezvous.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/timed_wait.h"

namespace tandem::launcher {

using cluster::RendezvousEvent;
using cluster::Round;

absl::StatusOr<Round> LocalRendezvous::Join(const cluster::Node& node) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return absl::FailedPreconditionError(absl::StrCat("the job is over: ", reason_));
  joined_ = true;
  failed_ = false;
  reason_.clear();
  return Round{.epoch = ++epoch_, .restarts = restarts_, .group_rank = 0, .nodes = {node}};
}

absl::StatusOr<RendezvousEvent> LocalRendezvous::WaitForEvent(int64_t epoch, absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || !joined_ || epoch_ > epoch;
  };
  if (!AwaitUntil(&mutex_, absl::Condition(&over), deadline)) {
    return absl::DeadlineExceededError(absl::StrCat("epoch ", epoch, " goes on"));
  }
  if (closed_) {
    return RendezvousEvent{RendezvousEvent::Kind::kClosed, failed_, reason_,
                           failed_ ? std::max(exit_code_, 1) : 0, stopped_};
  }
  if (!failed_) return absl::CancelledError("this node has left the job");
  return RendezvousEvent{RendezvousEvent::Kind::kRestart, /*failed=*/true, reason_};
}

absl::Status LocalRendezvous::RequestRestart(int64_t epoch, absl::string_view reason, int exit_code) {
  absl::MutexLock lock(&mutex_);
  if (closed_ || !joined_ || epoch_ != epoch) return absl::OkStatus();
  failed_ = true;
  reason_ = std::string(reason);
  exit_code_ = exit_code;
  if (restarts_ >= max_restarts_) {
    closed_ = true;
    return absl::FailedPreconditionError(absl::StrCat("the job has been started again ", restarts_,
                                                      " times, which is its limit (--max-restarts)"));
  }
  ++restarts_;
  joined_ = false;
  return absl::OkStatus();
}

absl::Status LocalRendezvous::Finish(int64_t epoch) {
  absl::MutexLock lock(&mutex_);
  if (closed_ || !joined_ || epoch_ != epoch) return absl::OkStatus();
  closed_ = true;
  reason_ = "all workers have finished";
  return absl::OkStatus();
}

absl::Status LocalRendezvous::Close(bool failed, absl::string_view reason, int exit_code) {
  absl::MutexLock lock(&mutex_);
  CloseLocked(failed, reason, exit_code);
  return absl::OkStatus();
}

void LocalRendezvous::CloseLocked(bool failed, absl::string_view reason, int exit_code) {
  if (closed_) return;
  closed_ = true;
  failed_ = failed;
  reason_ = std::string(reason);
  exit_code_ = exit_code;
}

absl::Status LocalRendezvous::Stop(absl::string_view reason, int exit_code) {
  absl::MutexLock lock(&mutex_);
  stopped_ = stopped_ || !closed_;
  CloseLocked(/*failed=*/true, reason, exit_code);
  return absl::OkStatus();
}

absl::Status LocalRendezvous::Leave() {
  absl::MutexLock lock(&mutex_);
  if (joined_) failed_ = false;
  joined_ = false;
  return absl::OkStatus();
}

}  // namespace tandem::launcher
