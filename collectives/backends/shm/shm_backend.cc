// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/shm_backend.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/backends/shm/exchange.h"
#include "collectives/backends/shm/peer_liveness_monitor.h"
#include "collectives/backends/shm/point_to_point.h"
#include "collectives/backends/shm/segment.h"
#include "collectives/backends/shm/segment_setup.h"
#include "collectives/backends/shm/shared_failure_state.h"

namespace tandem::collectives {
namespace shm {
namespace {

bool Reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}

class ShmBackend final : public Backend {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Make(const BackendOptions& options) {
    TANDEM_RETURN_IF_ERROR(CheckViable(options));
    TANDEM_ASSIGN_OR_RETURN(SegmentSetup meeting, SetUpSegment(options));
    std::unique_ptr<ShmBackend> backend(new ShmBackend(options, std::move(meeting.segment)));
    TANDEM_ASSIGN_OR_RETURN(backend->watch_,
                            PeerLivenessMonitor::Start(backend->segment_, &backend->failures_, options.group,
                                                       std::move(meeting.watched)));
    return backend;
  }

  ~ShmBackend() override {
    point_to_point_.reset();  // delivers what was sent
    // This rank's published data stays readable: the other ranks map the memory too.
    segment_->area(rank_).state.store(kLeft, std::memory_order_seq_cst);
    segment_->WakeAll();
  }

  absl::string_view name() const override { return "shm"; }

  absl::Status Supports(const Operation& operation) const override {
    if (operation.device.kind != Device::Kind::kCpu) {
      return absl::UnimplementedError(absl::StrCat("backend shm does not support ", Name(operation.kind),
                                                   " of tensors on a GPU; use backend nccl"));
    }
    if (!Reduces(operation.kind)) return absl::OkStatus();
    return Annotate(SupportsReduction(operation.reduce, operation.dtype),
                    absl::StrCat("backend shm, ", Name(operation.kind)));
  }

  absl::Status Run(const Operation& operation) override {
    // Reductions that only some dtypes support, and other devices, are checked here; shm supports everything
    // else.
    if (operation.reduce >= ReduceOp::kBitAnd || operation.device.kind != Device::Kind::kCpu) {
      TANDEM_RETURN_IF_ERROR(Supports(operation));
    }
    return exchange_.Run(operation);
  }

  void StartPointToPoint(const Operation& operation, Done done) override {
    point_to_point_->Start(operation, std::move(done));
  }
  absl::StatusOr<int> RunPointToPoint(const Operation& operation) override {
    return point_to_point_->Run(operation);
  }

  void Abort(const absl::Status& reason) override { failures_.Abort(reason); }

 private:
  ShmBackend(const BackendOptions& options, std::shared_ptr<Segment> segment)
      : rank_(options.rank),
        segment_(std::move(segment)),
        failures_(segment_, options.rank),
        exchange_(segment_, &failures_, options.rank, options.group),
        point_to_point_(std::make_unique<PointToPoint>(segment_, &failures_, options.rank, options.group)) {
    segment_->area(rank_).state.store(kJoined, std::memory_order_release);
  }

  const int rank_;
  const std::shared_ptr<Segment> segment_;
  SharedFailureState failures_;
  Exchange exchange_;
  std::unique_ptr<PointToPoint> point_to_point_;
  std::unique_ptr<PeerLivenessMonitor> watch_;  // ends first
};

}  // namespace
}  // namespace shm

BackendFactory ShmBackendFactory() {
  BackendFactory factory;
  factory.name = "shm";
  factory.device = Device::Kind::kCpu;
  factory.viable = shm::CheckViable;
  factory.make = shm::ShmBackend::Make;
  return factory;
}

}  // namespace tandem::collectives
