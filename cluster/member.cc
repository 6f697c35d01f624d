// SPDX-License-Identifier: Apache-2.0
#include "cluster/member.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "cluster/join.h"
#include "cluster/store/etcd/etcd_channel.h"
#include "rpc/port_probe.h"

namespace tandem::cluster {
namespace {

// How often a member that waits for its job to name a dead one looks whether it was asked to stop. A signal
// handler cannot wake it.
constexpr absl::Duration kStopPollInterval = absl::Milliseconds(20);

bool MayBeCausedByPeer(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status) ||
         absl::IsAborted(status);
}

End EndOfJob(const JobState& state) {
  if (!state.failed) {
    return {.cause = End::Cause::kJobSucceeded, .reason = absl::StrCat("done: ", state.reason)};
  }
  return {.cause = state.store_lost ? End::Cause::kStoreLost : End::Cause::kJobFailed,
          .failure = absl::AbortedError(absl::StrCat("the job failed: ", state.reason)),
          .reason = absl::StrCat("the job has failed: ", state.reason)};
}

}  // namespace

namespace {

std::string StoreOf(const Environment& env) {
  return env.store.empty() ? absl::StrCat(env.master_addr, ":", env.master_port) : env.store;
}

// Returns the error of OpenStore, which says so if another program listens at the store's address.
absl::Status ExplainUnreachable(const Environment& env, const absl::Status& error) {
  const bool silent = absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error);
  if (env.hosts_store() || IsEtcdAddress(env.store) || (!silent && !absl::IsUnimplemented(error)))
    return error;
  const std::string address = StoreOf(env);
  if (silent && !rpc::PortProbe().Accepts(address, absl::Seconds(2))) return error;
  return {
      error.code(),
      absl::StrCat(error.message(), "; a server listens at ", address,
                   ", but it does not answer as a job's store of Tandem does: is another program there?")};
}

}  // namespace

bool MayBeReplaced(const Environment& env) {
  return !env.worker && (env.role != "ps" || env.ps_followers > 0);
}

Member::Member(MemberOptions options)
    : options_(std::move(options)),
      own_waits_(options_.process == nullptr ? std::make_unique<WaitLog>() : nullptr) {}

absl::StatusOr<std::unique_ptr<Member>> Member::Join(const Environment& env, MemberOptions options) {
  SetLogName(env.member());
  std::unique_ptr<Member> member(new Member(std::move(options)));
  const MemberOptions& own = member->options_;
  {
    const WaitLog::Wait wait = member->waits().Begin(absl::StrCat("the job's store at ", StoreOf(env)));
    absl::StatusOr<std::unique_ptr<JobStore>> store = OpenStore(env, own.join_timeout);
    if (!store.ok()) return ExplainUnreachable(env, store.status());
    member->store_ = *std::move(store);
  }
  member->diagnostics_ = rpc::ProcessDiagnostics::Start(member->name(), env.epoch, member->store_->address());
  TANDEM_ASSIGN_OR_RETURN(
      member->monitor_,
      JobMonitor::Start(member->store_channel(),
                        {.member = member->name(),
                         .lease = member->lease(),
                         .status = member->status(),
                         .replaceable = own.replaceable.value_or(MayBeReplaced(env)),
                         .outlives_job = own.outlives_job},
                        [self = member.get()](const JobState& state) { self->OnJobEnd(state); }));
  return member;
}

Member::~Member() {
  if (ends_on_signals_) options_.process->OnSignal([](int) {});
  AcknowledgeEnd();
}

void Member::EndOnSignals() {
  ends_on_signals_ = true;
  options_.process->OnSignal([this](int signal) {
    SetEnd({.cause = End::Cause::kSignal, .signal = signal, .reason = "stopped by a signal"});
  });
}

void Member::ReportStatus() { monitor_->ReportStatus(); }

absl::Status Member::JoinAgain(absl::Duration timeout) {
  return JoinStore(*store_channel(), {.member = name(), .life = env().life, .timeout = timeout}).status();
}

absl::StatusOr<std::unique_ptr<rpc::Channel>> Member::Connect(const std::string& address,
                                                              rpc::ConnectOptions options) const {
  options.channel.caller = env().caller();
  return rpc::Connect(address, options);
}

void Member::SetEnd(End end) {
  absl::MutexLock lock(&mutex_);
  if (!end_.has_value()) end_ = std::move(end);
}

void Member::OnJobEnd(const JobState& state) {
  {
    absl::MutexLock lock(&mutex_);
    job_end_ = state;
    if (!end_.has_value()) end_ = EndOfJob(state);
  }
  if (state.failed && Exits()) ExitUnlessKnown(state);
}

void Member::ExitUnlessKnown(const JobState& state) {
  // The other members get the reason from the store, which may live in this process: each asks once in a
  // quarter of a lease.
  const absl::Duration least = env().hosts_store() ? lease() / 4 + absl::Seconds(1) : absl::ZeroDuration();
  bool known;
  {
    absl::MutexLock lock(&mutex_);
    known = known_;
  }
  if (known) return;
  LogError(EndOfJob(state).reason);
  {
    absl::MutexLock lock(&mutex_);
    known = AwaitFor(&mutex_, absl::Condition(&known_), std::max(least, options_.exit_after));
  }
  if (known) return;
  Process::Exit(1, options_.exit_after == absl::ZeroDuration()
                       ? ""
                       : absl::StrCat("this process ends because its job has failed, and its program has not "
                                      "learned of that within ",
                                      absl::FormatDuration(options_.exit_after)));
}

std::optional<End> Member::AwaitEnd(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return end_.has_value(); };
  if (AwaitFor(&mutex_, absl::Condition(&ended), timeout)) known_ = true;
  return end_;
}

std::optional<End> Member::end() const {
  absl::MutexLock lock(&mutex_);
  return end_;
}

void Member::AcknowledgeEnd() {
  absl::MutexLock lock(&mutex_);
  known_ = true;
}

std::optional<JobState> Member::AwaitJobEnd(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return job_end_.has_value(); };
  (void)AwaitFor(&mutex_, absl::Condition(&ended), timeout);
  return job_end_;
}

void Member::Fail(const absl::Status& why) {
  SetEnd({.cause = End::Cause::kOwnFailure, .failure = why, .reason = std::string(why.message())});
}

absl::Status Member::FailJob(absl::string_view reason, absl::Duration timeout, absl::string_view as) {
  {
    absl::MutexLock lock(&mutex_);
    known_ = failed_job_ = true;
  }
  absl::Status told = monitor_->ReportFailure(reason, timeout, as);
  monitor_->ReportStatus();  // the answer tells how the job has ended, which may be another way
  return told;
}

int Member::FailJobUnlessPeerDied(const absl::Status& why, const std::function<bool()>& stop) {
  const auto reason = [this]() -> std::optional<End> {
    const std::optional<End> end = this->end();
    return end.has_value() && end->cause != End::Cause::kSignal && !end->failure.ok() ? end : std::nullopt;
  };
  const auto blame = [this](const End& end) {
    // This failure is a consequence of that one.
    if (!Exits()) LogError(end.reason);
    // The others need the store, which may live in this process, to learn it.
    if (env().hosts_store()) absl::SleepFor(lease() / 4 + absl::Seconds(1));
    AcknowledgeEnd();
    return 1;
  };
  if (const std::optional<End> end = reason()) return blame(*end);
  LogError(absl::StrCat(why.message(), " [", absl::StatusCodeToString(why.code()), "]"));
  if (MayBeCausedByPeer(why)) {
    // If a member has died, the store notices its silence within a lease.
    const absl::Time deadline = MonotonicNow() + lease() * 1.5;
    while (MonotonicNow() < deadline && (stop == nullptr || !stop())) {
      if (const std::optional<End> end = reason()) return blame(*end);
      absl::SleepFor(kStopPollInterval);
    }
  }
  const absl::Status reported = FailJob(why.message());
  if (!reported.ok()) LogWarning(reported.message());
  return 1;
}

absl::Status Member::Leave(absl::Duration timeout, absl::string_view reason) {
  const absl::Time deadline = MonotonicNow() + timeout;
  bool failed;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(left_, true)) return absl::OkStatus();
    known_ = true;
    failed = failed_job_ || (job_end_.has_value() && job_end_->failed);
  }
  SetServing(false);
  const auto left = [&] { return std::max(deadline - MonotonicNow(), absl::Milliseconds(1)); };
  absl::Status told;
  if (!failed) {
    // If there is a launcher, it ends the job.
    if (env().hosts_store()) told = monitor_->ReportSuccess(reason, left());
    told.Update(monitor_->Leave(left()));
  }
  told.Update(store_->Close(left()));
  return told;
}

}  // namespace tandem::cluster
