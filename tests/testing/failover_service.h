// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_FAILOVER_SERVICE_H_
#define TANDEM_TESTS_TESTING_FAILOVER_SERVICE_H_

// A process that says what a test lets it say about its copy of a shard, over gRPC. A test that uses it must
// link tandem_rpc.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "rpc/server.h"
#include "rpc/service.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::testing {

// Thread-safe.
class FakeCopy {
 public:
  FakeCopy() {
    const rpc::Service service = {
        "tandem.v1.Failover",
        {{"GetPlacement", rpc::Right::kObserve,
          rpc::ProtoHandler<v1::GetPlacementRequest, v1::ReplicaStatus>(
              [this](const v1::GetPlacementRequest&) -> absl::StatusOr<v1::ReplicaStatus> {
                absl::MutexLock lock(&mutex_);
                return status_;
              })}}};
    server_ = rpc::Server::Start({.listen = "127.0.0.1:0", .transport = "grpc"}, {service}).value();
  }
  // Does not wait for questions that are under way.
  ~FakeCopy() { server_->Shutdown(absl::ZeroDuration()); }
  void Say(v1::ReplicaStatus status) {
    absl::MutexLock lock(&mutex_);
    status_ = std::move(status);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }

 private:
  absl::Mutex mutex_;
  v1::ReplicaStatus status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_FAILOVER_SERVICE_H_
