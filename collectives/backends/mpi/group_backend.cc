// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/mpi/group_backend.h"

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/backends/mpi/collective.h"
#include "collectives/backends/mpi/communicator.h"
#include "collectives/backends/mpi/engine.h"
#include "collectives/backends/mpi/monitor.h"
#include "collectives/backends/mpi/point_to_point.h"
#include "collectives/reduce/reduce.h"
#include "collectives/shape.h"

namespace tandem::collectives::mpi {
namespace {

// How long a rank that is done waits for the others to be done too.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

class MpiBackend final : public Backend {
 public:
  MpiBackend(const BackendOptions& options, std::shared_ptr<Engine> engine,
             const Communicators& communicators)
      : group_(options.group),
        rank_(options.rank),
        world_size_(options.world_size),
        leave_timeout_(std::min(options.timeout, kLeaveTimeout)),
        engine_(std::move(engine)),
        communicators_(communicators),
        monitor_(std::make_shared<Monitor>(options.world_size)),
        collectives_(engine_.get(), communicators, options.group, options.rank, options.world_size, monitor_),
        point_to_point_(engine_.get(), communicators, options.group, options.rank,
                        [this](const absl::Status& reason) { Break(reason, /*tell=*/true); }),
        notes_(NoteReader::Start(engine_.get(), communicators, options.group, monitor_,
                                 [this] { point_to_point_.Fail(monitor_->error()); })) {}

  ~MpiBackend() override {
    bool together = false;
    if (!monitor_->broken()) {
      // Peers that are in another operation, and do not leave, learn from this that the rank is gone.
      Operation leave;
      leave.kind = OpKind::kLeave;
      leave.timeout = leave_timeout_;
      together = collectives_.Run(leave, MonotonicNow() + leave_timeout_).ok();
    }
    notes_->Stop();
    const absl::Status gone = absl::AbortedError(absl::StrCat("group '", group_, "' was destroyed"));
    monitor_->Break(gone);
    point_to_point_.Fail(gone);
    // Otherwise MPI may still write to memory of running operations. MPI cannot cancel them, so the
    // communicators stay.
    if (together) FreeCommunicators(engine_.get(), communicators_);
  }

  absl::string_view name() const override { return "mpi"; }

  absl::Status Supports(const Operation& operation) const override {
    absl::Status status;
    if (operation.device.kind != Device::Kind::kCpu) {
      status = absl::UnimplementedError("memory of another device than the CPU");
    } else if (SizeOf(operation.dtype) == 0) {
      status = absl::UnimplementedError(absl::StrCat("elements of ", Name(operation.dtype)));
    } else if (Reduces(operation.kind)) {
      status = SupportsReduction(operation.reduce, operation.dtype);
    }
    return Annotate(status, absl::StrCat("backend mpi, ", Name(operation.kind)));
  }

  absl::Status Run(const Operation& operation) override {
    if (monitor_->broken()) return monitor_->error();
    TANDEM_RETURN_IF_ERROR(Supports(operation));
    TANDEM_RETURN_IF_ERROR(CheckCollective(operation, rank_, world_size_));
    const absl::Status status = collectives_.Run(operation, MonotonicNow() + operation.timeout);
    if (status.ok()) return status;
    // If ranks disagree, each of them knows; a time-out is told to the ranks that are yet to come.
    Break(status, /*tell=*/!absl::IsInvalidArgument(status));
    return monitor_->error();
  }

  void StartPointToPoint(const Operation& operation, Done done) override {
    absl::Status status = monitor_->broken() ? monitor_->error() : Supports(operation);
    if (status.ok()) status = CheckPointToPoint(operation, rank_, world_size_);
    if (!status.ok()) return done(status);
    point_to_point_.Start(operation, std::move(done));
  }

  void Abort(const absl::Status& reason) override {
    Break(reason.ok() ? absl::AbortedError("aborted") : reason, /*tell=*/true);
  }

 private:
  void Break(const absl::Status& reason, bool tell) {
    if (!monitor_->Break(reason)) return;
    if (tell) {
      Note note;
      note.kind = Note::kAborted;
      note.code = static_cast<uint32_t>(reason.code());
      const size_t length = std::min(reason.message().size(), sizeof(note.text) - 1);
      std::memcpy(note.text, reason.message().data(), length);
      SendNote(engine_.get(), communicators_, rank_, world_size_, note);
    }
    point_to_point_.Fail(reason);
  }

  const std::string group_;
  const int rank_, world_size_;
  const absl::Duration leave_timeout_;
  const std::shared_ptr<Engine> engine_;
  const Communicators communicators_;
  const std::shared_ptr<Monitor> monitor_;
  Collectives collectives_;
  PointToPoint point_to_point_;
  const std::shared_ptr<NoteReader> notes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeMpiBackend(const BackendOptions& options) {
  const std::string context = absl::StrCat("backend mpi of group '", options.group, "'");
  absl::StatusOr<std::shared_ptr<Engine>> engine = Engine::Get(options.deadline);
  if (!engine.ok()) return Annotate(engine.status(), context);
  if ((*engine)->world_size() < options.world_size) {
    return absl::FailedPreconditionError(
        absl::StrCat(context, ": it has ", options.world_size, " ranks, but mpirun has started ",
                     (*engine)->world_size(), " processes; start them with mpirun -n ", options.world_size));
  }
  absl::StatusOr<Communicators> communicators = MakeCommunicators(engine->get(), options);
  if (!communicators.ok()) return Annotate(communicators.status(), context);
  return std::make_unique<MpiBackend>(options, *std::move(engine), *communicators);
}

absl::Status CheckLaunched(const BackendOptions& options) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0 || options.world_size == 1) return absl::OkStatus();
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE"}) {
    if (std::getenv(name) != nullptr) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "this process was not started by mpirun (OMPI_COMM_WORLD_SIZE is not set); start the ranks "
      "with mpirun -n ",
      options.world_size));
}

}  // namespace tandem::collectives::mpi
