// SPDX-License-Identifier: Apache-2.0
#include "launcher/round_services.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/membership/member_process.h"
#include "cluster/store/fenced_store.h"
#include "rpc/network.h"
#include "tandem/v1/store.pb.h"

namespace tandem::launcher {
namespace {

constexpr absl::Duration kEndLifeTimeout = absl::Seconds(5);

}  // namespace

RoundServices::RoundServices(std::string run_id, std::string node_id, const rpc::JobKey& key, int master_port)
    : run_id_(std::move(run_id)), node_id_(std::move(node_id)), key_(key), chosen_port_(master_port) {}

RoundServices::~RoundServices() = default;

absl::Status RoundServices::Renew(const std::string& host, const SocketDirectory* sockets,
                                  cluster::Node* node) {
  old_store_ = std::move(store_);
  gate_ = std::make_shared<rpc::EpochGate>(
      key_.Identify({.run_id = run_id_, .member = absl::StrCat("the store of node ", node_id_)}));
  const std::string socket = sockets != nullptr ? sockets->Address(absl::StrCat("store-", renewed_++)) : "";
  absl::StatusOr<std::unique_ptr<cluster::StoreServer>> store =
      cluster::StoreServer::Start(sockets != nullptr ? socket : rpc::ListenAddressFor(host, 0), Clock::Real(),
                                  gate_, {.key = std::make_shared<const rpc::JobKey>(key_)});
  if (!store.ok()) return Annotate(store.status(), "cannot serve the job's store");
  store_ = *std::move(store);
  node->store = sockets != nullptr ? socket : absl::StrCat(host, ":", store_->port());
  // A port that the user has chosen stays reserved from round to round.
  if (port_ == nullptr || chosen_port_ == 0) {
    TANDEM_ASSIGN_OR_RETURN(port_, PortReservation::Keep(chosen_port_));
  }
  node->master_port = port_->port();
  return absl::OkStatus();
}

void RoundServices::EnterRound(int64_t epoch) { gate_->Enter(epoch); }

void RoundServices::EndLife(const cluster::Round& round, const std::string& member, int64_t pid) {
  cluster::MemberProcess process = cluster::MemberProcess::Self();
  process.pid = pid;
  process.started = 0;
  if (round.group_rank == 0) {
    store_->membership()->EndLife(member, process).IgnoreError();  // it is in memory
    return;
  }
  const std::string& address = round.nodes[0].store;
  if (other_store_ == nullptr || other_store_->target() != address) {
    const rpc::Caller caller = key_.Identify({.run_id = run_id_, .epoch = round.epoch});
    absl::StatusOr<std::unique_ptr<rpc::Channel>> channel =
        rpc::ConnectGrpc(address, {.caller = caller, .key = std::make_shared<const rpc::JobKey>(key_)});
    if (!channel.ok()) return;
    other_store_ = *std::move(channel);
  }
  v1::EndLifeRequest request;
  request.set_member(member);
  *request.mutable_process() = process.ToProto();
  other_store_->CallAsync("/tandem.v1.Store/EndLife", Bytes(request.SerializeAsString()),
                          {.timeout = kEndLifeTimeout, .idempotent = true}, [](absl::StatusOr<Bytes>) {});
}

void RoundServices::EndRound(int64_t epoch) {
  cluster::EnterEpoch(store_->store(), epoch + 1, "launcher").IgnoreError();
}

}  // namespace tandem::launcher
