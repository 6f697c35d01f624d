// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_SERVER_H_
#define TANDEM_CLUSTER_SERVER_H_

// The servers by which members of a job serve each other. Members find them by addresses in the job's store.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cluster/environment.h"
#include "cluster/member.h"
#include "cluster/metrics/http_access.h"
#include "cluster/store/store.h"
#include "rpc/channel.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/server.h"
#include "rpc/service.h"

namespace tandem::cluster {

class HttpServer;

// The keys of the job's store that have the address of server `index` of a role, and how many there are.
std::string RoleAddressKey(absl::string_view role, int index);
std::string RoleCountKey(absl::string_view role);

// Where a server listens. A machine whose address changes when it starts again, such as a container, needs
// both.
struct ListenOptions {
  // "host:port"; empty: an address that the job's other machines reach, with any port.
  std::string listen;
  // The host, or "host:port", under which others reach the server. Empty: that of `listen`. Requires
  // `listen`.
  std::string advertise;
};

// Returns where a server listens and what it advertises. `earlier` is the address at which an earlier life of
// the server was registered, or "". The server listens there again, because clients keep their channels to
// that address. With options.listen it listens at that address, on the earlier port if the port is 0.
// `store` is the address of the job's store: if that is a unix socket, the server of `member` listens at one
// beside it, and at no port. InvalidArgument, which names the flag: an address that does not
// parse, or a port that is advertised while the kernel picks the port. Errors of LocalAddressFor.
absl::StatusOr<ListenOptions> ChooseAddress(const ListenOptions& options, const std::string& earlier,
                                            const std::string& store, absl::string_view member);

struct ServerOptions {
  // Where it listens, and what it advertises.
  ListenOptions address;
  // The transport, threads and limits. Start sets `listen`, `gate` and `serving`.
  rpc::ServerOptions rpc = {};
  // Decides which callers are served. nullptr: those of the member's round, with the job's key.
  std::shared_ptr<rpc::EpochGate> gate = nullptr;
  // How the other processes of the job find the server.
  enum class Registration {
    kRole,    // as server env.role_rank of env.role; it listens again where its earlier life did
    kMember,  // under the member's name
    kNone,    // by other means
  };
  Registration registration = Registration::kRole;
  // False: Start does not call SetReady.
  bool ready = true;
  // The file in which it tells the launcher that it has begun to serve, with the process id; "": none.
  // SetReady writes it.
  std::string serving_file = "";
  // Metrics for Prometheus: GET /metrics over HTTP. They include those of the process.
  struct Metrics {
    std::optional<HttpAccess> access = {};        // nullopt: none are served
    std::function<std::string()> text = nullptr;  // the server's own; called on another thread until Drain
  };
  Metrics metrics = {};
};

// A server of a member of a job. It has a listener behind the gate of the job, health checks, metrics, and
// the address in `tandem status`. It registers with the job. If the job's store has lost its memory, it
// registers again. Thread-safe.
class Server {
 public:
  // Listens, and if options.ready, calls SetReady. Handlers of `services` run until Drain, so everything that
  // they capture must live longer. `member` must outlive the server. Errors: those of ChooseAddress,
  // rpc::Server::Start and SetReady; Unavailable if the port of the metrics cannot be bound. If the port is
  // taken, the error names the member of the job that serves there, if one does.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Member* member, ServerOptions options,
                                                       std::vector<rpc::Service> services);
  // Serves without a job, as `name` in messages. Callers that change something need the key of this process.
  // Errors are those of rpc::ProcessKey, rpc::Server::Start, rpc::AdvertisedAddress and the metrics' port.
  static absl::StatusOr<std::unique_ptr<Server>> StartAlone(const std::string& name, ServerOptions options,
                                                            std::vector<rpc::Service> services);
  // Calls Drain.
  ~Server();

  // Returns the address at which others reach this server.
  const std::string& address() const { return address_; }
  // Returns where it is bound, as AdvertisedAddress says it.
  const std::string& bound() const { return bound_; }
  int port() const { return listening_->port(); }
  // Returns the port of the metrics. Requires that they are served.
  int metrics_port() const;
  // Registers the server with the job. Health checks return SERVING from then on, and NOT_SERVING before.
  // Idempotent. Errors: the store's; then it may be called again. A serving file that cannot be written
  // causes a warning.
  absl::Status SetReady();
  // Ends the registration's upkeep and all connections: health checks return NOT_SERVING, and calls under way
  // may go on for a second. Blocks some seconds more while it registers again. Idempotent.
  void Drain();

 private:
  Server(Member* member, ServerOptions options);
  absl::Status Listen(const ListenOptions& chosen, std::vector<rpc::Service> services);
  absl::Status ServeMetrics();
  // Registers what it has in a store that has lost its memory.
  absl::Status RegisterAgain();

  Member* const member_;  // nullptr: it serves without a job
  const ServerOptions options_;
  std::shared_ptr<rpc::EpochGate> gate_;
  std::vector<std::string> keys_, values_;  // of the registration
  std::unique_ptr<rpc::Server> listening_;
  std::unique_ptr<HttpServer> metrics_;
  std::string address_, bound_;
  absl::Mutex mutex_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<JobMonitor::Registration> registration_;
};

// Returns how many servers of `role` the job has. Blocks until one has registered, at most `timeout`; then
// DeadlineExceeded. Other errors are those of the store.
absl::StatusOr<int> CountRoleServers(Store* store, absl::string_view role, absl::Duration timeout);
// Connects to server `index` of `role`. Blocks until it has registered, at most `timeout`; then
// DeadlineExceeded, which names it.
absl::StatusOr<std::shared_ptr<rpc::Channel>> ConnectToRole(const Member& member, absl::string_view role,
                                                            int index, absl::Duration timeout);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_SERVER_H_
