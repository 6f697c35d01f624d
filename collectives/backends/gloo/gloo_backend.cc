// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/gloo/gloo_backend.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/store/prefix_store.h"
#include "collectives/backends/gloo/algorithms.h"
#include "collectives/backends/gloo/operation_guard.h"
#include "collectives/backends/gloo/transport.h"
#include "collectives/backends/tcp/algorithms.h"
#include "collectives/backends/tcp/tcp_backend.h"
#include "collectives/diagnostics/operation_comparer.h"
#include "collectives/ranks.h"
#include "collectives/reduce/reduce.h"
#include "collectives/shape.h"
#include "rpc/security/transport_security.h"

namespace tandem::collectives {
namespace gloo_library {
namespace {

// How long a rank whose operation failed in Gloo waits for the reason, which arrives over `control_`. That
// backend itself looks for the peer's reason for half a second before it reports the peer as dead. Also how
// long ranks that disagree wait for each other.
constexpr absl::Duration kGrace = absl::Seconds(2);
// The tag of a receive on `control_` that no message ends, only a failure.
constexpr uint32_t kAlarmTag = 0xffffffff;

class GlooBackend final : public Backend {
 public:
  explicit GlooBackend(const BackendOptions& options)
      : group_(options.group),
        rank_(options.rank),
        world_size_(options.world_size),
        control_keys_(options.store, "control"),
        gloo_keys_(options.store, "gloo") {
    alarm_.kind = OpKind::kRecv;
    alarm_.root = kAnySource;
    alarm_.tag = kAlarmTag;
  }

  ~GlooBackend() override {
    // Waits for the other ranks, which may still receive data of Gloo's from this one.
    control_.reset();
    context_.reset();
  }

  absl::Status Connect(const BackendOptions& options) {
    BackendOptions control = options;
    control.store = &control_keys_;
    TANDEM_ASSIGN_OR_RETURN(control_, TcpBackendFactory().make(control));
    if (world_size_ == 1) return absl::OkStatus();
    comparer_ = std::make_unique<OperationComparer>(group_, rank_, world_size_, control_.get());
    TANDEM_ASSIGN_OR_RETURN(context_, ConnectGloo(&gloo_keys_, rank_, world_size_,
                                                  options.peers[rank_].address, options.deadline, &guard_));
    SetAlarm();
    return absl::OkStatus();
  }

  absl::string_view name() const override { return "gloo"; }

  absl::Status Supports(const Operation& operation) const override {
    absl::Status status;
    if (operation.device.kind != Device::Kind::kCpu) {
      status = absl::UnimplementedError("memory of another device than the CPU");
    } else if (!HasAlgorithm(operation.kind)) {
      status = absl::UnimplementedError("Gloo has no algorithm for it; backend tcp has");
    } else if (Reduces(operation.kind)) {
      status = SupportsReduction(operation.reduce, operation.dtype);
    }
    return Annotate(status, absl::StrCat("backend gloo, ", Name(operation.kind)));
  }

  absl::Status Run(const Operation& operation) override {
    TANDEM_RETURN_IF_ERROR(Broken());
    TANDEM_RETURN_IF_ERROR(Supports(operation));
    TANDEM_RETURN_IF_ERROR(CheckCollective(operation, rank_, world_size_));
    if (world_size_ == 1) {
      tcp::RunAlone(operation);
      return absl::OkStatus();
    }
    const absl::Time deadline = MonotonicNow() + operation.timeout;
    if (absl::Status status = Compare(operation, deadline); !status.ok()) return Break(status);
    const absl::Status status = RunGloo(operation, deadline);
    if (status.ok()) return status;
    const absl::Status why = Break(status);
    CloseGloo(context_.get());
    return why;
  }

  void StartPointToPoint(const Operation& operation, Done done) override {
    absl::Status status = Broken();
    if (status.ok()) status = CheckPointToPoint(operation, rank_, world_size_);
    if (status.ok()) status = Supports(operation);
    if (status.ok() && operation.tag == kAlarmTag) {
      status = absl::InvalidArgumentError(
          absl::StrCat(Describe(operation), ": backend gloo keeps this tag for itself"));
    }
    if (!status.ok()) return done(status);
    control_->StartPointToPoint(operation, std::move(done));
  }

  void Abort(const absl::Status& reason) override {
    (void)Break(reason.ok() ? absl::AbortedError("aborted") : reason);
  }

 private:
  std::string Here(const Operation& operation) const {
    return absl::StrCat(Describe(operation), " on group '", group_, "'");
  }

  // Waits until all ranks have found the disagreement that this rank has found. If this rank broke the group
  // at once, another one could lose the connection before it has read what tells it so.
  void LetAllFindOut(absl::Time deadline) {
    Operation barrier;
    barrier.sequence = ~uint64_t{0};
    barrier.timeout = std::clamp(deadline - MonotonicNow(), absl::ZeroDuration(), kGrace);
    (void)control_->Run(barrier);
  }

  // Stops the guard when another rank dies or aborts, with the reason that `control_` gives.
  void SetAlarm() {
    control_->StartPointToPoint(alarm_, [this](const absl::StatusOr<int>& source) {
      if (source.ok()) {
        return guard_.Stop(absl::InternalError(absl::StrCat("rank ", *source, " sent an alarm")));
      }
      std::string text(source.status().message());
      (void)StripAlarm(&text);
      // Another rank's failed comparison, which this rank's user does not know as an all_gather.
      const size_t end = absl::StartsWith(text, "all_gather #") ? text.find(" on group '") : text.npos;
      if (end != text.npos) text = absl::StrCat("comparing calls", text.substr(end));
      guard_.Stop(absl::Status(source.status().code(), text));
    });
  }
  // Removes the description of the alarm, and what stands before it; returns false if `text` has none.
  bool StripAlarm(std::string* text) const {
    const std::string description = absl::StrCat(Here(alarm_), ": ");
    const size_t found = text->find(description);
    if (found == text->npos) return false;
    text->erase(0, found + description.size());
    return true;
  }

  absl::Status Compare(const Operation& operation, absl::Time deadline) {
    const absl::Status status = comparer_->Compare(operation);
    if (absl::IsInvalidArgument(status)) LetAllFindOut(deadline);
    // If a rank died before, `control_` fails because of the alarm.
    std::string text(status.message());
    if (!status.ok() && StripAlarm(&text)) {
      return absl::Status(status.code(), absl::StrCat(Here(operation), ": ", text));
    }
    return status;
  }

  absl::Status RunGloo(const Operation& operation, absl::Time deadline) {
    const SigpipeBlock block;
    guard_.Begin(deadline);
    std::string failure;
    try {
      RunAlgorithm(operation, context_, &memory_);
      return absl::OkStatus();
    } catch (const std::exception& error) {
      failure = TextOf(error);
    }
    const std::string here = Here(operation);
    if (absl::Status reason = guard_.stopped(); !reason.ok()) return Annotate(reason, here);
    if (MonotonicNow() >= deadline) {
      const std::vector<int> late = guard_.late();
      return absl::DeadlineExceededError(
          absl::StrCat(here, ": not finished within ", absl::FormatDuration(operation.timeout),
                       late.empty() ? "" : absl::StrCat(", waiting for ", NameRanks(late))));
    }
    if (absl::Status reason = guard_.AwaitStop(kGrace); !reason.ok()) return Annotate(reason, here);
    return absl::UnavailableError(absl::StrCat(here, ": Gloo failed: ", failure));
  }

  absl::Status Broken() {
    {
      absl::MutexLock lock(&mutex_);
      if (!broken_.ok()) return broken_;
    }
    const absl::Status stopped = guard_.stopped();
    return stopped.ok() ? stopped : Break(stopped);
  }

  // Breaks the group, unless it is broken already. Returns the reason why it is.
  absl::Status Break(const absl::Status& reason) {
    absl::Status why;
    {
      absl::MutexLock lock(&mutex_);
      if (broken_.ok()) broken_ = reason;
      why = broken_;
    }
    guard_.Stop(why);
    control_->Abort(why);
    return why;
  }

  const std::string group_;
  const int rank_;
  const int world_size_;
  cluster::PrefixStore control_keys_, gloo_keys_;
  Operation alarm_;

  OperationGuard guard_;  // outlives what uses it
  absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<Backend> control_;
  std::unique_ptr<OperationComparer> comparer_;
  // Used by the thread that runs collectives.
  std::shared_ptr<::gloo::Context> context_;
  Memory memory_;
};

// Gloo takes the first that connects to a rank's port for its peer, and sends in clear.
absl::Status CheckNetwork(const BackendOptions& options) {
  const std::string& own = options.peers[options.rank].address;
  const auto elsewhere =
      absl::c_find_if(options.peers, [&](const RankEndpoint& peer) { return peer.address != own; });
  if (elsewhere == options.peers.end() || rpc::TrustedNetwork()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Gloo neither encrypts its connections nor knows who connects, and rank ",
                   elsewhere - options.peers.begin(), " is at another address, ", elsewhere->address,
                   ". Backend tcp does both (auto chooses it); on a network that you trust, start the job "
                   "with --trusted-network"));
}

absl::StatusOr<std::unique_ptr<Backend>> Make(const BackendOptions& options) {
  TANDEM_RETURN_IF_ERROR(
      Annotate(CheckNetwork(options), absl::StrCat("backend gloo of group '", options.group, "'")));
  auto backend = std::make_unique<GlooBackend>(options);
  if (absl::Status status = backend->Connect(options); !status.ok()) {
    return Annotate(status, absl::StrCat("backend gloo of group '", options.group, "'"));
  }
  return backend;
}

}  // namespace
}  // namespace gloo_library

BackendFactory GlooBackendFactory() {
  BackendFactory factory;
  factory.name = "gloo";
  factory.device = Device::Kind::kCpu;
  factory.viable = [](const BackendOptions&) { return absl::OkStatus(); };
  factory.make = gloo_library::Make;
  return factory;
}

}  // namespace tandem::collectives
