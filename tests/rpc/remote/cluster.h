// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_RPC_REMOTE_CLUSTER_H_
#define TANDEM_TESTS_RPC_REMOTE_CLUSTER_H_

// Workers in one process that are connected by real transports, for tests.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "rpc/remote/rpc_agent.h"
#include "tests/testing/temp_dir.h"

namespace tandem::rpc::remote::testing {

// The timeout of tests for events that must happen: far more than they take.
inline constexpr absl::Duration kTestTimeout = absl::Seconds(30);

class Cluster {
 public:
  // `transport` is that of RpcAgentOptions, or "unix".
  explicit Cluster(std::string transport = "grpc") : transport_(std::move(transport)) {}
  ~Cluster() {
    for (auto& agent : agents_) {
      if (agent != nullptr) (void)agent->ShutdownNow();
    }
  }

  RpcAgent& Add(Functions functions, RpcAgentOptions options = {}) {
    if (options.name.empty()) options.name = absl::StrCat("worker/", agents_.size());
    options.transport = transport_ == "unix" ? "grpc" : transport_;
    if (transport_ == "unix")
      options.listen = absl::StrCat("unix:", directory_of_sockets_.File(absl::StrCat(agents_.size())));
    auto agent = RpcAgent::Start(std::move(options), &directory, std::move(functions));
    TANDEM_CHECK_MSG(agent.ok(), agent.status().ToString());
    agents_.push_back(*std::move(agent));
    return *agents_.back();
  }
  RpcAgent& operator[](size_t i) { return *agents_[i]; }
  void Kill(size_t i) { agents_[i].reset(); }

  MemoryDirectory directory;

 private:
  const std::string transport_;
  tandem::testing::TempDir directory_of_sockets_;
  std::vector<std::unique_ptr<RpcAgent>> agents_;
};

}  // namespace tandem::rpc::remote::testing

#endif  // TANDEM_TESTS_RPC_REMOTE_CLUSTER_H_
