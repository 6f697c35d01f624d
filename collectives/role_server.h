// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_ROLE_SERVER_H_
#define TANDEM_COLLECTIVES_ROLE_SERVER_H_

// The servers that processes of a role run for the other processes of their job, such as replay servers. The
// job's store has their addresses.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/environment.h"
#include "collectives/store/store.h"
#include "rpc/channel.h"
#include "rpc/server.h"
#include "rpc/service.h"

namespace tandem::collectives {

// The keys of the job's store that have the address of server `index` of a role, and how many there are.
std::string RoleAddressKey(absl::string_view role, int index);
std::string RoleCountKey(absl::string_view role);

// A server of this process that is registered with the job. One that has started again listens at the address
// of its earlier life, because clients keep their channels to that. The destructor ends all connections; it
// blocks as rpc::Server::Shutdown does.
class RoleServer {
 public:
  // Serves the processes of the job's round, and registers as server env.role_rank of env.role.
  // Errors: those of rpc::Server::Start and of the store.
  static absl::StatusOr<std::unique_ptr<RoleServer>> Start(std::vector<rpc::Service> services,
                                                           const Environment& env, Store* store);
  ~RoleServer() { server_->Shutdown(absl::Seconds(1)); }

  // Returns the address at which the other processes of the job reach this server.
  const std::string& address() const { return address_; }

 private:
  RoleServer(std::unique_ptr<rpc::Server> server, std::string address)
      : server_(std::move(server)), address_(std::move(address)) {}

  const std::unique_ptr<rpc::Server> server_;
  const std::string address_;
};

// Returns how many servers of `role` the job has. Blocks until one has registered, at most `timeout`; then
// DeadlineExceeded. Other errors are those of the store.
absl::StatusOr<int> CountRoleServers(Store* store, absl::string_view role, absl::Duration timeout);
// Connects the process `env` to server `index` of `role`. Blocks until it has registered, at most `timeout`;
// then DeadlineExceeded, which names it.
absl::StatusOr<std::shared_ptr<rpc::Channel>> ConnectToRole(const Environment& env, Store* store,
                                                            absl::string_view role, int index,
                                                            absl::Duration timeout);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ROLE_SERVER_H_
