// SPDX-License-Identifier: Apache-2.0
#include "launcher/round_services.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/membership/member_process.h"
#include "cluster/store/etcd/etcd_channel.h"
#include "cluster/store/fenced_store.h"
#include "cluster/store/remote_store.h"
#include "rpc/network.h"
#include "rpc/security/epoch_gate.h"
#include "tandem/v1/store.pb.h"

namespace tandem::launcher {
namespace {

constexpr absl::Duration kStoreTimeout = absl::Seconds(5);

}  // namespace

RoundServices::RoundServices(std::string run_id, std::string node_id, const rpc::JobKey& key, int master_port,
                             bool in_etcd)
    : run_id_(std::move(run_id)),
      node_id_(std::move(node_id)),
      key_(key),
      chosen_port_(master_port),
      in_etcd_(in_etcd) {}

RoundServices::~RoundServices() = default;

absl::Status RoundServices::Renew(const std::string& host, const SocketDirectory* sockets,
                                  cluster::Node* node) {
  // A port that the user has chosen stays reserved from round to round.
  if (port_ == nullptr || chosen_port_ == 0) {
    TANDEM_ASSIGN_OR_RETURN(port_, PortReservation::Keep(chosen_port_));
  }
  node->master_port = port_->port();
  if (in_etcd_) {
    node->store = cluster::kStoreInEtcd;
    return absl::OkStatus();
  }
  old_store_ = std::move(store_);
  gate_ = std::make_shared<rpc::EpochGate>(
      key_, rpc::Caller{.run_id = run_id_, .member = absl::StrCat("the store of node ", node_id_)});
  const std::string socket = sockets != nullptr ? sockets->Address(absl::StrCat("store-", renewed_++)) : "";
  absl::StatusOr<std::unique_ptr<cluster::StoreServer>> store =
      cluster::StoreServer::Start(sockets != nullptr ? socket : rpc::ListenAddressFor(host, 0), Clock::Real(),
                                  gate_, {.key = std::make_shared<const rpc::JobKey>(key_)});
  if (!store.ok()) return Annotate(store.status(), "cannot serve the job's store");
  store_ = *std::move(store);
  node->store = sockets != nullptr ? socket : absl::StrCat(host, ":", store_->port());
  return absl::OkStatus();
}

void RoundServices::EnterRound(const cluster::Round& round, std::shared_ptr<cluster::Membership> in_etcd) {
  if (gate_ != nullptr) gate_->Enter(round.epoch);
  membership_ = std::move(in_etcd);
  if (Serves(round)) membership_ = std::shared_ptr<cluster::Membership>(store_, store_->membership());
}

bool RoundServices::Serves(const cluster::Round& round) const {
  return round.group_rank == 0 && !cluster::IsEtcdAddress(round.nodes[0].store);
}

absl::StatusOr<std::shared_ptr<rpc::Channel>> RoundServices::OtherStore(const cluster::Round& round) {
  const std::string& address = round.nodes[0].store;
  if (other_store_ == nullptr || other_store_->target() != address) {
    const rpc::Caller caller = key_.Identify({.run_id = run_id_, .epoch = round.epoch});
    TANDEM_ASSIGN_OR_RETURN(
        other_store_, cluster::IsEtcdAddress(address)
                          ? cluster::ConnectEtcd(address, caller, /*read_only=*/false)
                          : rpc::ConnectGrpc(address, {.caller = caller,
                                                       .key = std::make_shared<const rpc::JobKey>(key_)}));
  }
  return other_store_;
}

void RoundServices::EndLife(const cluster::Round& round, const std::string& member, int64_t pid) {
  cluster::MemberProcess process = cluster::MemberProcess::Self();
  process.pid = pid;
  process.started = 0;
  if (Serves(round)) {
    membership_->EndLife(member, process).IgnoreError();  // it is in memory
    return;
  }
  const absl::StatusOr<std::shared_ptr<rpc::Channel>> store = OtherStore(round);
  if (!store.ok()) return;
  v1::EndLifeRequest request;
  request.set_member(member);
  *request.mutable_process() = process.ToProto();
  (*store)->CallAsync("/tandem.v1.Store/EndLife", Bytes(request.SerializeAsString()),
                      {.timeout = kStoreTimeout, .idempotent = true}, [](absl::StatusOr<Bytes>) {});
}

std::function<void()> RoundServices::EndRound(const cluster::Round& round) {
  const int64_t next = round.epoch + 1;
  if (Serves(round)) cluster::EnterEpoch(store_->store(), next, "launcher").IgnoreError();  // in memory
  // One launcher is enough.
  if (!cluster::IsEtcdAddress(round.nodes[0].store) || round.group_rank != round.Leader()) return nullptr;
  absl::StatusOr<std::shared_ptr<rpc::Channel>> channel = OtherStore(round);
  if (!channel.ok()) return nullptr;
  return [next, channel = *std::move(channel)] {
    cluster::RemoteStore store(channel, kStoreTimeout);
    cluster::EnterEpoch(&store, next, "launcher").IgnoreError();
  };
}

}  // namespace tandem::launcher
