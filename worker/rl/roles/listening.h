// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_LISTENING_H_
#define TANDEM_WORKER_RL_ROLES_LISTENING_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/server.h"
#include "rpc/service.h"
#include "worker/rl/roles/role_job.h"

namespace tandem::rl {

// A server of a job that is registered with it. One that has started again listens at the address of its
// earlier life, because clients keep their channels to that. The destructor ends all connections; it blocks
// as rpc::Server::Shutdown does.
class Listening {
 public:
  // Serves the processes of the job's round. Errors: those of rpc::Server::Start and of the store.
  static absl::StatusOr<std::unique_ptr<Listening>> Start(std::vector<rpc::Service> services, RoleJob* job);
  ~Listening() { server_->Shutdown(absl::Seconds(1)); }

  const std::string& address() const { return address_; }

 private:
  Listening(std::unique_ptr<rpc::Server> server, std::string address)
      : server_(std::move(server)), address_(std::move(address)) {}

  const std::unique_ptr<rpc::Server> server_;
  const std::string address_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_LISTENING_H_
