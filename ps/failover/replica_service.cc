// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/replica_impl.h"

namespace tandem::ps {
namespace {

// The longest wait of a call of Watch or GetPlacement.
constexpr absl::Duration kLongestCallWait = absl::Seconds(10);
constexpr absl::Duration kReplyMargin = absl::Milliseconds(100);  // before the deadline of a call that waits

v1::ReplicaRole ToProto(Protocol::Role role) {
  switch (role) {
    case Protocol::Role::kStarting:
      return v1::REPLICA_ROLE_STARTING;
    case Protocol::Role::kSteppingDown:  // for some milliseconds
    case Protocol::Role::kLearner:
      return v1::REPLICA_ROLE_LEARNER;
    case Protocol::Role::kFollower:
      return v1::REPLICA_ROLE_FOLLOWER;
    case Protocol::Role::kTakingOver:
      return v1::REPLICA_ROLE_TAKING_OVER;
    case Protocol::Role::kPrimary:
      return v1::REPLICA_ROLE_PRIMARY;
    case Protocol::Role::kEnded:
      return v1::REPLICA_ROLE_ENDED;
  }
  return v1::REPLICA_ROLE_UNSPECIFIED;
}

// Returns when a call that may wait for `wait` is answered at the latest.
absl::Time AnswerBy(const rpc::ServerCall& call, absl::Duration wait) {
  return std::min(MonotonicNow() + std::min(wait, kLongestCallWait), call.deadline() - kReplyMargin);
}

uint64_t Milliseconds(absl::Duration duration) {
  return static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(duration)));
}

}  // namespace

// The service.

v1::ReplicaStatus Replica::Impl::Status() const {
  const StatusWaits::Known known = waits_.known();
  v1::ReplicaStatus status;
  *status.mutable_placement() = ps::ToProto(known.placement);
  status.set_shard(options_.shard);
  *status.mutable_self() = ps::ToProto(known.self);
  status.set_role(ToProto(known.role));
  status.set_serving(known.serving);
  status.set_min_copies(static_cast<uint32_t>(options_.min_copies));
  status.set_takeover_ms(Milliseconds(known.takeover));
  status.set_handover_pause_ms(static_cast<uint32_t>(Milliseconds(known.handover_pause)));
  status.set_handing_over_to(known.handing_over_to);
  status.set_failure(known.failure);
  const DataPath::FollowerReads reads = path_.follower_reads();
  status.set_follower_reads(reads.served);
  status.set_refused_follower_reads(reads.refused);
  if (reads.lag < absl::InfiniteDuration()) {
    status.set_read_lag_us(static_cast<uint64_t>(absl::ToInt64Microseconds(reads.lag)));
  }
  const absl::Time now = MonotonicNow();
  if (ShippedLog* const log = path_.log(); log != nullptr) {
    status.set_log_position(log->last_position());
    status.set_stored_position(log->durable_position());
    status.set_applied_position(log->last_position());
    for (const LinkState& link : log->links()) {
      v1::ReplicaStatus::Link* const to = status.add_links();
      *to->mutable_replica() = ps::ToProto(link.copy);
      to->set_complete(link.complete);
      to->set_continued(link.continued);
      to->set_in_sync(known.placement.IsInSync(link.copy.id));
      to->set_stored_position(link.stored_position);
      to->set_applied_position(link.applied_position);
      to->set_unsent_bytes(link.unsent_bytes);
      if (link.heard > absl::InfinitePast()) to->set_silent_ms(Milliseconds(now - link.heard));
    }
    if (known.failure.empty()) status.set_failure(log->waiting_for());
    return status;
  }
  const Receiver::State received = path_.receiver().state();
  status.set_log_position(received.stored_position);
  status.set_stored_position(received.stored_position);
  status.set_applied_position(received.applied_position);
  status.set_primary_position(received.primary_position);
  status.set_silent_ms(static_cast<uint64_t>(std::max<int64_t>(0, primary_silent_ms_)));
  return status;
}

absl::Status Replica::Impl::CheckShard(const v1::AttachRequest& request) const {
  if (request.shard() == options_.shard && request.num_servers() == options_.num_servers &&
      request.num_buckets() == options_.num_buckets) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("copy ", request.me().id(), " at ", request.me().address(), " is of server ",
                   request.shard(), " of ", request.num_servers(), " with ", request.num_buckets(),
                   " buckets, and its primary is server ", options_.shard, " of ", options_.num_servers,
                   " with ", options_.num_buckets, ": give all copies the same --index and --num-servers"));
}

void Replica::Impl::HandleAttach(const std::shared_ptr<rpc::ServerCall>& call,
                                 const v1::AttachRequest& request, rpc::Reply<v1::AttachResponse> reply) {
  if (absl::Status fits = CheckShard(request); !fits.ok()) return reply(std::move(fits));
  if (stopping_) return reply(absl::UnavailableError("the server is stopping"));
  Post([request, call, reply = std::move(reply)](Impl& impl) {
    // The caller may be dead, and a process at its address have a link since, which this call would end.
    if (call->IsCancelled() || MonotonicNow() >= call->deadline()) {
      return reply(absl::CancelledError("the copy does not wait for this answer any more"));
    }
    if (!impl.protocol_.has_value()) return reply(absl::UnavailableError("the server is starting"));
    if (!impl.end_.ok()) return reply(absl::FailedPreconditionError(impl.end_.message()));
    absl::Status attached;
    impl.Handle([&](Protocol& p, Protocol::Actions* a) {
      attached = p.OnAttach(FromProto(request.me()), request.term(), request.primary(), a,
                            {.term = request.held_term(), .position = request.held_position()});
    });
    attached.ok() ? reply(v1::AttachResponse()) : reply(std::move(attached));
  });
}

void Replica::Impl::HandleWatch(const std::shared_ptr<rpc::ServerCall>& call, const v1::WatchRequest& request,
                                const rpc::Reply<v1::WatchResponse>& reply) {
  waits_.Await({.version = request.known_version(),
                .linked = request.me(),
                .deadline = AnswerBy(*call, kLongestCallWait),
                .gone = GoneOf(call),
                .reply = [weak = weak_from_this(), me = request.me(), reply] {
                  const std::shared_ptr<Impl> self = weak.lock();
                  if (self == nullptr) return reply(absl::UnavailableError("the server has stopped"));
                  const StatusWaits::Known known = self->waits_.known();
                  v1::WatchResponse response;
                  *response.mutable_self() = ps::ToProto(known.self);
                  response.set_role(ToProto(known.role));
                  *response.mutable_placement() = ps::ToProto(known.placement);
                  response.set_attached(known.linked.contains(me));
                  if (self->stopping_) return reply(absl::UnavailableError("the server is stopping"));
                  reply(std::move(response));
                }});
}

void Replica::Impl::HandleGetPlacement(const std::shared_ptr<rpc::ServerCall>& call,
                                       const v1::GetPlacementRequest& request,
                                       const rpc::Reply<v1::ReplicaStatus>& reply) {
  if (request.wait_ms() == 0) return reply(Status());
  waits_.Await({.version = request.wait_version(),
                .deadline = AnswerBy(*call, absl::Milliseconds(request.wait_ms())),
                .gone = GoneOf(call),
                .reply = [weak = weak_from_this(), reply] {
                  const std::shared_ptr<Impl> self = weak.lock();
                  if (self == nullptr) return reply(absl::UnavailableError("the server has stopped"));
                  reply(self->Status());
                }});
}

rpc::Service Replica::Impl::MakeService() {
  const std::shared_ptr<Impl> self = shared_from_this();
  rpc::Service service;
  service.name = "tandem.v1.Failover";
  service.methods = {
      {"Attach", rpc::Right::kReplica,
       rpc::AsyncProtoHandler<v1::AttachRequest, v1::AttachResponse>(
           [self](const std::shared_ptr<rpc::ServerCall>& call, const v1::AttachRequest& request,
                  rpc::Reply<v1::AttachResponse> reply) {
             self->HandleAttach(call, request, std::move(reply));
           })},
      AppendMethod(&path_.receiver()),
      {"Watch", rpc::Right::kReplica,
       rpc::AsyncProtoHandler<v1::WatchRequest, v1::WatchResponse>(
           [self](const std::shared_ptr<rpc::ServerCall>& call, const v1::WatchRequest& request,
                  const rpc::Reply<v1::WatchResponse>& reply) { self->HandleWatch(call, request, reply); })},
      {"HandOver", rpc::Right::kAdmin,
       rpc::AsyncProtoHandler<v1::HandOverRequest, v1::HandOverResponse>(
           [self](const std::shared_ptr<rpc::ServerCall>& call, const v1::HandOverRequest& request,
                  rpc::Reply<v1::HandOverResponse> reply) {
             self->HandleHandOver(call, request, std::move(reply));
           })},
      {"TakeOver", rpc::Right::kReplica,
       rpc::AsyncProtoHandler<v1::TakeOverRequest, v1::TakeOverResponse>(
           [self](const std::shared_ptr<rpc::ServerCall>&, const v1::TakeOverRequest& request,
                  rpc::Reply<v1::TakeOverResponse> reply) {
             self->HandleTakeOver(request, std::move(reply));
           })},
      {"Leave", rpc::Right::kAdmin,
       rpc::AsyncProtoHandler<v1::LeaveRequest, v1::LeaveResponse>(
           [self](const std::shared_ptr<rpc::ServerCall>& call, const v1::LeaveRequest& request,
                  rpc::Reply<v1::LeaveResponse> reply) {
             self->HandleLeave(call, request, std::move(reply));
           })},
      {"Detach", rpc::Right::kReplica,
       rpc::AsyncProtoHandler<v1::DetachRequest, v1::DetachResponse>(
           [self](const std::shared_ptr<rpc::ServerCall>&, const v1::DetachRequest& request,
                  rpc::Reply<v1::DetachResponse> reply) { self->HandleDetach(request, std::move(reply)); })},
      {"GetPlacement", rpc::Right::kObserve,
       rpc::AsyncProtoHandler<v1::GetPlacementRequest, v1::ReplicaStatus>(
           [self](const std::shared_ptr<rpc::ServerCall>& call, const v1::GetPlacementRequest& request,
                  const rpc::Reply<v1::ReplicaStatus>& reply) {
             self->HandleGetPlacement(call, request, reply);
           })},
  };
  return service;
}

}  // namespace tandem::ps
