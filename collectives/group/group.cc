// SPDX-License-Identifier: Apache-2.0
#include "collectives/group/group.h"

#include <algorithm>

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/store/prefix_store.h"
#include "collectives/group/global_ranks.h"
#include "collectives/group/peer_failure.h"
#include "collectives/group/validation.h"
#include "collectives/ranks.h"

namespace tandem::collectives {
namespace {

// How long Destroy waits for running messages.
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);

absl::string_view Name(DebugLevel level) {
  return level == DebugLevel::kDetail ? "DETAIL" : level == DebugLevel::kInfo ? "INFO" : "OFF";
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> Group::Make(Parts parts) {
  const ProcessGroupOptions& o = parts.options;
  GroupConnectOptions connect;
  connect.group = o.name;
  connect.rank = o.rank;
  connect.world_size = o.world_size;
  connect.members = NameRanks(parts.global_ranks);
  connect.backend = o.backend;
  connect.debug = std::string(Name(o.debug));
  connect.check_fingerprints = o.debug == DebugLevel::kDetail;
  connect.interface_address = o.interface_address;
  connect.host = o.host;
  connect.timeout = o.timeout;
  std::vector<BackendFactory> extra_backends = parts.split;
  extra_backends.insert(extra_backends.end(), o.extra_backends.begin(), o.extra_backends.end());
  connect.extra_backends = extra_backends;
  absl::StatusOr<Connection> connected = Connect(parts.store.get(), connect);
  if (!connected.ok()) {
    // Ranks that expect other members name them by their global ranks.
    if (absl::IsInvalidArgument(connected.status())) return connected.status();
    return NameGlobalRanks(connected.status(), parts.global_ranks);
  }
  Connection connection = *std::move(connected);

  std::unique_ptr<Group> group(new Group(std::move(parts)));
  for (Connection::Device& device : connection.devices) {
    Lane::Options lane;
    lane.device = device.kind;
    lane.backend_name = device.backend;
    lane.stores = std::move(device.stores);
    lane.backend = WithGlobalRanks(std::move(device.made), group->parts_.global_ranks);
    lane.health = &group->health_;
    lane.recorder = group->parts_.recorder;
    if (lane.recorder != nullptr) {
      lane.record_group =
          lane.recorder->AddGroup(group->name(), device.backend, group->rank(), group->parts_.global_ranks);
    }
    lane.on_broken = [g = group.get()] { g->OnBroken(); };
    group->lanes_.push_back(std::make_unique<Lane>(std::move(lane)));
    if (group->parts_.watchdog != nullptr) {
      group->parts_.watchdog->AddGroup(group->lanes_.back()->record_group(),
                                       [g = group.get()](const absl::Status& stuck) { g->AbortWith(stuck); });
    }
  }
  if (group->parts_.options.debug != DebugLevel::kOff) {
    for (const std::unique_ptr<Lane>& lane : group->lanes_) {
      LogInfo(absl::StrCat("process group '", group->name(), "': rank ", group->rank(), " of ",
                           group->world_size(), " over ", lane->backend_name()));
    }
  }
  if (group->world_size() > 1) {
    group->barrier_store_ = std::make_unique<cluster::PrefixStore>(
        group->parts_.store.get(), absl::StrCat("pg/", group->name(), "/barrier"));
    group->monitored_barrier_ = std::make_unique<tandem::collectives::MonitoredBarrier>(
        group->barrier_store_.get(), group->name(), group->rank(), group->world_size());
  }
  return group;
}

std::string Group::backend(Device device) const {
  const Lane* lane = LaneOf(device);
  return lane == nullptr ? "" : lane->backend_name();
}

absl::StatusOr<int> Group::GlobalRank(int group_rank) const {
  if (group_rank >= 0 && group_rank < world_size()) return parts_.global_ranks[group_rank];
  return absl::InvalidArgumentError(
      absl::StrCat("group '", name(), "' has ", world_size(), " ranks, no rank ", group_rank));
}

absl::StatusOr<int> Group::GroupRank(int global_rank) const {
  auto found = std::find(parts_.global_ranks.begin(), parts_.global_ranks.end(), global_rank);
  if (found != parts_.global_ranks.end()) return static_cast<int>(found - parts_.global_ranks.begin());
  return absl::InvalidArgumentError(absl::StrCat("global rank ", global_rank, " is not in group '", name(),
                                                 "', which has ", NameRanks(parts_.global_ranks)));
}

absl::Status Group::Refuse(OpKind kind, const absl::Status& status) const {
  return status.ok() ? status : Annotate(status, absl::StrCat(Name(kind), " on group '", name(), "'"));
}

Lane* Group::LaneOf(const Device& device) const {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->device() == device.kind) return lane.get();
  }
  return nullptr;
}

Lane* Group::Prepare(Operation* operation, absl::Duration timeout, absl::Status* error) const {
  const bool on_cpu = operation->device.kind == Device::Kind::kCpu;
  operation->timeout = timeout != absl::ZeroDuration() ? timeout
                       : on_cpu                        ? parts_.options.timeout
                                                       : parts_.options.cuda_timeout;
  Lane* lane = LaneOf(operation->device);
  if (ABSL_PREDICT_FALSE(timeout < absl::ZeroDuration())) {
    *error = Refuse(operation->kind, CheckTimeout(timeout));
  } else if (ABSL_PREDICT_FALSE(health_.broken())) {
    *error = health_.error();
  } else if (ABSL_PREDICT_FALSE(lane == nullptr)) {
    *error = absl::FailedPreconditionError(
        absl::StrCat(Name(operation->kind), " on group '", name(), "': no backend for ",
                     on_cpu ? "CPU" : "CUDA", " tensors; ask for one, as in backend \"cpu:auto,cuda:nccl\""));
  } else {
    *error = lane->Supports(*operation);
    if (ABSL_PREDICT_TRUE(error->ok())) return lane;
    *error = Refuse(operation->kind, *error);
  }
  return nullptr;
}

Work Group::Submit(Call* call, bool async, absl::Duration timeout, void* stream) {
  call->operation.stream = stream;
  absl::Status error;
  Lane* const lane = Prepare(&call->operation, timeout, &error);
  if (ABSL_PREDICT_FALSE(lane == nullptr)) return Work(std::move(error));
  if (!async) return lane->Run(&call->operation);
  auto task = std::make_unique<Task>();
  task->calls.push_back(std::move(*call));
  return lane->Enqueue(std::move(task));
}

Work Group::SubmitTask(std::unique_ptr<Task> task, bool async, absl::Duration timeout, void* stream) {
  Lane* lane = nullptr;
  for (Call& call : task->calls) {
    call.operation.stream = stream;
    absl::Status error;
    Lane* const prepared = Prepare(&call.operation, timeout, &error);
    if (prepared == nullptr) return Work(std::move(error));
    if (lane != nullptr && lane != prepared) {
      return Work(Refuse(call.operation.kind, absl::InvalidArgumentError(
                                                  "the tensors of one call must be on one kind of device")));
    }
    lane = prepared;
  }
  if (lane == nullptr) return Work(health_.error());  // nothing to do
  return async ? lane->Enqueue(std::move(task)) : lane->Run(task.get());
}

absl::Status Group::RegisterBuffer(TensorView buffer) {
  if (health_.broken()) return health_.error();
  Lane* const lane = LaneOf(buffer.device);
  const absl::Status status = lane == nullptr
                                  ? absl::UnimplementedError("the group has no backend for this device")
                                  : lane->RegisterBuffer(buffer);
  return status.ok() ? status : Annotate(status, absl::StrCat("register_buffer on group '", name(), "'"));
}

absl::Status Group::DeregisterBuffer(TensorView buffer) {
  if (health_.broken()) return health_.error();
  Lane* const lane = LaneOf(buffer.device);
  const absl::Status status = lane == nullptr
                                  ? absl::UnimplementedError("the group has no backend for this device")
                                  : lane->DeregisterBuffer(buffer);
  return status.ok() ? status : Annotate(status, absl::StrCat("deregister_buffer on group '", name(), "'"));
}

absl::Status Group::MonitoredBarrier(absl::Duration timeout) {
  if (health_.broken()) return health_.error();
  if (monitored_barrier_ == nullptr) return absl::OkStatus();
  return NameGlobalRanks(monitored_barrier_->Wait(timeout), parts_.global_ranks);
}

void Group::OnBroken() {
  const absl::Status reason = health_.error();
  NotePeerFailure(parts_.error_file, reason);
  Dump(reason);
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    lane->FailQueued();
    // The backend that failed has told the other ranks already; the backend of another device has not.
    if (lanes_.size() > 1) lane->AbortBackend(reason);
  }
}

void Group::Abort(absl::string_view reason) {
  AbortWith(absl::AbortedError(
      absl::StrCat("group '", name(), "' was aborted by rank ", parts_.global_ranks[rank()], ": ", reason)));
}

void Group::AbortWith(const absl::Status& error) {
  if (!health_.Break(error)) return;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    lane->AbortBackend(error);
    lane->FailQueued();
  }
  Dump(error);
}

void Group::Dump(const absl::Status& reason) const {
  if (parts_.recorder == nullptr) return;
  const absl::Status dumped = parts_.recorder->Dump(reason.ToString());
  if (!dumped.ok()) LogWarning(dumped.message());
}

void Group::Destroy() {
  absl::MutexLock lock(&destroy_mutex_);
  if (destroyed_) return;
  destroyed_ = true;
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->WaitForQueued();
  if (parts_.watchdog != nullptr) {
    for (const std::unique_ptr<Lane>& lane : lanes_) parts_.watchdog->RemoveGroup(lane->record_group());
  }
  (void)health_.Break(absl::AbortedError(absl::StrCat("group '", name(), "' was destroyed")));
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->FailQueued();
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->Close(kDrainTimeout);
}

}  // namespace tandem::collectives
