// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_ROUND_SERVICES_H_
#define TANDEM_LAUNCHER_ROUND_SERVICES_H_

// The services that a node offers to a round, which uses them if the node is its first one: the job's store,
// unless it is in etcd, and a free port for MASTER_PORT. And the node's way to the store of its round.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/membership/membership.h"
#include "cluster/rendezvous/rendezvous.h"
#include "cluster/store/store_server.h"
#include "launcher/host/port_reservation.h"
#include "launcher/host/socket_directory.h"
#include "rpc/channel.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/security/job_key.h"

namespace tandem::launcher {

// Owns them. For the main thread.
class RoundServices {
 public:
  // `master_port`: the port to reserve in all rounds, or 0 for a free one in each round.
  // `key`: the job's. `in_etcd`: this node serves no store.
  RoundServices(std::string run_id, std::string node_id, const rpc::JobKey& key, int master_port,
                bool in_etcd);
  ~RoundServices();

  // Starts a new store and reserves a port, for the round that the node will join next. Sets their addresses
  // in `node`, where `host` is this node's address. With `sockets` the store has a socket there, and no port.
  // The store of the last round is served until the next Renew, because a running process may still use it.
  // Returns an error if the store cannot be served or the chosen port is taken.
  absl::Status Renew(const std::string& host, const SocketDirectory* sockets, cluster::Node* node);
  // Tells the store the epoch of the round. From then on it refuses callers of other rounds. `in_etcd`: the
  // members of the round if its store is in etcd, else nullptr. nodes[0].store of the round is its address.
  void EnterRound(const cluster::Round& round, std::shared_ptr<cluster::Membership> in_etcd);
  // Tells the store of `round` that the process `pid` of this node, the member `member`, has ended, so that a
  // successor need not look for it. Does not block; the store may not learn it.
  void EndLife(const cluster::Round& round, const std::string& member, int64_t pid);
  // Ends the calls of processes that wait in the store of `round`: they get an error. Returns what is left to
  // do for that, which blocks until etcd has answered, or nullptr.
  std::function<void()> EndRound(const cluster::Round& round);

  // The members of the round that was entered, if this node knows them: it serves their store, or etcd has
  // it. Otherwise nullptr.
  const std::shared_ptr<cluster::Membership>& membership() const { return membership_; }
  int master_port() const { return port_->port(); }

 private:
  // Returns whether this node serves the store of the round.
  bool Serves(const cluster::Round& round) const;
  // Returns a channel to the store of the round, which this node does not serve.
  absl::StatusOr<std::shared_ptr<rpc::Channel>> OtherStore(const cluster::Round& round);

  const std::string run_id_, node_id_;
  const rpc::JobKey key_;
  const int chosen_port_;
  int renewed_ = 0;
  const bool in_etcd_;
  std::shared_ptr<cluster::StoreServer> store_, old_store_;  // nullptr: in etcd
  std::shared_ptr<rpc::EpochGate> gate_;                     // of store_
  std::shared_ptr<cluster::Membership> membership_;
  // The connection to the store of the round if this node does not serve it.
  std::shared_ptr<rpc::Channel> other_store_;
  std::unique_ptr<PortReservation> port_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_ROUND_SERVICES_H_
