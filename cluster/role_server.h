// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_ROLE_SERVER_H_
#define TANDEM_CLUSTER_ROLE_SERVER_H_

// The servers that processes of a role run for the other processes of their job, such as replay servers. The
// job's store has their addresses.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/timed_wait.h"
#include "cluster/environment.h"
#include "cluster/store/store.h"
#include "rpc/channel.h"
#include "rpc/epoch_gate.h"
#include "rpc/server.h"
#include "rpc/service.h"

namespace tandem::cluster {

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
// `store` is the address of the job's store. InvalidArgument, which names the flag: an address that does not
// parse, or a port that is advertised while the kernel picks the port. Errors of LocalAddressFor.
absl::StatusOr<ListenOptions> ChooseAddress(const ListenOptions& options, const std::string& earlier,
                                            const std::string& store);

// A server of this process that is registered with the job, again if the job's store has lost the
// registration. One thread looks after that. The destructor ends all connections; it blocks as
// rpc::Server::Shutdown does, and about a second if the store is away.
class RoleServer {
 public:
  // Serves the processes of the job's round, and registers as server env.role_rank of env.role. `store` is
  // the connection to the job's store. Errors: those of ChooseAddress, rpc::Server::Start and the store.
  static absl::StatusOr<std::unique_ptr<RoleServer>> Start(std::vector<rpc::Service> services,
                                                           const Environment& env,
                                                           std::shared_ptr<rpc::Channel> store,
                                                           const ListenOptions& options = {});
  ~RoleServer();

  // Returns the address at which the other processes of the job reach this server.
  const std::string& address() const { return address_; }

 private:
  RoleServer(std::unique_ptr<rpc::Server> server, std::shared_ptr<rpc::EpochGate> gate, std::string address,
             const Environment& env, std::shared_ptr<rpc::Channel> store);

  const std::unique_ptr<rpc::Server> server_;
  const std::string address_;
  TimedNotification stop_;
  std::thread registering_;
};

// Returns how many servers of `role` the job has. Blocks until one has registered, at most `timeout`; then
// DeadlineExceeded. Other errors are those of the store.
absl::StatusOr<int> CountRoleServers(Store* store, absl::string_view role, absl::Duration timeout);
// Connects the process `env` to server `index` of `role`. Blocks until it has registered, at most `timeout`;
// then DeadlineExceeded, which names it.
absl::StatusOr<std::shared_ptr<rpc::Channel>> ConnectToRole(const Environment& env, Store* store,
                                                            absl::string_view role, int index,
                                                            absl::Duration timeout);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_ROLE_SERVER_H_
