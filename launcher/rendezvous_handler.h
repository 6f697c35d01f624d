#ifndef TANDEM_LAUNCHER_RENDEZVOUS_HANDLER_H_
#define TANDEM_LAUNCHER_RENDEZVOUS_HANDLER_H_

// Where the launchers of a job meet, chosen by --rdzv-backend and its companions.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/store/store.h"
#include "collectives/store/store_server.h"

namespace tandem::launcher {

// A plain value.
struct RendezvousHandlerOptions {
  // "": this launcher alone, in its own memory; "static": a store that node 0 serves at `endpoint`; "c10d":
  // one that whoever can bind `endpoint` serves; "etcd".
  std::string backend;
  std::string endpoint;     // "host:port"
  std::string local_addr;   // of this node, for the others; "": the one that leads to `endpoint`
  std::string master_addr;  // MASTER_ADDR of a launcher alone; "": 127.0.0.1
  int node_rank = -1;       // -1: any
  std::map<std::string, std::string> conf;  // what --rdzv-conf says and `rendezvous` does not
  collectives::RendezvousOptions rendezvous;
};

// "a=1,b=2" of --rdzv-conf into `options`. InvalidArgument names a key that is not known, or a value's
// mistake.
absl::Status ReadRendezvousConf(absl::string_view text, RendezvousHandlerOptions* options);

// "4" is 4:4, "2:8" itself. InvalidArgument quotes the text.
absl::Status ParseNodes(absl::string_view text, int* min_nodes, int* max_nodes);

// Used by one thread, but for Reach and the rendezvous.
class RendezvousHandler {
 public:
  // Serves the store if that falls to this launcher; asks nobody yet. Errors: InvalidArgument for options
  // that make no sense, Unavailable when the port is taken by something else.
  static absl::StatusOr<std::unique_ptr<RendezvousHandler>> Open(const RendezvousHandlerOptions& options);
  ~RendezvousHandler();

  collectives::Rendezvous* rendezvous() { return rendezvous_.get(); }
  // Waits until the store answers, at most the join time-out or until `stop`. Unavailable names the endpoint,
  // at once where the store has answered before and died: only what etcd holds outlives that.
  absl::Status Reach(const std::function<bool()>& stop);
  // Under which the other nodes reach this one; 127.0.0.1 where there are none.
  const std::string& host() const { return host_; }
  // MASTER_ADDR, should this node be the first.
  const std::string& master_addr() const {
    return alone() && !options_.master_addr.empty() ? options_.master_addr : host_;
  }
  bool alone() const { return options_.backend.empty(); }
  // Where others can ask after the job (cli/monitor/rounds.h): etcd's URL or the store's endpoint; "" alone.
  const std::string& address() const { return address_; }
  int node_rank() const { return options_.node_rank; }
  // Whether nodes may come and go.
  bool elastic() const { return options_.rendezvous.min_nodes < options_.rendezvous.max_nodes; }
  // "2 to 4 nodes"
  std::string NodesText() const;
  // "etcd at 10.0.0.1:2379"
  std::string ToString() const;
  // After the end: the others say that they have heard of it; who serves the store waits for them, for some
  // seconds.
  void SendShutdownNotice(const collectives::Round& round);

 private:
  explicit RendezvousHandler(const RendezvousHandlerOptions& options) : options_(options) {}
  absl::Status OpenStore();
  absl::Status OpenServed();
  absl::Status OpenEtcd();

  const RendezvousHandlerOptions options_;
  std::string host_ = "127.0.0.1";
  std::string address_;
  bool reached_ = false;                              // Reach's
  std::unique_ptr<collectives::StoreServer> server_;  // where this launcher serves the store
  std::unique_ptr<collectives::Store> store_;         // where another does, or etcd
  std::unique_ptr<collectives::Rendezvous> rendezvous_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_RENDEZVOUS_HANDLER_H_
