// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_CLIENT_WEIGHTS_H_
#define TANDEM_WEIGHTS_CLIENT_WEIGHTS_H_

// The interface to a weight store, wherever it is: in this process (local_weights.h) or in a server
// (remote_weights.h). publisher.h publishes through it.

#include <memory>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weights/model/model.h"
#include "weights/store/model_store.h"

namespace tandem::weights {

// Thread-safe. Calls block; none may be made on an RPC thread. Deadlines are times of MonotonicNow(). A call
// to a server may take up to 5 s more than its deadline for a round trip. Newer may take longer for the
// values of a version that has been announced (RemoteWeightsOptions::call_timeout).
class Weights {
 public:
  virtual ~Weights() = default;

  // Begins an epoch of `model`, larger than all before it. Publishers of smaller ones are refused from then
  // on. Errors: those of ModelStore::StartEpoch, and of the connection.
  virtual absl::StatusOr<EpochGrant> StartEpoch(absl::string_view model, absl::string_view publisher,
                                                absl::Time deadline) = 0;
  // Commits a version as ModelStore::Commit does, with the same errors. After DeadlineExceeded or Unavailable
  // the version may have been committed; the same call may be repeated.
  virtual absl::Status Commit(const std::shared_ptr<const Model>& model, absl::Time deadline) = 0;
  // Copies the values of a model, as UnfilledModel::Fill does, and commits it, as Commit does. A server
  // receives values while later ones are copied. The model is complete when this returns, also after an
  // error.
  virtual absl::Status FillAndCommit(UnfilledModel* unfilled, absl::Time deadline) {
    unfilled->Fill();
    return Commit(unfilled->model, deadline);
  }
  // Returns the head once it is newer than `than`. Blocks for it until `deadline`; then returns nullptr. The
  // digest has been checked. Errors: DataLoss if it was wrong, and those of the connection; the caller may
  // call again.
  virtual absl::StatusOr<std::shared_ptr<const Model>> Newer(absl::string_view model,
                                                             const ModelVersion& than,
                                                             absl::Time deadline) = 0;
  // Returns the version of the head, {} if nothing has been published. Cancelled if `cancel` is requested
  // meanwhile.
  virtual absl::StatusOr<ModelVersion> Head(absl::string_view model, absl::Time deadline,
                                            std::stop_token cancel = {}) = 0;
};

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_CLIENT_WEIGHTS_H_
