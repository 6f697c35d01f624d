// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_SERVER_WEIGHT_SERVER_H_
#define TANDEM_WEIGHTS_SERVER_WEIGHT_SERVER_H_

// The service tandem.v1.Weights over a store in this process (proto/tandem/v1/weights.proto).

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "rpc/service.h"
#include "tandem/v1/weights.pb.h"
#include "weights/server/uploads.h"
#include "weights/store/model_store.h"

namespace tandem::rpc {
class DeferredCalls;
}

namespace tandem::weights {

namespace v1 = ::tandem::v1;

struct WeightServerOptions {
  std::string name = "weights/0";  // in errors
  ModelStoreOptions store;
  size_t max_header_bytes = size_t{16} << 20;
  // A call of Head waits at most this long, even if its deadline is later.
  absl::Duration max_wait = absl::Minutes(10);
};

// A weight store with its service, without transport: served by a process of its own or together with other
// services. Thread-safe.
class WeightServer {
 public:
  explicit WeightServer(const WeightServerOptions& options);
  ~WeightServer();

  // Returns the service, whose handlers must not be called after this object is destroyed.
  rpc::Service service();
  ModelStore& store() { return store_; }
  // Returns what ListModels returns.
  v1::ListWeightsResponse State() const;
  // Ends all calls that wait, also later ones, with Unavailable: clients repeat them, at a server that starts
  // in place of this one. Idempotent.
  void Stop();

 private:
  // A call of Head that waits.
  struct Waiting;

  void Publish(const std::shared_ptr<rpc::ServerCall>& call);
  absl::StatusOr<v1::BeginWeightsUploadResponse> BeginUpload(const v1::BeginWeightsUploadRequest& request);
  void PutPiece(const std::shared_ptr<rpc::ServerCall>& call);
  // Drops uploads when they have been idle for too long, as long as there are uploads.
  void AwaitIdleUploads();
  // Commits the version whose values are an upload.
  absl::Status CommitUpload(const v1::PublishWeightsRequest& request);
  void Head(const std::shared_ptr<rpc::ServerCall>& call);
  void Pull(const std::shared_ptr<rpc::ServerCall>& call);
  v1::WeightsHeadResponse HeadOf(const std::string& model, const ModelVersion& have) const;

  const WeightServerOptions options_;
  const absl::Time started_;
  ModelStore store_;
  Uploads uploads_;
  std::atomic<bool> awaits_idle_uploads_{false};  // a timer is set
  const std::unique_ptr<rpc::DeferredCalls> timers_;
};

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_SERVER_WEIGHT_SERVER_H_
