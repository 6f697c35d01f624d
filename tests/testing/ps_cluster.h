// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_PS_CLUSTER_H_
#define TANDEM_TESTS_TESTING_PS_CLUSTER_H_

// Parameter servers in the test's own process, reached through loopback channels with injected faults. A test
// that uses it must link tandem_ps_server and tandem_ps_client.

#include <memory>
#include <utility>
#include <vector>

#include "ps/client/client.h"
#include "ps/server/parameter_server.h"
#include "rpc/transport/loopback.h"

namespace tandem::testing {

class PsCluster {
 public:
  explicit PsCluster(uint32_t num_servers) {
    for (uint32_t i = 0; i < num_servers; ++i) {
      servers_.push_back(std::make_unique<ps::ParameterServer>(
          ps::ParameterServerOptions{.index = i, .num_servers = num_servers}));
      services_.push_back(std::make_shared<const std::vector<rpc::Service>>(
          std::vector<rpc::Service>{servers_.back()->service(), servers_.back()->subscriptions_service()}));
    }
  }
  // Clients must be destroyed before the cluster.
  ~PsCluster() {
    for (auto& server : servers_) server->Stop();
  }

  std::vector<std::unique_ptr<rpc::Channel>> Channels(rpc::FaultInjector injector = nullptr) {
    std::vector<std::unique_ptr<rpc::Channel>> channels;
    // The injected faults pass quickly, so short waits suffice.
    const rpc::BackoffOptions backoff = {.initial = absl::Milliseconds(1), .max = absl::Milliseconds(20)};
    for (const auto& services : services_) {
      channels.push_back(rpc::ConnectLoopback(services, injector, backoff));
    }
    return channels;
  }
  absl::StatusOr<std::unique_ptr<ps::Client>> Connect(uint32_t worker = 0,
                                                      rpc::FaultInjector injector = nullptr,
                                                      absl::Duration timeout = absl::Seconds(30)) {
    return ps::Client::Connect(Channels(std::move(injector)), {.worker = worker, .timeout = timeout});
  }
  ps::ParameterServer& server(size_t i) { return *servers_[i]; }

 private:
  std::vector<std::unique_ptr<ps::ParameterServer>> servers_;
  std::vector<std::shared_ptr<const std::vector<rpc::Service>>> services_;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_PS_CLUSTER_H_
