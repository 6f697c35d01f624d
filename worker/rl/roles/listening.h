// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_LISTENING_H_
#define TANDEM_WORKER_RL_ROLES_LISTENING_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/timed_wait.h"
#include "rpc/server.h"
#include "rpc/service.h"
#include "worker/rl/roles/role_job.h"

namespace tandem::rl {

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

// A server of a job that is registered with it, again if the job's store has lost the registration. One
// thread looks after that. The destructor ends all connections; it blocks as rpc::Server::Shutdown does, and
// about a second if the store is away.
class Listening {
 public:
  // Serves the processes of the job's round. `job` must outlive the server. Errors: those of ChooseAddress,
  // rpc::Server::Start and the store.
  static absl::StatusOr<std::unique_ptr<Listening>> Start(std::vector<rpc::Service> services,
                                                          const ListenOptions& options, RoleJob* job);
  ~Listening();

  const std::string& address() const { return address_; }

 private:
  Listening(std::unique_ptr<rpc::Server> server, std::string address, RoleJob* job);

  const std::unique_ptr<rpc::Server> server_;
  const std::string address_;
  TimedNotification stop_;
  std::thread registering_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_LISTENING_H_
