// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership/job_monitor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "base/utf8.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {
namespace {

constexpr absl::Duration kRegisterPause = absl::Milliseconds(200);

// Makes valid UTF-8 on one line, for protobuf and for logs. Quotes are not escaped, because people read the
// text.
std::string Readable(absl::string_view text) {
  return absl::StrReplaceAll(absl::Utf8SafeCEscape(ValidUtf8(text)),
                             {{"\\\\", "\\"}, {"\\'", "'"}, {"\\\"", "\""}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobMonitor>> JobMonitor::Start(std::shared_ptr<rpc::Channel> store,
                                                              Options options, OnEnd on_end) {
  std::unique_ptr<JobMonitor> monitor(
      new JobMonitor(std::move(store), std::move(options), std::move(on_end)));
  const absl::Time sent = monitor->options_.clock->Now();
  absl::StatusOr<JobState> first =
      monitor->Heartbeat(/*leaving=*/false, monitor->options_.lease, /*retry=*/true);
  if (!first.ok()) {
    return Annotate(first.status(), absl::StrCat(monitor->options_.member, " cannot join the job at store ",
                                                 monitor->store_->target()));
  }
  JobMonitor* self = monitor.get();
  absl::MutexLock lock(&self->join_mutex_);
  self->thread_ =
      std::thread([self, state = *std::move(first), sent]() mutable { self->Run(std::move(state), sent); });
  self->registering_ = std::thread([self] { self->RegisterAgain(); });
  return monitor;
}

JobMonitor::JobMonitor(std::shared_ptr<rpc::Channel> store, Options options, OnEnd on_end)
    : store_(std::move(store)), options_(std::move(options)), on_end_(std::move(on_end)) {}

JobMonitor::~JobMonitor() { Stop(); }

void JobMonitor::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  stop_beats_.request_stop();
  absl::MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
  if (registering_.joinable()) registering_.join();
}

absl::StatusOr<JobState> JobMonitor::Heartbeat(bool leaving, absl::Duration timeout, bool retry) {
  tandem::v1::HeartbeatRequest request;
  request.set_member(Readable(options_.member));
  request.set_lease_ms(absl::ToInt64Milliseconds(options_.lease));
  request.set_leaving(leaving);
  request.set_replaceable(options_.replaceable);
  {
    absl::MutexLock lock(&mutex_);
    request.set_registered_with(registered_with_);
  }
  if (options_.status != nullptr) {
    const rpc::ProcessStatus::Values values = options_.status->Get();
    request.set_step(values.step);
    request.set_epoch(values.epoch);
    request.set_train_epoch(values.train_epoch);
    request.set_state(Readable(leaving ? "left" : values.state));
    request.set_host(Readable(values.host));
    request.set_pid(values.pid);
    request.set_diagnostics(Readable(values.diagnostics));
    request.set_address(Readable(values.address));
  }
  tandem::v1::HeartbeatResponse response;
  TANDEM_RETURN_IF_ERROR(rpc::CallProto(*store_, "/tandem.v1.Store/Heartbeat", request, &response,
                                        {.timeout = timeout,
                                         .idempotent = retry,
                                         .cancel = leaving ? std::stop_token() : stop_beats_.get_token()}));
  {
    absl::MutexLock lock(&mutex_);
    // A member registers what it owns after its first heartbeat.
    if (incarnation_ == 0) registered_with_ = response.incarnation();
    if (incarnation_ != 0 && incarnation_ != response.incarnation()) {
      LogWarning(absl::StrCat("the job's store at ", store_->target(),
                              " has lost its memory: it was restarted; this process registers again"));
    }
    incarnation_ = response.incarnation();
  }
  return JobState{response.ended(), response.failed(), response.reason()};
}

JobMonitor::Registration::~Registration() {
  absl::MutexLock lock(&monitor_->registrations_mutex_);
  monitor_->registrations_.erase(number_);
}

std::unique_ptr<JobMonitor::Registration> JobMonitor::OnStoreLost(std::function<absl::Status()> again) {
  absl::MutexLock lock(&registrations_mutex_);
  const uint64_t number = next_registration_++;
  registrations_.emplace(number, std::move(again));
  return std::unique_ptr<Registration>(new Registration(this, number));
}

absl::Status JobMonitor::RegisterAll() {
  absl::MutexLock lock(&registrations_mutex_);
  absl::Status first;
  for (const auto& [number, again] : registrations_) first.Update(again());
  return first;
}

void JobMonitor::RegisterAgain() {
  const auto lost = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || incarnation_ != registered_with_;
  };
  bool told = false;  // of an error
  while (true) {
    uint64_t incarnation = 0;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&lost));
      if (stopping_) return;
      incarnation = incarnation_;
    }
    const absl::Status registered = RegisterAll();
    absl::MutexLock lock(&mutex_);
    if (registered.ok()) {
      registered_with_ = incarnation;
      due_ = true;  // `tandem status` shows it
      told = false;
      LogInfo("registered again at the job's store");
      continue;
    }
    if (!std::exchange(told, true)) {
      LogWarning(absl::StrCat("cannot register again yet: ", registered.message()));
    }
    if (AwaitFor(&mutex_, absl::Condition(&stopping_), kRegisterPause)) return;
  }
}

void JobMonitor::Run(JobState state, absl::Time last_answered) {
  absl::Time next = last_answered + options_.lease / 4;
  const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || due_; };
  bool replaced = false;
  while (!replaced && (!state.ended || options_.outlives_job)) {
    {
      absl::MutexLock lock(&mutex_);
      (void)options_.clock->AwaitUntil(&mutex_, absl::Condition(&wanted), next);
      if (stopping_) return;
      due_ = false;
    }
    const absl::Time sent = options_.clock->Now();
    absl::StatusOr<JobState> answer = Heartbeat(/*leaving=*/false, options_.lease / 4, /*retry=*/false);
    const absl::Time now = options_.clock->Now();
    if (answer.ok()) {
      state = *std::move(answer);
      last_answered = sent;
      next = sent + options_.lease / 4;
    } else if (absl::IsAlreadyExists(answer.status())) {
      state = JobState{true, true, std::string(answer.status().message())};  // it was replaced
      replaced = true;
    } else if (now - last_answered >= options_.lease && !options_.outlives_job) {
      state = JobState{
          true, true,
          absl::StrCat("the job's store at ", store_->target(), " has been silent for ",
                       absl::FormatDuration(absl::Trunc(now - last_answered, absl::Milliseconds(100))),
                       store_->transport() == "etcd" ? "; is etcd up, and can this machine reach it? ("
                                                     : "; was rank 0, or the launcher, killed? (",
                       answer.status().message(), ")"),
          /*store_lost=*/true};
    } else {
      next = sent + options_.lease / 8;
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    state_ = state;
    if (stopping_) return;
  }
  if (on_end_) on_end_(state);
}

void JobMonitor::ReportStatus() {
  absl::MutexLock lock(&mutex_);
  due_ = true;
}

absl::Status JobMonitor::Leave(absl::Duration timeout) {
  Stop();
  return Heartbeat(/*leaving=*/true, timeout, /*retry=*/true).status();
}

absl::Status JobMonitor::EndJob(bool failed, absl::string_view reason, absl::Duration timeout,
                                absl::string_view as) {
  tandem::v1::EndJobRequest request;
  request.set_member(Readable(as.empty() ? options_.member : as));
  request.set_failed(failed);
  request.set_reason(Readable(reason));
  tandem::v1::EndJobResponse response;
  return rpc::CallProto(*store_, "/tandem.v1.Store/EndJob", request, &response,
                        {timeout, /*idempotent=*/true});
}

absl::Status JobMonitor::ReportFailure(absl::string_view reason, absl::Duration timeout,
                                       absl::string_view as) {
  return EndJob(/*failed=*/true, reason, timeout, as);
}

absl::Status JobMonitor::ReportSuccess(absl::string_view reason, absl::Duration timeout) {
  return EndJob(/*failed=*/false, reason, timeout, /*as=*/"");
}

JobState JobMonitor::state() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

}  // namespace tandem::cluster
