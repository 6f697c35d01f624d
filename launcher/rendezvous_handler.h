// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_RENDEZVOUS_HANDLER_H_
#define TANDEM_LAUNCHER_RENDEZVOUS_HANDLER_H_

// Opens the rendezvous at which the launchers of a job meet.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/rendezvous/rendezvous.h"
#include "cluster/store/store.h"
#include "cluster/store/store_server.h"
#include "launcher/rendezvous_options.h"

namespace tandem::launcher {

// Owns the rendezvous and, where this launcher serves it, the store under it. For use by one thread, except
// that Reach, SendWorkersEnded, AwaitWorkersEnded and the rendezvous itself may be used by other threads.
class RendezvousHandler {
 public:
  // Starts the store's server if this launcher has to serve it. Sends no request to another node or to etcd.
  // Returns InvalidArgument for options that contradict each other and Unavailable if the port is taken.
  static absl::StatusOr<std::unique_ptr<RendezvousHandler>> Open(const RendezvousHandlerOptions& options);
  ~RendezvousHandler();

  cluster::Rendezvous* rendezvous() { return rendezvous_.get(); }
  // Blocks until the store responds, for at most the join timeout. Returns Cancelled once `stop` returns
  // true, and Unavailable, with the endpoint, after the timeout. A store of a launcher that responded before
  // and no longer does is Unavailable at once: its contents are lost (etcd's are not, so etcd is waited for).
  // ResourceExhausted if the store has taken no change for full_timeout. The log says what this waits for, at
  // once and every 30 s.
  absl::Status Reach(const std::function<bool()>& stop);
  // The address at which the other nodes reach this one; 127.0.0.1 for a single launcher without one.
  const std::string& host() const { return host_; }
  // MASTER_ADDR of a round in which this node is the first.
  const std::string& master_addr() const {
    return alone() && !options_.master_addr.empty() ? options_.master_addr : host_;
  }
  // Returns true if this launcher is the job's only one.
  bool alone() const { return options_.backend.empty(); }
  // Returns true if processes of other hosts may connect to those of this node: there are other nodes, or the
  // user has said at which address.
  bool outward() const { return !alone() || !options_.local_addr.empty(); }
  // The rendezvous address for commands outside the job: etcd's URL or the store's endpoint; "" if alone().
  const std::string& address() const { return address_; }
  // Returns true if this node wants the rounds' stores in the etcd at which the nodes meet.
  bool job_store_in_etcd() const { return options_.job_store_in_etcd; }
  // Returns true if the store at which the nodes meet is this launcher's.
  bool serves_store() const { return server_ != nullptr; }
  int node_rank() const { return options_.node_rank; }
  // Returns true if nodes may join and leave while the job runs.
  bool elastic() const { return options_.rendezvous.min_nodes < options_.rendezvous.max_nodes; }
  // Returns the job's size for messages: "2 to 4 nodes".
  std::string NodesText() const;
  // Returns the rendezvous for messages: "etcd at 10.0.0.1:2379".
  std::string ToString() const;
  // Tells the other launchers of `round` that this node's processes have ended, except those that serve, and
  // how (`outcome`). No effect if alone().
  void SendWorkersEnded(const cluster::Round& round, absl::string_view outcome);
  // Blocks until each node of `nodes` has called SendWorkersEnded for the round `epoch`, and returns the
  // outcomes. DeadlineExceeded, naming the keys of the missing nodes, after `timeout`; Unavailable if the
  // store is gone.
  absl::StatusOr<std::vector<std::string>> AwaitWorkersEnded(int64_t epoch,
                                                             const std::vector<std::string>& nodes,
                                                             absl::Duration timeout);
  // Call after the end of the job. A launcher that does not serve the store tells the one that does that it
  // knows of the end. The launcher that serves the store blocks until all others of `round` have done so, for
  // at most 5 s: its store must be there until they have read why the job ended. No effect with etcd or
  // alone.
  void SendShutdownNotice(const cluster::Round& round);

 private:
  explicit RendezvousHandler(const RendezvousHandlerOptions& options) : options_(options) {}
  cluster::Store* store() { return server_ != nullptr ? server_->store() : store_.get(); }
  absl::Status OpenStore();
  absl::Status OpenServed();
  absl::Status OpenEtcd();

  const RendezvousHandlerOptions options_;
  std::string host_ = "127.0.0.1";
  std::string address_;
  bool reached_ = false;                          // whether a Reach has succeeded
  std::unique_ptr<cluster::StoreServer> server_;  // the store, if this launcher serves it
  std::unique_ptr<cluster::Store> store_;         // client of etcd or of another launcher's store
  std::unique_ptr<cluster::Rendezvous> rendezvous_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_RENDEZVOUS_HANDLER_H_
