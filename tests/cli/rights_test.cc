// SPDX-License-Identifier: Apache-2.0
// The right that each method of each service needs: the table of docs/security.md, and what servers do.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/blocking_counter.h"
#include "base/read_file.h"
#include "cluster/membership/local_membership.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/store_service.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "ps/failover/replica.h"
#include "ps/failover/store_board.h"
#include "ps/server/parameter_server.h"
#include "replay/server/replay_server.h"
#include "rpc/connect.h"
#include "rpc/diagnostics/diagnostics_server.h"
#include "rpc/remote/rpc_agent.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/server.h"
#include "rpc/shm/shm_server.h"
#include "tests/testing/status_matchers.h"
#include "weights/client/local_weights.h"
#include "weights/server/weight_server.h"
#include "worker/rl/envs/registry.h"
#include "worker/rl/inference/inference_server.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef";

// Everything that processes of a job serve, in one process.
class RightsTest : public ::testing::Test {
 protected:
  RightsTest()
      : ps_({.gate = gate_, .failover = true}),
        board_(&store_),
        replica_({.board = &board_, .server = &ps_}),
        replay_(*replay::ReplayServer::Make({})),
        weights_({}),
        local_weights_(&models_),
        inference_({}, (*rl::MakeEnvironment(rl::Environments().Default("cartpole")))->spec(),
                   &local_weights_),
        membership_(Clock::Real()),
        store_service_(&store_, &membership_),
        diagnostics_(*rpc::DiagnosticsServer::Start({}, std::make_shared<rpc::ProcessStatus>("worker/0", 1),
                                                    &recorder_)),
        agent_(*rpc::remote::RpcAgent::Start({.name = "worker/0"}, &directory_, {})) {
    services_ = {ps_.service(),
                 ps_.durability_service(),
                 ps_.subscriptions_service(),
                 replica_.service(),
                 replay_->service(),
                 weights_.service(),
                 inference_.service(),
                 store_service_.MakeService(),
                 diagnostics_->service(),
                 agent_->service(),
                 rpc::shm::OfferService(nullptr, "of a test")};
  }
  ~RightsTest() override {
    store_service_.StopWaits();
    (void)agent_->ShutdownNow();
  }

  // Returns "tandem.v1.Store/Get" and the right of each method.
  std::map<std::string, rpc::Right> Rights() const {
    std::map<std::string, rpc::Right> rights;
    for (const rpc::Service& service : services_) {
      for (const rpc::Method& method : service.methods) {
        EXPECT_TRUE(rights.emplace(absl::StrCat(service.name, "/", method.name), method.right).second);
      }
    }
    return rights;
  }
  // Calls every method at the same time, with an empty request, and returns the errors.
  std::map<std::string, absl::Status> CallAll(const std::string& token) {
    // The transport adds its own SharedMemory, the last one.
    auto server = *rpc::Server::Start({.gate = gate_}, {services_.begin(), services_.end() - 1});
    const auto channel =
        *rpc::ConnectGrpc(absl::StrCat("127.0.0.1:", server->port()), {.caller = {.token = token}});
    std::map<std::string, absl::Status> errors;
    for (const auto& [method, right] : Rights()) errors[method];
    errors.erase("tandem.v1.SharedMemory/Offer");
    absl::BlockingCounter pending(static_cast<int>(errors.size()));
    for (auto& [method, error] : errors) {
      channel->CallAsync(absl::StrCat("/", method), Bytes(), {.timeout = absl::Seconds(5)},
                         [&error = error, &pending](absl::StatusOr<Bytes> response) {
                           error = response.status();
                           pending.DecrementCount();
                         });
    }
    pending.Wait();
    server->Shutdown(absl::ZeroDuration());
    return errors;
  }

  const std::shared_ptr<rpc::EpochGate> gate_ =
      std::make_shared<rpc::EpochGate>(rpc::Caller{.member = "server/0", .token = kToken});
  cluster::MemoryStore store_;
  ps::ParameterServer ps_;
  ps::StoreBoard board_;
  ps::Replica replica_;
  const std::shared_ptr<replay::ReplayServer> replay_;
  weights::WeightServer weights_;
  weights::ModelStore models_;
  weights::LocalWeights local_weights_;
  rl::InferenceServer inference_;
  cluster::LocalMembership membership_;
  cluster::StoreService store_service_;
  trace::Recorder recorder_;
  const std::unique_ptr<rpc::DiagnosticsServer> diagnostics_;
  rpc::remote::MemoryDirectory directory_;
  const std::unique_ptr<rpc::remote::RpcAgent> agent_;
  std::vector<rpc::Service> services_;
};

TEST_F(RightsTest, EveryMethodThatIsDefinedIsServedAndNoOther) {
  // The transport serves the first itself; tests serve the second.
  const std::set<std::string> others = {"tandem.v1.Data", "tandem.v1.Echo"};
  std::set<std::string> defined;
  for (const char* file :
       {"diagnostics", "durability", "failover", "inference", "parameter_server", "remote_function", "replay",
        "shared_memory", "store", "stream", "subscriptions", "weights"}) {
    const auto* const found = google::protobuf::DescriptorPool::generated_pool()->FindFileByName(
        absl::StrCat("tandem/v1/", file, ".proto"));
    ASSERT_NE(found, nullptr) << file;
    for (int s = 0; s < found->service_count(); ++s) {
      const auto* const service = found->service(s);
      if (others.contains(service->full_name())) continue;
      for (int m = 0; m < service->method_count(); ++m)
        defined.insert(absl::StrCat(service->full_name(), "/", service->method(m)->name()));
    }
  }
  std::set<std::string> served;
  for (const auto& [method, right] : Rights()) served.insert(method);
  EXPECT_EQ(served, defined);
}

TEST_F(RightsTest, TheTableOfTheDocumentsIsThatOfTheServers) {
  std::string table = "| service | right | methods | without the key |\n|---|---|---|---|\n";
  for (const rpc::Service& service : services_) {
    std::map<rpc::Right, std::vector<std::string>> by_right;
    for (const rpc::Method& method : service.methods) by_right[method.right].push_back(method.name);
    for (auto& [right, methods] : by_right) {
      std::sort(methods.begin(), methods.end());
      absl::StrAppend(&table, "| `", service.name.substr(service.name.rfind('.') + 1), "` | ",
                      rpc::RightName(right), " | ", absl::StrJoin(methods, ", "), " | ",
                      rpc::NeedsToken(right) ? "refused" : "served", " |\n");
    }
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string page, ReadFile(TANDEM_SECURITY_PAGE));
  EXPECT_THAT(page, HasSubstr(table)) << "docs/security.md needs this table:\n" << table;
}

// The first presents the key of this process, which is another one.
TEST_F(RightsTest, ACallerWithAnotherKeyObservesAndNothingElse) {
  const auto rights = Rights();
  for (const std::string token : {"", "0123456789abcdeF"}) {
    for (const auto& [method, error] : CallAll(token)) {
      const bool refused = absl::IsPermissionDenied(error);
      EXPECT_EQ(refused, rpc::NeedsToken(rights.at(method))) << method << ": " << error;
      if (!refused) continue;
      EXPECT_THAT(error.message(), HasSubstr(method));
      EXPECT_THAT(error.message(), HasSubstr(rpc::RightName(rights.at(method))));
    }
  }
}

TEST_F(RightsTest, AMemberIsRefusedNothing) {
  for (const auto& [method, error] : CallAll(kToken))
    EXPECT_FALSE(absl::IsPermissionDenied(error)) << method << ": " << error;
}

}  // namespace
}  // namespace tandem
