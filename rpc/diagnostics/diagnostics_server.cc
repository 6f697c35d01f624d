// SPDX-License-Identifier: Apache-2.0
#include "rpc/diagnostics/diagnostics_server.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/ticks.h"
#include "rpc/diagnostics/clock_name.h"
#include "rpc/diagnostics/trace_codec.h"
#include "rpc/transport/timer_queue.h"
#include "tandem/v1/diagnostics.pb.h"

namespace tandem::rpc {
namespace {

constexpr absl::Duration kLongestTrace = absl::Hours(1);
constexpr size_t kMaxOwnerBytes = 256;

}  // namespace

class DiagnosticsServer::Service {
 public:
  Service(const DiagnosticsOptions& options, std::shared_ptr<ProcessStatus> status, trace::Recorder* recorder)
      : options_(options), status_(std::move(status)), recorder_(recorder) {}
  ~Service() {
    absl::MutexLock lock(&mutex_);
    EndTrace();
  }

  rpc::Service MakeService() {
    using namespace tandem::v1;  // NOLINT: the messages of this one service
    return {"tandem.v1.Diagnostics",
            {{"GetProcess", Right::kObserve,
              ProtoHandler<GetProcessRequest, ProcessInfo>(
                  [this](const GetProcessRequest&) { return GetProcess(); })},
             {"ReadClock", Right::kObserve,
              ProtoHandler<ReadClockRequest, ReadClockResponse>(
                  [this](const ReadClockRequest&) { return ReadClock(); })},
             {"StartTrace", Right::kObserve,
              ProtoHandler<StartTraceRequest, StartTraceResponse>(
                  [this](const StartTraceRequest& request) { return StartTrace(request); })},
             {"StopTrace", Right::kObserve,
              ProtoHandler<StopTraceRequest, TraceRecording>(
                  [this](const StopTraceRequest& request) { return StopTrace(request); })}}};
  }

 private:
  absl::StatusOr<tandem::v1::ProcessInfo> GetProcess() const {
    const ProcessStatus::Values values = status_->Get();
    tandem::v1::ProcessInfo info;
    info.set_member(values.member);
    info.set_host(values.host);
    info.set_pid(values.pid);
    info.set_step(values.step);
    info.set_epoch(values.epoch);
    info.set_state(values.state);
    info.set_train_epoch(values.train_epoch);
    return info;
  }

  absl::StatusOr<tandem::v1::ReadClockResponse> ReadClock() const {
    tandem::v1::ReadClockResponse response;
    response.set_received_ns(SteadyNanoseconds() + options_.skew_ns);
    response.set_clock(options_.skew_ns == 0 ? ClockName()
                                             : absl::StrCat(ClockName(), " ", options_.skew_ns));
    response.set_answered_ns(SteadyNanoseconds() + options_.skew_ns);
    return response;
  }

  absl::StatusOr<tandem::v1::StartTraceResponse> StartTrace(const tandem::v1::StartTraceRequest& request) {
    const absl::Duration limit = absl::Milliseconds(request.limit_ms());
    if (limit <= absl::ZeroDuration() || limit > kLongestTrace) {
      return absl::InvalidArgumentError(
          absl::StrCat("a trace may last up to an hour, not ", request.limit_ms(), " ms"));
    }
    if (request.owner().empty() || request.owner().size() > kMaxOwnerBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a trace's owner has a name of 1 to ", kMaxOwnerBytes, " bytes"));
    }
    absl::MutexLock lock(&mutex_);
    TANDEM_RETURN_IF_ERROR(recorder_->Start());
    owner_ = request.owner();
    limit_ = timers_.Schedule(MonotonicNow() + limit, [this, owner = owner_] {
      absl::MutexLock lock(&mutex_);
      if (owner_ == owner) EndTrace();
    });
    return tandem::v1::StartTraceResponse();
  }

  absl::StatusOr<tandem::v1::TraceRecording> StopTrace(const tandem::v1::StopTraceRequest& request) {
    absl::MutexLock lock(&mutex_);
    if (owner_.empty() || owner_ != request.owner()) {
      return absl::FailedPreconditionError(owner_.empty() ? "no trace was started, or it has passed its limit"
                                                          : "another trace is being recorded");
    }
    if (limit_.has_value()) timers_.Cancel(*limit_);
    EndTrace();
    const size_t limit = std::min<uint64_t>(request.max_events(), options_.max_events);
    if (limit == 0) return tandem::v1::TraceRecording();
    return EncodeTrace(recorder_->Collect(limit), options_.skew_ns);
  }

  void EndTrace() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (owner_.empty()) return;
    recorder_->Stop();
    owner_.clear();
    limit_.reset();
  }

  const DiagnosticsOptions options_;
  const std::shared_ptr<ProcessStatus> status_;
  trace::Recorder* const recorder_;
  absl::Mutex mutex_;
  std::string owner_ ABSL_GUARDED_BY(mutex_);  // the current trace's owner; empty if there is none
  std::optional<TimerQueue::Id> limit_ ABSL_GUARDED_BY(mutex_);
  TimerQueue timers_;  // last: its thread refers to the others
};

DiagnosticsServer::DiagnosticsServer() = default;

DiagnosticsServer::~DiagnosticsServer() {
  if (server_ != nullptr) server_->Shutdown(absl::ZeroDuration());
}

absl::StatusOr<std::unique_ptr<DiagnosticsServer>> DiagnosticsServer::Start(
    const DiagnosticsOptions& options, std::shared_ptr<ProcessStatus> status, trace::Recorder* recorder) {
  std::unique_ptr<DiagnosticsServer> diagnostics(new DiagnosticsServer);
  diagnostics->service_ = std::make_unique<Service>(options, status, recorder);
  ServerOptions server;
  server.listen = options.where.listen;
  server.transport = "grpc";
  server.threads = 1;
  server.serving = false;
  TANDEM_ASSIGN_OR_RETURN(diagnostics->server_,
                          Server::Start(server, {diagnostics->service_->MakeService()}));
  TANDEM_ASSIGN_OR_RETURN(diagnostics->address_, AdvertisedAddress(server.listen, options.where.advertise,
                                                                   diagnostics->server_->port()));
  status->SetDiagnostics(diagnostics->address_);
  return diagnostics;
}

rpc::Service DiagnosticsServer::service() { return service_->MakeService(); }

void DiagnosticsServer::SetServing(bool serving) { server_->SetServing("", serving); }

}  // namespace tandem::rpc
